"""The training loop: jobs share the device and the pictures; resumable, on a time budget."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lab.training.config import OptimizerName, TrainingConfig
from lab.training.flat import FlatWeights
from lab.training.optimizers import Optimizers
from sam2_core.types import AutolabelError

WARM_UP_SHARE, FINAL_RATE = 0.03, 0.01
CLIP_NORM = 1.0
CURVE_EVERY_S = 5.0


class Job(Protocol):
    """A model with a way to make losses."""

    name: str
    model: nn.Module
    learning_rate: float
    weight_decay: float
    optimizer: OptimizerName

    def step(self, progress: float) -> dict[str, Tensor]:
        """Draw a batch, leave its gradients in the model; return numbers to plot."""
        ...

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take weights over."""
        ...


def learning_rate(peak: float, progress: float) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    if progress < WARM_UP_SHARE:
        return peak * (progress + 1e-3) / WARM_UP_SHARE
    done = (progress - WARM_UP_SHARE) / (1 - WARM_UP_SHARE)
    return peak * (FINAL_RATE + (1 - FINAL_RATE) * (1 + math.cos(math.pi * min(done, 1.0))) / 2)


class Trained:
    """A job with its weights, their moving average, which is what is kept, and the optimizer."""

    def __init__(self, job: Job, decay: float) -> None:
        self.job, self.decay = job, decay
        self.steps, self.seconds = 0, 0.0
        self.weights = FlatWeights(job.model)
        self.optimizer = Optimizers(self.weights, job.weight_decay, job.optimizer)

    def step(self, progress: float) -> dict[str, Tensor]:
        """One update; returns numbers to plot, still on the device: nothing waits for it."""
        numbers = self.job.step(progress)
        gradient = self.weights.gradient()
        for parameter in self.weights.parameters:
            parameter.grad = None
        norm = gradient.norm()
        # A batch whose gradient is not finite must not spoil the weights: it counts as zero.
        scale = (CLIP_NORM / norm.clamp(min=CLIP_NORM)).nan_to_num(0.0)
        gradient = (gradient * scale).nan_to_num(0.0, 0.0, 0.0)
        self.optimizer.step(gradient, learning_rate(self.job.learning_rate, progress))
        self.weights.publish()
        self.steps += 1
        self.weights.follow(min(self.decay, (1 + self.steps) / (10 + self.steps)))
        return {**numbers, "gradient": norm}

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """Take an earlier run's weights over, unrounded where the model computes in less."""
        self.job.load(weights)
        self.weights.fill(self.weights.values, weights)
        self.weights.fill(self.weights.average, weights)

    def kept(self) -> dict[str, Tensor]:
        """Name the averaged weights."""
        return self.weights.state(self.weights.average)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "model": self.weights.state(self.weights.values), "average": self.kept(),
            "optimizer": self.optimizer.state(), "steps": self.steps,
            "seconds": self.seconds,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.job.load(state["model"])
        self.weights.fill(self.weights.values, state["model"])
        self.weights.fill(self.weights.average, state["average"])
        self.optimizer.restore(state["optimizer"])
        self.steps, self.seconds = state["steps"], state["seconds"]


@dataclass
class Run:
    """One job's training in a folder: `checkpoint.pt`, `curves.json`."""

    config: TrainingConfig
    trained: Trained
    folder: Path
    rendered_before: int = 0
    rendered: int = 0
    curves: list[dict[str, Any]] = field(default_factory=list)

    @property
    def progress(self) -> float:
        """Share of the budget that is used up."""
        if self.config.steps:
            return min(1.0, self.trained.steps / self.config.steps)
        return min(1.0, self.trained.seconds / (self.config.minutes * 60))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.trained.restore(state)
        self.rendered_before, self.curves = state["rendered"], json.loads(state["curves"])

    def save(self) -> None:
        """Write checkpoint and curves, whole or not at all."""
        state = {
            "name": self.config.name, "job": self.trained.job.name, **self.trained.state(),
            "curves": json.dumps(self.curves), "rendered": self.rendered_before + self.rendered,
        }  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / "checkpoint.pt.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "checkpoint.pt")
        partial = self.folder / "curves.json.partial"
        partial.write_text(json.dumps(self.curves), encoding="utf-8")
        partial.replace(self.folder / "curves.json")

    def train(self, rendered: Callable[[], int], on_progress: Callable[[Run], object]) -> None:
        """Step until the budget is used up, or a file `stop` appears in the folder.

        Args:
            rendered: how many pictures there have been, for the curves.
            on_progress: called with every point of the curves.

        """
        trained = self.trained
        saved = noted = last = time.monotonic()
        numbers: list[dict[str, Tensor]] = []
        while self.progress < 1.0 and not (self.folder / "stop").exists():
            numbers.append(trained.step(self.progress))
            now = time.monotonic()
            trained.seconds += now - last
            last = now
            if now - noted > CURVE_EVERY_S:
                self._note(numbers, rendered())
                on_progress(self)
                noted, numbers = now, []
            if now - saved > self.config.checkpoint_every_s:
                self.save()
                saved = last = time.monotonic()
        if numbers:
            self._note(numbers, rendered())
            on_progress(self)
        self.save()

    def _note(self, numbers: list[dict[str, Tensor]], rendered: int) -> None:
        self.rendered = rendered
        point: dict[str, Any] = {
            "seconds": round(self.trained.seconds, 1), "progress": round(self.progress, 4),
            "rendered": self.rendered_before + rendered, "steps": self.trained.steps,
        }  # fmt: skip
        for name in dict.fromkeys(name for each in numbers for name in each):
            values = torch.stack([each[name].float() for each in numbers if name in each])
            point[name] = round(float(values.mean()), 5)
        self.curves.append(point)


def read_checkpoint(folder: Path, name: str, job: str) -> dict[str, Any] | None:
    """Return the folder's checkpoint, None where there is none yet."""
    path = folder / "checkpoint.pt"
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if (state["name"], state["job"]) != (name, job):
        raise AutolabelError(
            f"{path} is a checkpoint of {state['name']!r} ({state['job']}); resume it with its "
            "own configuration, or choose another folder"
        )
    return state
