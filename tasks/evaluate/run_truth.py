"""The labels of a run as ground truth: what another run, or another engine, makes otherwise."""

import logging
from typing import Any

import numpy as np

from tasks.dataset.coco_truth import Truth, TruthImage
from tasks.export.run import Choice, Frames, run_named
from tasks.export.types import ExportFrame, ExportNotes

SCHEME = "run:"
log = logging.getLogger(__name__)


def read_run_truth(run: str, *, pictures: bool) -> Truth:
    """Read the labels of a run.

    Args:
        run: its storage, or `OUT#RUN_KEY`; without a key the newest labels of each sequence.
        pictures: whether the pictures are needed; a frame without one is then `unreadable`.

    Raises:
        AutolabelError: there are no labels.

    """
    out_uri, run_key = run_named(run)
    notes = ExportNotes()
    frames = Frames(out_uri, Choice(run_key=run_key), None, pictures=pictures, notes=notes)
    images = tuple(_image(number, frame, pictures) for number, frame in enumerate(frames))
    for name, why in notes.unreadable.items():
        log.warning("not in the truth: sequence %s: %s", name, why)
    names = dict.fromkeys(label for image in images for label in image.labels)
    return Truth(images, tuple(names))


def _image(number: int, frame: ExportFrame, pictures: bool) -> TruthImage:
    instances, name = frame.instances, str(frame.image or frame.uri)
    known: dict[str, Any] = {
        "sequence": frame.sequence_id, "uri": frame.uri, "etag": frame.moment.etag
    }  # fmt: skip
    if pictures and frame.image is None:
        why = "its picture cannot be had"
        return TruthImage.of_masks(number, name, frame.size_hw, unreadable=why, **known)
    boxes = np.array([instance.box_xyxy_px for instance in instances], np.float32)
    return TruthImage.of_masks(
        number, name, frame.size_hw,
        [instance.label for instance in instances], [instance.rle for instance in instances],
        boxes_xyxy_px=boxes.reshape(-1, 4), **known,
    )  # fmt: skip
