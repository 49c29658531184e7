"""One command to weights: draw pictures, train, keep the averaged weights and the curves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from lab.scenes import LABELS
from lab.training.config import DetectorConfig, MaskConfig, TrainingConfig
from lab.training.data import Source
from lab.training.detector_job import DetectorJob
from lab.training.loop import Job, Run, Trained, read_checkpoint
from lab.training.mask_job import MaskJob
from lab.training.pool import PicturePool
from lab.training.workers import PictureWorkers
from sam2_core.find_weights import bundled_checkpoint
from sam2_core.presets import preset_named
from sam2_core.types import AutolabelError

# The last layers of the mask tokens' MLPs make masks; the first convolution reads them as prompts.
MASK_WEIGHTS = "sam_mask_decoder.output_hypernetworks_mlps."
MASK_PROMPT_KERNEL = "sam_prompt_encoder.mask_downscaling.0.weight"


def choose_device(name: str) -> torch.device:
    """Return the device to train on."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise AutolabelError("the configuration asks for cuda, and there is no CUDA device")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    return torch.device("cuda", 0)


def make_job(config: TrainingConfig, pool: PicturePool) -> Job:
    """Build the model that the configuration trains, and how it learns."""
    if config.mask:
        return MaskJob(config.mask, pool, config.seed)
    assert config.detector  # noqa: S101 - `config` has one of the two
    return DetectorJob(config.detector, LABELS, pool, config.seed)


def start_weights(section: MaskConfig | DetectorConfig | None) -> dict[str, Tensor] | None:
    """Read the weights that a model starts from, with logits as steep as in training.

    Returns:
        In float32; None where training starts from scratch.

    """
    if not section or not section.init_from:
        return None
    if isinstance(section, DetectorConfig):
        return load_weights(Path(section.init_from))
    path: Path | None = Path(section.init_from)
    if section.init_from == "bundled":
        path = bundled_checkpoint(preset_named(section.preset))
    if path is None:
        raise AutolabelError(f"init_from: this package has no weights of {section.preset}")
    return steeper(load_weights(path), 1 / section.init_steeper)


def train(
    config: TrainingConfig, folder: Path, on_progress: Callable[[Run], object] = lambda _: None
) -> Run:
    """Train the model until the budget is used up; a folder with a checkpoint goes on from it.

    The folder gets `checkpoint.pt`, `curves.json` and `<job>.safetensors` (averaged weights, half
    precision).
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = read_checkpoint(folder, config.name, config.job)
    rendered = state["rendered"] if state else 0
    source = Source(config.pictures, with_masks=config.job == "mask")
    with closing(PictureWorkers(source.draw, config.pictures, rendered)) as workers:
        pool = PicturePool(workers, choose_device(config.device), config.pictures.pool)
        try:
            run = Run(config, Trained(make_job(config, pool), config.ema), folder)
            if state:
                run.restore(state)
            elif start := start_weights(config.mask or config.detector):
                run.trained.start_from(start)
            pool.wait_for(config.pictures.warm_up)
            run.train(lambda: pool.rendered, on_progress)
        finally:
            pool.close()
    kept = run.trained.kept()
    kept = steeper(kept, config.mask.steeper) if config.mask else kept
    save_weights(kept, folder / f"{config.job}.safetensors")
    return run


def steeper(weights: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Multiply all mask logits of a SAM 2.1 by a factor, and nothing else.

    Outlines, where logits are 0, stay. SAM 2 trusts its first mask where the area above -0.05 is
    nearly that above +0.05; a model that was trained briefly has flat logits, of which that is
    seldom so, and a rounding decides. A mask that comes back as a prompt is divided again.
    """
    scaled = {}
    for name, value in weights.items():
        if name.startswith(MASK_WEIGHTS) and ".layers.2." in name:
            scaled[name] = value * factor
        else:
            scaled[name] = value / factor if name == MASK_PROMPT_KERNEL else value
    return scaled


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write weights as safetensors, matrices and kernels in half precision."""
    from safetensors.torch import save_file

    def packed(value: Tensor) -> Tensor:
        value = value.detach().cpu().contiguous()
        return value.half() if value.is_floating_point() and value.ndim > 1 else value

    save_file({name: packed(value) for name, value in weights.items()}, path)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read such a file back, in float32."""
    from safetensors.torch import load_file

    try:
        weights: dict[str, Tensor] = load_file(path)
    except (OSError, ValueError) as error:
        raise AutolabelError(f"{path}: cannot be read as weights: {error}") from error
    return {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
