"""More pictures to hold an engine against PyTorch with: the examples, and frames of a user."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from sam2_core.checkpoints import PYTORCH
from sam2_core.images import open_image
from sam2_core.segmenter import Segmenter
from sam2_core.trust.calibration import Answers, Calibration, CalibrationImage
from sam2_core.trust.certify import UncertifiedEngineError, engine_answers, ensure_certified, judged
from sam2_core.types import AutolabelError
from tasks.evaluate.truths import example_truths
from tasks.masks.model import ModelChoice, choose_model, load_segmenter

T = TypeVar("T")

logger = logging.getLogger(__name__)
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LEAST_SCORE = 0.3
MOST_BOXES = 24


class NoJudgeError(AutolabelError):
    """Nothing here can say what the masks of more pictures should be."""


def more_pictures(frames: Path | None, limit: int, scenes: int) -> list[CalibrationImage]:
    """Return rendered frames with their true boxes, and frames with those of the bundled detector.

    Args:
        frames: a folder of pictures, or None.
        limit: at most so many of them, spread over the folder.
        scenes: how many of the examples' frames, spread over them all.

    """
    truths = [(images, one) for images, truth in example_truths() for one in truth.images]
    found = []
    for images, image in _spread(truths, scenes):
        path = images / image.file_name
        boxes = image.boxes_xyxy_px[-MOST_BOXES:]
        name = f"{images.parent.name}/{image.file_name}"
        found.append(CalibrationImage.of(name, path, boxes))
    files = (
        sorted(one for one in frames.rglob("*") if one.suffix.lower() in SUFFIXES) if frames else []
    )
    return found + [one for path in _spread(files, limit) if (one := _frame(path)) is not None]


def _spread(every: Sequence[T], count: int) -> list[T]:
    """Return at most `count` of them, from the first to the last."""
    rows = np.linspace(0, len(every) - 1, min(count, len(every))).round().astype(int)
    return [every[row] for row in np.unique(rows)]


def _frame(path: Path) -> CalibrationImage | None:
    """Return a frame with detected boxes, None where there are none."""
    from tasks.boxes.detectors import load_detector

    try:
        pixels = open_image(path)
    except (AutolabelError, OSError, ValueError) as error:
        logger.warning("%s is not among the pictures: %s", path, error)
        return None
    detector = load_detector("compact")
    boxes = detector.detect([detector.letterbox(pixels)], (), LEAST_SCORE)[0]
    sides = boxes.xyxy_px[:, 2:] - boxes.xyxy_px[:, :2]
    chosen = boxes.xyxy_px[(sides > 2).all(1)][:MOST_BOXES]
    return CalibrationImage.of(path.name, path, chosen) if len(chosen) else None


def answers_to(
    choice: ModelChoice,
    segmenter: Segmenter,
    bundled: Calibration,
    recorded: Answers,
    more: Sequence[CalibrationImage],
) -> Answers:
    """Return the reference's answers to the bundled pictures and to more.

    PyTorch judges where it is. Else the float32 graphs on the CPU do, of the same checkpoint and
    certified by PyTorch's recorded answers; they are no judge of themselves.

    Raises:
        NoJudgeError: there is neither.

    """
    whole = bundled.with_more(more)
    try:
        answers = judged(choice.source, segmenter, Calibration(tuple(more)))
    except UncertifiedEngineError:
        return _by_graphs(choice, recorded, more, whole)
    return replace(answers, calibration=whole.digest, images=(*recorded.images, *answers.images))


def _by_graphs(
    choice: ModelChoice, recorded: Answers, more: Sequence[CalibrationImage], whole: Calibration
) -> Answers:
    own = (choice.backend, choice.precision)
    if own == ("onnxruntime-cpu", "fp32") or importlib.util.find_spec("torch") is not None:
        raise NoJudgeError(
            "scenes and frames of your own need a judge, PyTorch with the checkpoint, which is not "
            f"here (for PyTorch: {PYTORCH}); --quick certifies by PyTorch's recorded answers to "
            "the bundled pictures"
        )
    judge = choose_model(choice.source, "onnxruntime-cpu", "fp32", close_ups=recorded.close_ups)
    with load_segmenter(judge) as segmenter:
        proof = ensure_certified(segmenter, judge.source)
        images, _ = engine_answers(segmenter, more)
    return replace(
        recorded, calibration=whole.digest, images=(*recorded.images, *images),
        made_by=f"{recorded.made_by}; scenes and frames: {proof.title}, certified by it",
    )  # fmt: skip
