"""A copy of the product whose torch backend draws outlines in the boxes, in place of random noise.

Random weights draw noise, which no trained model does, and whoever encodes runs pays for it. The
outlines are drawn on the device after all of the model's work is done (see BENCHMARKS.md). An
object that memory carries keeps the outline that it had, rippled by the model's own logits.
"""

from __future__ import annotations

import shutil
from pathlib import Path

OUTLINES = """

class _Outlined(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        from lab.bench.outlines import outlined

        logits, scores = self.decoder(*inputs)
        cell = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.float32) + 0.5
        return outlined(logits.float(), inputs[3][:, :2] / 4, cell).to(logits.dtype), scores


_plain = build_modules


def build_modules(*given: object) -> Modules:
    modules = _plain(*given)
    for name in ("decoder", "decoder_single"):
        object.__setattr__(modules, name, _Outlined(getattr(modules, name)).eval())
    return modules
"""

FOLLOWED = """

_mask_inputs, _run_decoder = Follower._mask_inputs, Follower._run_decoder


def _noted(self, tracks):
    self._drawn = tracks
    return _mask_inputs(self, tracks)


def _drawn(self, inputs):
    import torch

    from lab.bench.outlines import outlined

    logits, iou, score, pointers = _run_decoder(self, inputs)

    def work():
        if self._drawn[0].before is None:  # boxes
            corners = torch.as_tensor(inputs["points"][:, :2] / 4).to(logits.device)
            cell = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.float32) + 0.5
            return outlined(logits, corners, cell)
        before = torch.stack([one.before for one in self._drawn])
        return torch.where(before > 0, 4.0, -4.0) + 0.3 * logits.clip(-1, 1)

    return self.backend.together(work), iou.clip(0.9, 0.95), score.clip(5, 6), pointers


Follower._mask_inputs, Follower._run_decoder = _noted, _drawn
"""


def outlined_product(target: Path) -> Path:
    """Copy the product to a folder, unless it is there, and have the copy draw outlines."""
    here = Path(__file__).parents[2]
    if not target.exists():
        for name in ("sam2_core", "tasks", "flows", "lab", "deploy"):
            shutil.copytree(here / name, target / name)
        for file, more in (("backends/torch_compiled", OUTLINES), ("follow", FOLLOWED)):
            with (target / f"sam2_core/{file}.py").open("a") as opened:
                opened.write(more)
    return target
