"""More pictures to hold an engine against PyTorch with: rendered scenes, and one's own frames."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sam2_core.checkpoints import PYTORCH
from sam2_core.segmenter import Segmenter
from sam2_core.trust.answers import Answers
from sam2_core.trust.calibration import Calibration, CalibrationImage
from sam2_core.trust.certificate import UncertifiedEngineError
from sam2_core.trust.certify import ensure_certified, judged
from sam2_core.trust.measure import engine_answers
from sam2_core.types import AutolabelError
from tasks.masks.model import ModelChoice, choose_model, load_segmenter

logger = logging.getLogger(__name__)
# Seeds that no training has seen; the size of a usual camera.
FIRST_SEED, SIZE_HW = 90_200_000, (1080, 1920)
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LEAST_SCORE = 0.3
MOST_BOXES = 24


class NoJudgeError(AutolabelError):
    """Nothing here can say what the masks of more pictures should be."""


def more_pictures(frames: Path | None, limit: int, scenes: int) -> list[CalibrationImage]:
    """Return rendered scenes with their true boxes, and frames with those of the bundled detector.

    Args:
        frames: a folder of pictures, or None.
        limit: at most so many of them, spread over the folder.
        scenes: how many to render.

    """
    found = [_scene(FIRST_SEED + number) for number in range(scenes)]
    if frames is None:
        return found
    files = sorted(one for one in frames.rglob("*") if one.suffix.lower() in SUFFIXES)
    every = np.unique(np.linspace(0, len(files) - 1, min(limit, len(files))).round().astype(int))
    return found + [one for i in every if (one := _frame(files[i])) is not None]


def _scene(seed: int) -> CalibrationImage:
    from lab.scenes import render_scene

    scene = render_scene(seed, SIZE_HW)
    boxes = np.array([one.box_xyxy_px for one in scene.instances], np.float32).reshape(-1, 4)
    return CalibrationImage.of(f"scene-{seed}", scene.image, boxes[-MOST_BOXES:])


def _frame(path: Path) -> CalibrationImage | None:
    """Return a frame with detected boxes, None where there are none."""
    from sam2_core.images import open_image
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
    return (
        CalibrationImage.of(path.name, pixels, chosen, path.read_bytes()) if len(chosen) else None
    )


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
        images = [engine_answers(segmenter, one)[0] for one in more]
    return replace(
        recorded, calibration=whole.digest, images=(*recorded.images, *images),
        made_by=f"{recorded.made_by}; scenes and frames: {proof.title}, certified by it",
    )  # fmt: skip
