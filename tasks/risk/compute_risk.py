"""How likely a label is wrong, and why: a score in [0, 1] and reasons with stable ids.

The score is a logistic model of the features in `tasks.risk.features`, fitted on rendered scenes
where the truth is known to predict that a mask's IoU with it is under 0.75, and calibrated on
others (`tasks.risk.calibration`). Reasons are plain thresholds on single features, so that a person
sees at once what to look for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.types import FloatArray
from tasks.risk.calibration import Calibration, Recalibration, sigmoid
from tasks.risk.features import COLUMN, FEATURES, measure_frames
from tasks.risk.geometry import Numbers
from tasks.store.tables import LabeledFrame

WEIGHTS_PATH = Path(__file__).with_name("weights.json")
BAD_IOU = 0.75
# Reason id -> the feature's value from which on it is given. The ids are part of the interface:
# views, exports and decisions name them.
REASONS: Mapping[str, float] = {
    "empty": 0.5, "low_predicted_iou": 0.25, "unstable": 0.15, "low_object_score": 0.5,
    "low_score": 0.6, "spill": 0.15, "underfill": 0.25, "overfill": 0.1, "fragmented": 0.1,
    "ragged": 0.1, "box_mismatch": 0.3, "overlap": 0.5, "duplicate": 0.5, "tiny": 0.5,
    "truncated": 0.5, "flicker": 0.15, "lonely": 0.5, "class_change": 0.5, "unusual_size": 0.25,
    "shape_change": 0.35,
}  # fmt: skip
_REASON_NAMES = tuple(REASONS)
_REASON_COLUMNS = [COLUMN[name] for name in REASONS]
_REASON_LIMITS = np.array(list(REASONS.values()))
DESCRIPTIONS: Mapping[str, str] = {
    "empty": "the mask is empty",
    "low_predicted_iou": "the model itself expects a poor mask",
    "unstable": "the mask changes with the threshold",
    "low_object_score": "the model doubts that an object is there",
    "low_score": "the detector was unsure",
    "spill": "the mask spills out of its box",
    "underfill": "the mask fills little of its box",
    "overfill": "the mask fills its whole box",
    "fragmented": "the mask is in pieces",
    "ragged": "the mask has holes or a torn edge",
    "box_mismatch": "mask and box are not about the same thing",
    "overlap": "the mask covers another one",
    "duplicate": "another box is nearly the same",
    "tiny": "few pixels",
    "truncated": "cut by the image's border",
    "flicker": "the mask differs from the frames before and after",
    "lonely": "absent from the frames before and after",
    "class_change": "another class in the frames before and after",
    "unusual_size": "unusual size for its class at this place",
    "shape_change": "the box jumps relative to the frames before and after",
}


@dataclass(frozen=True, eq=False)
class Judgement:
    """Risk of the N instances of a frame, and why.

    Attributes:
        risk: float32 (N,) in [0, 1].
        reasons: N tuples of reason ids, strongest first.

    """

    risk: FloatArray
    reasons: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        freeze_arrays(self, risk="float32 (N)", reasons="tuple (N)")


@dataclass(frozen=True)
class RiskModel:
    """A logistic model: odds = offset + weights . features, no weight below zero; calibrated."""

    weights: tuple[float, ...]
    offset: float
    fitted_on: str = ""
    calibration: Calibration | None = None

    def odds(self, features: Numbers) -> Numbers:
        """Return the log-odds of N instances before calibration: float64 (N,)."""
        return np.asarray(features @ np.array(self.weights) + self.offset)

    def risk(self, features: Numbers) -> FloatArray:
        """Return the risk of N instances: float32 (N,) in [0, 1]."""
        odds = self.odds(features)
        risk = self.calibration.of(odds) if self.calibration else sigmoid(odds.clip(-30, 30))
        return risk.astype(np.float32)


@cache
def risk_model() -> RiskModel:
    """Read the fitted weights that are shipped with the package."""
    values = json.loads(WEIGHTS_PATH.read_text())
    if tuple(values["features"]) != FEATURES:
        raise ValueError(f"{WEIGHTS_PATH} was fitted on other features: run python -m lab.risk_fit")
    knots = values["calibration"]
    return RiskModel(
        tuple(values["weights"]), values["offset"], values["fitted_on"],
        Calibration(tuple(knots["odds"]), tuple(knots["risk"])),
    )  # fmt: skip


def compute_risk(
    frames: Sequence[LabeledFrame],
    before: Sequence[LabeledFrame] = (),
    after: Sequence[LabeledFrame] = (),
) -> list[Judgement]:
    """Judge the instances of successive frames of one camera.

    Args:
        frames: in order.
        before: what comes before them, if anything; the last one counts.
        after: what comes after them; the first one counts.

    """
    model = risk_model()
    return [judge(model, values) for values in measure_frames(frames, before, after)]


def compute_risk_of_parts(
    parts: Iterable[list[LabeledFrame]],
) -> Iterator[tuple[list[LabeledFrame], list[Judgement]]]:
    """Judge a camera's chunks one after another, each with the frames before and after it."""
    before: list[LabeledFrame] = []
    for current, after in pairwise(chain(parts, [[]])):
        yield current, compute_risk(current, before, after)
        before = current


def recalibrated(judgement: Judgement, recalibration: Recalibration) -> Judgement:
    """Judge as a dataset's own decisions say."""
    return replace(judgement, risk=recalibration.of(judgement.risk).astype(np.float32))


def judge(model: RiskModel, features: Numbers) -> Judgement:
    """Turn the features of a frame's instances into risk and reasons."""
    excess = features[:, _REASON_COLUMNS] / _REASON_LIMITS
    row, column = np.nonzero(excess >= 1)
    order = np.lexsort((-excess[row, column], row))
    names = [_REASON_NAMES[one] for one in column[order].tolist()]
    ends = np.bincount(row, minlength=len(features)).cumsum().tolist()
    reasons = tuple(tuple(names[a:b]) for a, b in zip([0, *ends], ends, strict=False))
    return Judgement(model.risk(features), reasons)


def sequence_risk(frame_risks: Numbers) -> float:
    """Risk of a sequence: the mean of its riskiest tenth of frames, which a lone one cannot set."""
    if not len(frame_risks):
        return 0.0
    worst = np.sort(frame_risks)[::-1][: max(1, len(frame_risks) // 10)]
    return float(worst.mean())
