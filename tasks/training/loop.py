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

from sam2_core.types import AutolabelError
from tasks.training.config import TrainingConfig

WARM_UP_SHARE, FINAL_RATE = 0.03, 0.01
CLIP_NORM = 1.0
CURVE_EVERY_S = 5.0


class Job(Protocol):
    """A model with a way to make losses."""

    name: str
    model: nn.Module
    learning_rate: float
    weight_decay: float

    def step(self, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw a batch; return its loss and numbers to plot."""
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


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Decay matrices and kernels; leave norms, biases, embeddings and tokens alone."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        embedding = "embed" in name or "token" in name
        (plain if parameter.ndim < 2 or embedding else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


class Trained:
    """A job with its optimizer and the moving average of its weights, which is what is kept."""

    def __init__(self, job: Job, decay: float) -> None:
        self.job, self.decay = job, decay
        self.steps, self.seconds = 0, 0.0
        groups = parameter_groups(job.model, job.weight_decay)
        fused = next(job.model.parameters()).is_cuda
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=fused)
        self.average = {k: v.detach().clone() for k, v in job.model.state_dict().items()}

    def step(self, progress: float) -> dict[str, Tensor]:
        """One update; returns numbers to plot, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.job.learning_rate, progress)
        loss, numbers = self.job.step(progress)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.job.model.parameters(), CLIP_NORM)
        # A batch whose gradient is not finite must not spoil the weights.
        if bool(torch.isfinite(norm)):
            self.optimizer.step()
        self.steps += 1
        self._follow()
        return {**numbers, "gradient": norm}

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        state = self.job.model.state_dict()
        floats = [k for k, v in state.items() if v.is_floating_point()]
        torch._foreach_lerp_(
            [self.average[k] for k in floats], [state[k] for k in floats], 1 - decay
        )
        for key in state.keys() - floats:
            self.average[key].copy_(state[key])

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "model": self.job.model.state_dict(), "average": self.average,
            "optimizer": self.optimizer.state_dict(), "steps": self.steps,
            "seconds": self.seconds,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.job.load(state["model"])
        for key, value in state["average"].items():
            self.average[key].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
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
        share = self.config.detector.minutes_share if self.config.detector else 1.0
        minutes = self.config.minutes * (share if self.trained.job.name == "detector" else 1.0)
        return min(1.0, self.trained.seconds / (minutes * 60))

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

    def train(self, rendered: Callable[[], int], on_progress: Callable[[Run], None]) -> None:
        """Step until the budget is used up, or a file `stop` appears in the folder.

        Args:
            rendered: how many pictures there have been, for the curves.
            on_progress: called with every point of the curves.

        """
        saved = noted = last = time.monotonic()
        numbers: dict[str, list[Tensor]] = {}
        while self.progress < 1.0 and not (self.folder / "stop").exists():
            for name, value in self.trained.step(self.progress).items():
                numbers.setdefault(name, []).append(value)
            now = time.monotonic()
            self.trained.seconds += now - last
            last = now
            if now - noted > CURVE_EVERY_S or self.progress >= 1.0:
                self.rendered = rendered()
                self._note(numbers)
                on_progress(self)
                noted, numbers = now, {}
            if now - saved > self.config.checkpoint_every_s:
                self.save()
                saved = last = time.monotonic()
        self.save()

    def _note(self, numbers: dict[str, list[Tensor]]) -> None:
        point: dict[str, Any] = {
            "seconds": round(self.trained.seconds, 1), "progress": round(self.progress, 4),
            "rendered": self.rendered_before + self.rendered, "steps": self.trained.steps,
        }  # fmt: skip
        for name, values in numbers.items():
            point[name] = round(float(torch.stack([v.float() for v in values]).mean()), 5)
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
