"""How likely a label is wrong, and why: a score in [0, 1] and reasons with stable ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sam2_core.types import FloatArray
from tasks.load_documents import Judgement
from tasks.tables import LabeledFrame


def judge_frames(
    frames: Sequence[LabeledFrame],
    before: Sequence[LabeledFrame] = (),
    after: Sequence[LabeledFrame] = (),
) -> list[Judgement]:
    """Judge the instances of successive frames of one camera."""
    return [_judge(frame) for frame in frames]


def _judge(frame: LabeledFrame) -> Judgement:
    if frame.masks is None:
        return Judgement(np.zeros(0, np.float32), [])
    risk = 1 - np.minimum(frame.masks.predicted_iou, frame.masks.stability).clip(0, 1)
    reasons = [("low_predicted_iou",) if iou < 0.75 else () for iou in frame.masks.predicted_iou]
    return Judgement(risk.astype(np.float32), reasons)


def frame_risk(risk: FloatArray, reasons: Sequence[tuple[str, ...]]) -> tuple[float, list[str]]:
    """Risk of a frame: that of its riskiest instance, and every reason that occurs."""
    return float(risk.max(initial=0.0)), sorted({reason for one in reasons for reason in one})
