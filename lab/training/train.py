"""One command from a seed to weights: render, train, keep the averaged weights and the curves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.scenes import LABELS
from lab.training.config import DetectorConfig, MaskConfig, RenderConfig, TrainingConfig
from lab.training.detector_job import DetectorJob
from lab.training.loop import Job, Run, Trained, read_checkpoint
from lab.training.mask_job import MaskJob
from lab.training.peers import Peers, run_on
from lab.training.pool import PicturePool
from lab.training.rendering import RenderWorkers, render
from sam2_core.find_weights import bundled_checkpoint
from sam2_core.presets import preset_named
from sam2_core.types import AutolabelError

# So far apart from the first are the seeds of pictures that only the detector sees.
DETECTOR_SEEDS = 20_000_000
# ... and those of each further process of a job.
PEER_SEEDS = 2_000_000


JOBS = ("mask", "detector")
# The last layers of the mask tokens' MLPs make masks; the first convolution reads them as prompts.
MASK_WEIGHTS = "sam_mask_decoder.output_hypernetworks_mlps."
MASK_PROMPT_KERNEL = "sam_prompt_encoder.mask_downscaling.0.weight"


def planned_jobs(config: TrainingConfig) -> list[str]:
    """Name the jobs that the configuration asks for."""
    return [name for name in JOBS if getattr(config, name) is not None]


def render_config(config: TrainingConfig, job: str, peers: Peers) -> RenderConfig:
    """Share the rendering workers out; each process renders pictures of its own seeds."""
    both = len(planned_jobs(config)) == len(JOBS)
    workers = config.render.workers or len(os.sched_getaffinity(0))
    seed, random_share = config.render.first_seed, config.render.random_share
    if both and config.mask:
        for_masks = max(1, round(workers * config.mask.worker_share))
        workers = for_masks if job == "mask" else max(1, workers - for_masks)
    if both and job == "detector":
        seed, random_share = seed + DETECTOR_SEEDS, 0.0
    return config.render.model_copy(
        update={
            "workers": max(1, workers // peers.count), "random_share": random_share,
            "first_seed": seed + peers.rank * PEER_SEEDS,
        }
    )  # fmt: skip


def make_job(config: TrainingConfig, name: str, pool: PicturePool, rank: int = 0) -> Job:
    """Build one job."""
    how: dict[str, Any] = {"compiled": config.compiled, "rank": rank}
    if name == "mask" and config.mask:
        return MaskJob(config.mask, pool, config.seed, **how)
    if name == "detector" and config.detector:
        return DetectorJob(config.detector, LABELS, pool, config.seed, **how)
    raise AutolabelError(f"the configuration {config.name!r} has no section [{name}]")


def start_weights(section: MaskConfig | DetectorConfig) -> dict[str, Tensor] | None:
    """Read the weights that a model starts from, with logits as steep as in training.

    Returns:
        In float32; None where training starts from scratch.

    """
    if not section.init_from:
        return None
    if isinstance(section, DetectorConfig):
        return load_weights(Path(section.init_from))
    path: Path | None = Path(section.init_from)
    if section.init_from == "bundled":
        path = bundled_checkpoint(preset_named(section.preset))
    if path is None:
        raise AutolabelError(f"init_from: this package has no weights of {section.preset}")
    return steeper(load_weights(path), 1 / section.init_steeper)


def say_nothing(_: Run) -> None:
    """Take progress and tell nobody; importable, as other processes need it."""


def train_job(
    config: TrainingConfig, name: str, folder: Path,
    on_progress: Callable[[Run], None] = say_nothing,
) -> Run | None:  # fmt: skip
    """Train one model until the budget is used up; a folder with a checkpoint goes on from it.

    The folder gets `checkpoint.pt`, `curves.json` and `<job>.safetensors` (averaged weights, half
    precision). On several devices there is a process each, and `on_progress` must be importable.

    Returns:
        The finished run; None when it ran in other processes.

    """
    section = getattr(config, name, None)
    devices = section.devices if section else (0,)
    run: Run | None = run_on(devices, config.device, _train, config, name, folder, on_progress)
    return run


def _train(
    peers: Peers, config: TrainingConfig, name: str, folder: Path,
    on_progress: Callable[[Run], None],
) -> Run:  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    state = read_checkpoint(folder, config.name, name)
    rendered = state["rendered"] if state else 0
    pictures = render_config(config, name, peers)
    with RenderWorkers(render, LABELS, pictures, rendered) as workers:
        pool = PicturePool(workers, peers.device, pictures.pool)
        try:
            job = make_job(config, name, pool, peers.rank)
            run = Run(config, Trained(job, config.ema, peers), folder)
            if state:
                run.restore(state)
            elif start := start_weights(getattr(config, name)):
                run.trained.start_from(start)
            pool.wait_for(pictures.warm_up)
            run.train(lambda: pool.rendered, on_progress)
        finally:
            pool.close()
    if peers.rank == 0:
        save_weights(_kept(config, run), folder / f"{name}.safetensors")
    return run


def _kept(config: TrainingConfig, run: Run) -> dict[str, Tensor]:
    """Average a mask model's weights with those it started from, and steepen it, if so asked."""
    kept = {name: value.cpu() for name, value in run.trained.kept().items()}
    section = config.mask
    if run.trained.job.name != "mask" or not section:
        return kept
    if section.start_share:
        start = start_weights(section)
        if not start:
            raise AutolabelError("start_share needs init_from: there is nothing to average with")
        kept = {k: torch.lerp(v, start[k], section.start_share) for k, v in kept.items()}
    return steeper(kept, section.steeper)


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
