"""Ground truth of any kind: COCO instances json, indexed PNGs, a field of a FiftyOne dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.types import AutolabelError
from tasks.dataset.coco_segmentation import rle_box_xyxy_px
from tasks.dataset.coco_truth import Truth, TruthImage, read_truth
from tasks.evaluate.png_truth import load_png_truth

DATASET = "dataset:"


def open_truth(given: str, images: Path | None, *, first_frames: bool = False) -> Truth:
    """Read ground truth.

    Args:
        given: a COCO instances json, a folder of indexed PNGs, or `dataset:NAME[.FIELD]`.
        images: where the pictures lie; not needed for a dataset.
        first_frames: only the first frame of each sequence.

    Raises:
        AutolabelError: there is no such truth, or it cannot be read.

    """
    if given.startswith(DATASET):
        name, _, field = given.removeprefix(DATASET).partition(".")
        return first_of_each(_of_dataset(name, field)) if first_frames else _of_dataset(name, field)
    if "://" in given:
        raise AutolabelError(f"{given}: the truth is read from this machine; fetch it first")
    if images is None:
        raise AutolabelError("give the folder of the truth's pictures with --images")
    if Path(given).is_dir():
        return load_png_truth(Path(given), images, first_frames=first_frames)
    if first_frames:
        raise AutolabelError("--first-frames: a COCO json says of no picture which sequence it is")
    return read_truth(given)


def first_of_each(truth: Truth) -> Truth:
    """Keep the first frame of each sequence; pictures of no sequence stay."""
    seen: set[str] = set()
    kept = []
    for image in sorted(truth.images, key=lambda one: one.file_name):
        if not image.sequence or image.sequence not in seen:
            kept.append(image)
        seen.add(image.sequence)
    return Truth(tuple(kept), truth.categories)


def _of_dataset(name: str, field: str) -> Truth:
    from tasks.dataset.database import ensure_database
    from tasks.dataset.schema import TRUTH_FIELD, open_dataset, sample_collection

    ensure_database()
    dataset = open_dataset(name, own=False)
    field = field or TRUTH_FIELD
    wanted = {field: 1, "filepath": 1, "metadata": 1, "sequence_id": 1, "camera": 1}
    samples = sample_collection(dataset).find({}, wanted)
    read = (_image(number, sample, field) for number, sample in enumerate(samples))
    images = [one for one in read if one is not None]
    if not any(len(one) for one in images):
        raise AutolabelError(f"no sample of {name} has masks in its field {field}")
    names = dict.fromkeys(label for one in images for label in one.labels)
    return Truth(tuple(images), tuple(names))


def _image(number: int, sample: dict[str, Any], field: str) -> TruthImage | None:
    from tasks.dataset.reviewed_instances import to_values

    if sample.get(field) is None:
        return None  # nobody looked; an empty field says that nothing is there
    detections = sample[field].get("detections") or []
    size_hw = _size_of(sample)
    rows = [to_values(one, size_hw) for one in detections]
    rles = tuple(str(row["rle"]).encode("ascii") for row in rows)
    from pycocotools import mask as coco_mask

    areas = [int(coco_mask.area({"counts": one, "size": list(size_hw)})) for one in rles]
    kept = [i for i, area in enumerate(areas) if area]
    ids = [detections[i].get("index") for i in kept]
    unnamed = [str(rows[i].get("id")) for i in kept if not str(rows[i]["label"]).strip()]
    if unnamed:
        return TruthImage(
            number, sample["filepath"], size_hw, np.zeros((0, 4), np.float32), (), (),
            np.zeros(0, np.int64), unreadable=f"label {unnamed[0]} has no class",
        )  # fmt: skip
    known = bool(ids) and all(isinstance(one, int) for one in ids)
    sequence = "/".join(filter(None, (sample.get("sequence_id"), sample.get("camera"))))
    return TruthImage(
        number, sample["filepath"], size_hw,
        np.array([rle_box_xyxy_px(rles[i], size_hw) for i in kept], np.float32).reshape(-1, 4),
        tuple(str(rows[i]["label"]) for i in kept), tuple(rles[i] for i in kept),
        np.array([areas[i] for i in kept], np.int64), sequence=sequence,
        track_ids=np.array(ids, np.int64) if known else None,
    )  # fmt: skip


def _size_of(sample: dict[str, Any]) -> tuple[int, int]:
    metadata = sample.get("metadata") or {}
    if metadata.get("height"):
        return int(metadata["height"]), int(metadata["width"])
    from PIL import Image

    with Image.open(sample["filepath"]) as image:
        return image.height, image.width
