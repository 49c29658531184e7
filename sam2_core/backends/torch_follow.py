"""What a follower runs, in PyTorch. Importing this needs torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from sam2_core.architecture import Memory, Sam2, cast
from sam2_core.architecture.lean_encoder import LeanEncoder
from sam2_core.architecture.memory_graphs import MaskPrompt, MemoryDecoder, Recall, Remember
from sam2_core.backends.device_owner import DEVICE_OWNER
from sam2_core.backends.follow_backends import FollowBackend
from sam2_core.backends.torch_backend import TorchPixels
from sam2_core.backends.torch_compiled import Captured, out_of_memory
from sam2_core.types import FEATURES, FloatArray, ImageArray

Result = TypeVar("Result")


class TorchFollowBackend(FollowBackend):
    """PyTorch modules.

    Args:
        model: the image path, in float32; unchanged.
        memory: its memory, in float32; unchanged.
        device: "cpu" or "cuda".
        precision: "fp32" or "fp16" (float32 where fidelity needs it).

    """

    unequal = True

    def __init__(
        self, model: Sam2, memory: Memory, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        self._device = device
        self.image_size, self.width = model.preset.image_size, model.preset.width
        if device == "cuda":
            self.objects_at_once, self.device = 16, torch.cuda.get_device_name()
        dtype = torch.float16 if precision == "fp16" else torch.float32
        modules: dict[str, Any] = {
            "encoder": LeanEncoder(model, fused=True),
            "memory_attention": Recall(model, memory, fused=True),
            "memory_decoder": MemoryDecoder(model, memory),
            "memory_mask": MaskPrompt(model, memory),
            "memory_encoder": Remember(model, memory),
        }
        # Copies: they share modules with the model, which a cast would change for others, too.
        modules = {name: copy.deepcopy(module).eval() for name, module in modules.items()}
        self._modules = self.together(
            lambda: {name: cast(one, dtype).to(device) for name, one in modules.items()}
        )
        self._pixels = TorchPixels(torch.device(device))
        self._captured: Captured | None = None

    def together(self, work: Callable[[], Result]) -> Result:
        """Run on the thread that a GPU belongs to; memory that runs out is the machine's error."""

        def guarded() -> Result:
            try:
                with torch.inference_mode():
                    return work()
            except torch.OutOfMemoryError as error:
                raise out_of_memory(error) from error

        return DEVICE_OWNER.run(guarded) if self._device == "cuda" else guarded()

    def encode(self, image: ImageArray) -> dict[str, Any]:
        """Encode; a GPU resizes the image, and repeats what it recorded the first time."""
        on_gpu = self._device == "cuda"
        given = self._pixels.given(image, self.image_size, cuts=on_gpu)

        def work() -> Any:
            planes = self._pixels.squares([given], self.image_size)
            if not on_gpu:
                return self._modules["encoder"](planes)
            if self._captured is None:
                inputs, stream = (planes.clone(),), torch.cuda.Stream()
                self._captured = Captured(self._modules["encoder"], inputs, stream, None)
            self._captured.inputs[0].copy_(planes)
            self._captured.graph.replay()
            return self._captured.outputs

        return dict(zip(FEATURES, self.together(work), strict=True))

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a module."""

        def work() -> Any:
            tensors = {
                name: None if value is None else torch.as_tensor(value, device=self._device)
                for name, value in inputs.items()
            }
            return self._modules[graph](**tensors)

        outputs = self.together(work)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def recall(self, *remembered: Any) -> Any:
        """Condition on as much as each object has."""
        return self.together(lambda: self._modules["memory_attention"].packed(*remembered))

    def no_masks(self, objects: int) -> Any:
        """Return None."""
        return None

    def compared(
        self, masks: Sequence[Any], others: Sequence[Any]
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Compare on the device."""

        def work() -> Any:
            if not masks:
                return np.zeros((0, len(others)), np.float32), np.zeros(0, np.bool_)
            ours = (torch.stack(list(masks)) > 0).flatten(1).float()
            theirs = (torch.stack([*others, masks[0]]) > 0).flatten(1).float()
            shared, own = ours @ theirs.t(), ours.sum(1)
            iou = shared / (own[:, None] + theirs.sum(1) - shared).clamp(min=1)
            found = torch.cat([iou[:, :-1], own[:, None]], 1).cpu().numpy()
            return found[:, :-1], found[:, -1] > 0

        compared: tuple[FloatArray, npt.NDArray[np.bool_]] = self.together(work)
        return compared

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Stack tensors."""
        return self.together(lambda: torch.stack(list(arrays)))

    def kept(self, row: Any) -> Any:
        """Clone it."""
        return self.together(row.clone)

    def to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Copy to the host."""
        copied: npt.NDArray[Any] = self.together(lambda: array.float().cpu().numpy())
        return copied
