"""Drives labeled by a model, with the true IoU of each mask: what the risk is fitted on.

Rendered drives are what it learns from, photographs are what its chances are calibrated on, too.
Rendered pictures and their labels are kept below a cache folder, labels by the checksums of what
made them, so that a new model only costs its own inference and a new feature costs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sam2_core.types import AutolabelError, Boxes, FloatArray, Masks
from tasks.dataset.coco_truth import Truth, TruthImage, read_truth, rle_box_xyxy_px
from tasks.risk.geometry import Numbers, box_areas, shared_box_areas
from tasks.store.tables import (
    LabeledFrame,
    decode_table,
    encode_table,
    mask_columns,
    split_by_frame,
    to_boxes,
    to_masks,
)
from tasks.types import FrameFailure, FrameRef

if TYPE_CHECKING:
    from sam2_core.segmenter import Segmenter
    from tasks.boxes.yolox import AnyDetector

# Far from the seeds of training, and from those of the model cards' pictures.
FIRST_SEED = 70_000_000
PHOTOGRAPHS = 80_000_000  # where the numbers of photographs begin
SIZE_HW = (720, 1280)
TRUE_BOXES, DETECTOR = "true boxes", "detector"
PROMPTS = (TRUE_BOXES, DETECTOR)
# Below what `label` takes of the bundled detector: doubtful boxes have risks, too.
_MIN_SCORE = 0.15


@dataclass(frozen=True, eq=False)
class Drive:
    """A labeled drive.

    Attributes:
        seed: of its rendering.
        prompt: one of `PROMPTS`.
        frames: labels in order.
        true_ious: float64 (N,) a frame. With true boxes, against the object that the box is of;
            with a detector's, against the object that the mask fits best (0 if there is none).

    """

    seed: int
    prompt: str
    frames: Sequence[LabeledFrame]
    true_ious: Sequence[Numbers]


@dataclass(frozen=True, eq=False)
class Models:
    """What labels: a segmenter, a detector, and a name for both that changes when they do."""

    segmenter: Segmenter
    detector: AnyDetector
    key: str


def labeled_drives(
    models: Models, cache: Path, seeds: Sequence[int], frames: int
) -> Iterator[tuple[Drive, Drive]]:
    """Label drives, each with the true boxes and with a detector's.

    Args:
        models: what labels.
        cache: folder for pictures and labels.
        seeds: which drives.
        frames: how many frames of each, 0.1 s apart.

    """
    folders = {seed: cache / _renderer() / f"{seed}-{frames}" for seed in seeds}
    missing = [
        (folder, seed, frames)
        for seed, folder in folders.items()
        if not (folder / "truth.json").is_file()
    ]
    if missing:
        with ProcessPoolExecutor() as pool:
            list(pool.map(_render, missing))
    for seed, folder in folders.items():
        truth = read_truth(folder / "truth.json")
        labels = folder / models.key
        if not (labels / f"{DETECTOR}.parquet").is_file():
            _label(models, folder, truth, seed)
        yield _read(labels, truth, seed, TRUE_BOXES), _read(labels, truth, seed, DETECTOR)


def labeled_photographs(models: Models, truth_path: Path, pictures: Path) -> Iterator[Drive]:
    """Label the photographs of a truth that training has not seen (`split` is "val").

    Each is a drive of one frame, twice, as of `labeled_drives`. A detected box is left out if the
    truth may lack its object: most of it is a crowd, or its class is not labeled there.

    Args:
        models: what labels.
        truth_path: COCO instances with `split` and `not_exhaustive_category_ids`.
        pictures: folder of the pictures.

    """
    file = json.loads(truth_path.read_bytes())
    names = {category["id"]: category["name"] for category in file["categories"]}
    held_back = {image["file_name"]: image for image in file["images"] if image["split"] == "val"}
    for image in read_truth(truth_path).images:
        if image.file_name not in held_back:
            continue
        unlabeled = {
            names[number] for number in held_back[image.file_name]["not_exhaustive_category_ids"]
        }
        crowds = [rle_box_xyxy_px(rle, image.size_hw) for rle in image.crowd_rle]
        crowds_px = np.reshape(crowds, (-1, 4)).astype(np.float64)

        def counts(
            box: FloatArray, label: str, around: Any = crowds_px, no: Any = unlabeled
        ) -> bool:
            alone = box[None].astype(np.float64)
            most_in_crowd = shared_box_areas(alone, around) > box_areas(alone) / 2
            return label not in no and not most_in_crowd.any()

        path = str(pictures / image.file_name)
        seed = PHOTOGRAPHS + image.image_id
        ref = FrameRef(f"photograph{seed}", "", 0, None, path, image.size_hw, local_path=path)
        labeled, true = next(_labeled(models, [ref], [image], counts))
        for prompt, rows in _halves(true):
            boxes, masks = _rows(labeled, rows)
            ious = _true_ious(masks, image, by_row=prompt == TRUE_BOXES)
            yield Drive(seed, prompt, [LabeledFrame(ref, boxes, masks)], [ious])


def _renderer() -> str:
    """Name of what renders: the checksum of its code."""
    from lab import scenes

    files = sorted(Path(scenes.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(one.read_bytes() for one in files)).hexdigest()[:12]


def _render(drive: tuple[Path, int, int]) -> None:
    from lab.scenes.drives import write_sequence

    folder, seed, frames = drive
    write_sequence(folder, seed, frames, SIZE_HW)


def _label(models: Models, folder: Path, truth: Truth, seed: int) -> None:
    """Write the labels of a drive: one encoding of each picture for both kinds of boxes."""
    columns: dict[str, list[dict[str, object]]] = {prompt: [] for prompt in PROMPTS}
    for labeled, true in _labeled(models, _frames(folder, truth, seed), truth.images):
        for prompt, rows in _halves(true):
            boxes, masks = _rows(labeled, rows)
            columns[prompt].append(mask_columns(labeled.frame, boxes, masks))
    labels = folder / models.key
    labels.mkdir(exist_ok=True)
    for prompt, parts in columns.items():
        data = encode_table("masks", parts, {"key": prompt})
        (labels / f"{prompt}.parquet").write_bytes(data)


def _labeled(
    models: Models,
    refs: Sequence[FrameRef],
    images: Sequence[TruthImage],
    counts: Callable[[FloatArray, str], bool] | None = None,
) -> Iterator[tuple[LabeledFrame, int]]:
    """Yield frames labeled with true and detected boxes, in that order; and how many are true."""
    from tasks.boxes.detect import detect
    from tasks.evaluate.evaluate import true_boxes
    from tasks.frames.images import read_image
    from tasks.masks.segment import segment_frames

    detected = detect(refs, models.detector, min_score=_MIN_SCORE)
    found = [_kept(detected[i], counts) for i in range(len(refs))]
    true = [true_boxes(image) for image in images]
    both = [(ref, _joined(*pair)) for ref, *pair in zip(refs, true, found, strict=True)]
    labeled = segment_frames(models.segmenter, both, read_image)
    for frame, boxes in zip(labeled, true, strict=True):
        if frame.masks is None:
            raise AutolabelError(f"{frame.frame.uri}: {frame.failure}")
        yield frame, len(boxes)


def _kept(boxes: Boxes | FrameFailure, counts: Callable[[FloatArray, str], bool] | None) -> Boxes:
    if isinstance(boxes, FrameFailure):
        raise AutolabelError(f"{boxes.uri}: {boxes.reason}")
    rows = [i for i, box in enumerate(boxes.xyxy_px) if not counts or counts(box, boxes.labels[i])]
    return Boxes(boxes.xyxy_px[rows], boxes.scores[rows], tuple(boxes.labels[i] for i in rows))


def _halves(true: int) -> Iterator[tuple[str, slice]]:
    return zip(PROMPTS, (slice(true), slice(true, None)), strict=True)


def _joined(first: Boxes, second: Boxes) -> Boxes:
    return Boxes(
        np.concatenate([first.xyxy_px, second.xyxy_px]),
        np.concatenate([first.scores, second.scores]),
        (*first.labels, *second.labels),
    )


def _rows(labeled: LabeledFrame, rows: slice) -> tuple[Boxes, Masks]:
    boxes, masks = labeled.boxes, labeled.masks
    assert masks is not None  # noqa: S101 - the caller looked
    part = Masks(
        masks.rle[rows], masks.size_hw, masks.predicted_iou[rows], masks.stability[rows],
        masks.object_score[rows], masks.area_px[rows], masks.reasons[rows],
    )  # fmt: skip
    return Boxes(boxes.xyxy_px[rows], boxes.scores[rows], boxes.labels[rows]), part


def _frames(folder: Path, truth: Truth, seed: int) -> list[FrameRef]:
    paths = [str(folder / "images" / one.file_name) for one in truth.images]
    return [
        FrameRef(f"drive{seed}", "", index, None, path, one.size_hw, local_path=path)
        for index, (one, path) in enumerate(zip(truth.images, paths, strict=True))
    ]


def _read(labels: Path, truth: Truth, seed: int, prompt: str) -> Drive:
    path = labels / f"{prompt}.parquet"
    table, _ = decode_table(path.read_bytes(), "masks", prompt, str(path))
    by_frame = split_by_frame(table)
    frames, ious = [], []
    for ref, image in zip(_frames(labels.parent, truth, seed), truth.images, strict=True):
        rows = by_frame.get((ref.camera, ref.index), table.slice(0, 0))
        masks = to_masks(rows, image.size_hw)
        frames.append(LabeledFrame(ref, to_boxes(rows, prompt), masks))
        ious.append(_true_ious(masks, image, by_row=prompt == TRUE_BOXES))
    return Drive(seed, prompt, frames, ious)


def _true_ious(masks: Masks, image: TruthImage, *, by_row: bool) -> Numbers:
    from pycocotools import mask as coco_mask

    if not len(masks) or not len(image):
        return np.zeros(len(masks))
    size = list(image.size_hw)
    made, true = ([{"counts": one, "size": size} for one in m.rle] for m in (masks, image))
    iou = np.asarray(coco_mask.iou(made, true, [0] * len(true)))
    return np.asarray(iou.diagonal() if by_row else iou.max(axis=1))
