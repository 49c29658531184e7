"""One command from a seed to weights: render, train, keep the averaged weights and the curves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sam2_core.types import AutolabelError
from tasks.scenes import LABELS
from tasks.training.config import RenderConfig, TrainingConfig
from tasks.training.detector_job import DetectorJob
from tasks.training.loop import Job, Run, Trained, read_checkpoint
from tasks.training.mask_job import MaskJob
from tasks.training.pool import PicturePool
from tasks.training.rendering import RenderWorkers, render

# So far apart from the first are the seeds of pictures that only the detector sees.
DETECTOR_SEEDS = 5_000_000


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


JOBS = ("mask", "detector")


def planned_jobs(config: TrainingConfig) -> list[str]:
    """Name the jobs that the configuration asks for."""
    return [name for name in JOBS if getattr(config, name) is not None]


def render_config(config: TrainingConfig, job: str) -> RenderConfig:
    """Split the rendering workers between the jobs; each renders pictures of its own seeds."""
    both = len(planned_jobs(config)) == len(JOBS)
    workers = config.render.workers or len(os.sched_getaffinity(0))
    if not both or config.mask is None:
        return config.render.model_copy(update={"workers": workers})
    for_masks = max(1, round(workers * config.mask.worker_share))
    if job == "mask":
        return config.render.model_copy(update={"workers": for_masks})
    return config.render.model_copy(
        update={
            "workers": max(1, workers - for_masks), "random_share": 0.0,
            "first_seed": config.render.first_seed + DETECTOR_SEEDS,
        }
    )  # fmt: skip


def make_job(config: TrainingConfig, name: str, pool: PicturePool) -> Job:
    """Build one job, started from earlier weights where the configuration names some."""
    job: Job
    if name == "mask" and config.mask:
        job, start = MaskJob(config.mask, pool, config.seed), config.mask.init_from
    elif name == "detector" and config.detector:
        job, start = (
            DetectorJob(config.detector, LABELS, pool, config.seed),
            config.detector.init_from,
        )
    else:
        raise AutolabelError(f"the configuration {config.name!r} has no section [{name}]")
    if start:
        job.load(load_weights(Path(start)))
    return job


def train_job(
    config: TrainingConfig, name: str, folder: Path,
    on_progress: Callable[[Run], None] = lambda _: None,
) -> Run:  # fmt: skip
    """Train one model until the budget is used up; a folder with a checkpoint goes on from it.

    Returns:
        The finished run; the folder holds `checkpoint.pt`, `curves.json` and `<job>.safetensors`
        (averaged weights, half precision).

    """
    device = choose_device(config.device)
    folder.mkdir(parents=True, exist_ok=True)
    state = read_checkpoint(folder, config.name, name)
    start = state["rendered"] if state else 0
    with RenderWorkers(render, LABELS, render_config(config, name), start) as workers:
        pool = PicturePool(workers, device, config.render.pool)
        try:
            run = Run(config, Trained(make_job(config, name, pool), config.ema), folder)
            if state:
                run.restore(state)
            pool.wait_for(config.render.warm_up)
            run.train(lambda: pool.rendered, on_progress)
        finally:
            pool.close()
    save_weights(run.trained.average, folder / f"{name}.safetensors")
    return run


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
