"""One command from a seed to weights: render, train, keep the averaged weights and the curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sam2_core.types import AutolabelError
from tasks.scenes import LABELS, Scene, render_scene
from tasks.training.config import TrainingConfig
from tasks.training.curves import plot_curves
from tasks.training.detector_job import DetectorJob
from tasks.training.loop import Job, Run, Trained
from tasks.training.mask_job import MaskJob
from tasks.training.pool import PicturePool
from tasks.training.rendering import RenderWorkers


def render(seed: int, domain: str, size_hw: tuple[int, int]) -> Scene:
    """Render a picture in a worker process."""
    return render_scene(seed, size_hw, domain=domain)


def choose_device(name: str) -> torch.device:
    """Return the device to train on."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise AutolabelError("the configuration asks for cuda, and there is no CUDA device")
    if name == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    return torch.device(name)


def make_jobs(config: TrainingConfig, pool: PicturePool) -> list[Job]:
    """Build what the configuration asks for, started from earlier weights where it names some."""
    jobs: list[tuple[Job, str]] = []
    if config.mask:
        job = MaskJob(config.mask, pool, config.seed, compiled=config.compile)
        jobs.append((job, config.mask.init_from))
    if config.detector:
        detector = DetectorJob(config.detector, LABELS, pool, config.seed, compiled=config.compile)
        jobs.append((detector, config.detector.init_from))
    for made, start in jobs:
        if start:
            made.load(load_weights(Path(start)))
    return [job for job, _ in jobs]


def train(
    config: TrainingConfig, folder: Path, on_progress: Callable[[Run], None] = lambda _: None
) -> Run:
    """Train until the budget is used up; a folder with a checkpoint goes on from it.

    Returns:
        The finished run; `<job>.safetensors` (averaged weights, half precision), `curves.json`
        and `curves.png` are in the folder.

    """
    device = choose_device(config.device)
    folder.mkdir(parents=True, exist_ok=True)
    start = rendered_so_far(folder)
    with RenderWorkers(render, LABELS, config.render, start) as workers:
        pool = PicturePool(workers, device, config.render.pool)
        try:
            jobs = [Trained(job, config.ema) for job in make_jobs(config, pool)]
            run = Run(config, jobs, folder, rendered_before=start)
            run.restore()
            pool.wait_for(config.render.warm_up)
            run.train(lambda: pool.rendered, on_progress)
        finally:
            pool.close()
    for job in run.jobs:
        save_weights(job.average, folder / f"{job.job.name}.safetensors")
    plot_curves(run.curves, folder / "curves.png")
    return run


def rendered_so_far(folder: Path) -> int:
    """Return how many pictures an earlier part of the run rendered: a resumed one goes on there."""
    path = folder / "checkpoint.pt"
    if not path.is_file():
        return 0
    return int(torch.load(path, map_location="cpu", weights_only=True)["rendered"])


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
