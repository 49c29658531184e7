"""Labels that exist, of a run or a dataset, found for the pictures of a truth: no model is loaded.

Which picture of the truth a frame is, `tasks.dataset.coco_truth.images_of` tells.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset.coco_truth import Truth, TruthImage, images_of
from tasks.evaluate.evaluate import OBJECT, Picture, Prediction
from tasks.export.run import Choice, Frames, uncertified_runs
from tasks.export.types import ExportFrame, ExportNotes
from tasks.store import storage
from tasks.types import FrameRef

_NAMES_SHOWN = 2
log = logging.getLogger(__name__)


class StoredLabels:
    """The labels of the pictures of a truth.

    Args:
        truth: what there is.
        out_uri: the run's storage.
        run_key: only this run's labels, "" for the newest of each sequence.
        dataset: whose decisions take the place of the labels that they are about, or None.
        pictures: whether the frames' pictures are needed.
        on_frame: called with the number of frames that were read.

    Raises:
        AutolabelError: there are no labels, or none of a picture of the truth.

    """

    def __init__(
        self, truth: Truth, out_uri: str, run_key: str = "", dataset: Any = None, *,
        pictures: bool = False, on_frame: Callable[[int], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._classless = truth.categories == (OBJECT,)
        self._found: dict[int, list[ExportFrame]] = {image.image_id: [] for image in truth.images}
        self._times = Counter(image.file_name for image in truth.images)
        self._images: dict[str, list[int]] = {}  # of the truth, by a frame's address
        notes = ExportNotes()
        frames = Frames(out_uri, Choice(run_key=run_key), dataset, pictures=pictures, notes=notes)
        self.uncertified = uncertified_runs(out_uri, frames.manifests)
        self.run_keys = sorted({manifest.stamp.run_key for manifest in frames.manifests})
        models = {
            manifest.stamp.model.name for manifest in frames.manifests if manifest.stamp.model
        }
        self.model = ", ".join(sorted(models)) or "unknown model"
        self._read = self._find(truth, frames, on_frame)
        if notes.unreadable:
            told = (f"sequence {name}: {why}" for name, why in notes.unreadable.items())
            log.warning("not measured: %s", "; ".join(told))
        if not any(self._found.values()):
            names = ", ".join(image.file_name for image in truth.images[:_NAMES_SHOWN])
            raise AutolabelError(
                f"{storage.redact(out_uri)} has labels of none of the truth's pictures, which are "
                f"named {names}; its frames are {', '.join(self._read)}. File names must agree, "
                "and folders that the truth names must be in the frames' addresses"
            )

    def _find(
        self, truth: Truth, frames: Iterable[ExportFrame], on_frame: Callable[[int], object]
    ) -> list[str]:
        """Find each picture's frames; returns addresses of a few frames."""
        by_name = images_of(truth)
        read = []
        for number, frame in enumerate(frames, 1):
            ref = FrameRef(frame.sequence_id, frame.camera, frame.index, None, frame.uri)
            for image in by_name(ref):
                if image.etag not in {"", frame.moment.etag}:
                    continue  # labels of another version of the picture
                self._found[image.image_id].append(frame)
                self._images.setdefault(frame.uri, []).append(image.image_id)
            if number <= _NAMES_SHOWN:
                read.append(storage.redact(frame.uri))
            on_frame(number)
        return read

    def __call__(self, pictures: Iterable[Picture]) -> Iterator[Prediction]:
        """Yield the labels of pictures, in their order, or why there are none."""
        for image, _ in pictures:
            frames = self._found[image.image_id]
            if self._times[image.file_name] > 1:
                yield ValueError("the truth lists it several times")
                continue
            several = [frame.uri for frame in itertools.islice(frames, _NAMES_SHOWN)]
            if not frames:
                names = f"frames have names such as {self._read[0]}"
                yield ValueError(f"no labels of it as it is now; {names}")
            elif len(frames) > 1:
                yield ValueError(
                    f"several frames fit it: {', '.join(several)}. Have the truth name the folders "
                    "that tell them apart, too"
                )
            elif len(self._images[frames[0].uri]) > 1:
                yield ValueError(f"several images of the truth fit {several[0]}")
            else:
                yield self._labels(frames[0])

    def picture(self, image: TruthImage) -> Path | None:
        """Return the file of a picture that has labels, None where it is gone."""
        return self._found[image.image_id][0].image

    def _labels(self, frame: ExportFrame) -> tuple[Boxes, Masks]:
        rows = frame.instances
        boxes = Boxes(
            np.array([row.box_xyxy_px for row in rows], np.float32).reshape(-1, 4),
            np.array([row.score for row in rows], np.float32),
            tuple(row.label for row in rows),
        )
        if self._classless:
            boxes = replace(boxes, labels=(OBJECT,) * len(boxes))
        nothing = np.zeros(len(rows), np.float32)
        masks = Masks(
            tuple(row.rle for row in rows), frame.size_hw,
            np.array([row.predicted_iou for row in rows], np.float32), nothing, nothing,
            np.array([row.area_px for row in rows], np.int64), ("",) * len(rows),
        )  # fmt: skip
        return boxes, masks
