"""Ground truth: COCO instances json, indexed PNGs, a field of a FiftyOne dataset, the examples.

Folders of indexed PNGs have a number for each object. Known layouts:

    <TRUTH>/<sequence>/00000.png         DAVIS, MOSE; pictures <images>/<sequence>/00000.jpg
                                         (DAVIS 2016: one object, grey and white)
    <TRUTH>/<city>/*_gtFine_instanceIds.png   Cityscapes; <images>/<city>/*_leftImg8bit.png
    <TRUTH>/*.png                        one folder; pictures of the same names
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from sam2_core.types import AutolabelError
from tasks.dataset.coco_truth import Truth, TruthImage, areas_px, load_truth, read_truth

DATASET = "dataset:"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
# Marks pixels that count neither way; in a grey picture of nothing but 0 and 255 it is the object,
# as in DAVIS 2016.
VOID = 255
_CITYSCAPES = "_gtFine_instanceIds.png"
# Cityscapes' classes that have instances; ids are class * 1000 + number, smaller ones are groups.
CITYSCAPES_CLASSES = {
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 29: "caravan", 30: "trailer",
    31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
OBJECT = "object"
# A folder for each drive: `images/`, where the truth is known `truth.json`, and the licence of
# frames that others made. The lab writes them: `lab/examples.py`.
EXAMPLES = Path(__file__).parent / "examples"


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
    from tasks.dataset.layout import sample_collection
    from tasks.dataset.schema import TRUTH_FIELD, open_dataset

    ensure_database()
    dataset = open_dataset(name, ours=False)
    field = field or TRUTH_FIELD
    wanted = {field: 1, "filepath": 1, "metadata": 1, "sequence_id": 1, "camera": 1}
    samples = sample_collection(dataset).find({}, wanted)
    read = (_of_sample(number, sample, field) for number, sample in enumerate(samples))
    images = [one for one in read if one is not None]
    if not any(len(one) for one in images):
        raise AutolabelError(f"no sample of {name} has masks in its field {field}")
    names = dict.fromkeys(label for one in images for label in one.labels)
    return Truth(tuple(images), tuple(names))


def _of_sample(number: int, sample: dict[str, Any], field: str) -> TruthImage | None:
    from tasks.dataset.documents import to_values

    if sample.get(field) is None:
        return None  # nobody looked; an empty field says that nothing is there
    detections = sample[field].get("detections") or []
    size_hw = _size_of(sample)
    rows = [to_values(one, size_hw) for one in detections]
    rles = [str(row["rle"]).encode("ascii") for row in rows]
    kept = np.flatnonzero(areas_px(rles, size_hw)).tolist()
    sequence = "/".join(filter(None, (sample.get("sequence_id"), sample.get("camera"))))
    for i in kept:
        if not str(rows[i]["label"]).strip():
            why = f"label {rows[i].get('id')} has no class"
            return TruthImage.of_masks(number, sample["filepath"], size_hw, unreadable=why)
    ids = [detections[i].get("index") for i in kept]
    known = bool(ids) and all(isinstance(one, int) for one in ids)
    return TruthImage.of_masks(
        number, sample["filepath"], size_hw, [str(rows[i]["label"]) for i in kept],
        [rles[i] for i in kept], sequence=sequence,
        track_ids=np.array(ids, np.int64) if known else None,
    )  # fmt: skip


def _size_of(sample: dict[str, Any]) -> tuple[int, int]:
    metadata = sample.get("metadata") or {}
    if metadata.get("height"):
        return int(metadata["height"]), int(metadata["width"])
    from PIL import Image

    with Image.open(sample["filepath"]) as image:
        return image.height, image.width


def example_truths(folder: Path = EXAMPLES) -> Iterator[tuple[Path, Truth]]:
    """Yield each drive of known truth: its folder of pictures and what is in them."""
    for path in sorted(folder.glob("*/truth.json")):
        yield path.parent / "images", load_truth(path)


def load_png_truth(folder: Path, images: Path, *, first_frames: bool = False) -> Truth:
    """Read a folder of indexed PNGs.

    Args:
        folder: of the PNGs, or of a folder of them for each sequence or city.
        images: where the pictures lie, in the same layout.
        first_frames: only the first of each sequence.

    Raises:
        AutolabelError: there is none, or a file is no indexed PNG. What has no picture is
            `unreadable`.

    """
    files = sorted(folder.rglob(f"*{_CITYSCAPES}")) or sorted(folder.rglob("*.png"))
    files = [one for one in files if not one.name.startswith("._")]  # macOS' notes on files
    if first_frames:
        firsts = {one.parent: one for one in reversed(files)}
        files = [one for one in files if one == firsts[one.parent]]
    if not files:
        raise AutolabelError(f"{folder}: no PNG; give the folder of the annotations")
    found = tuple(_image(number, file, folder, images) for number, file in enumerate(files))
    names = dict.fromkeys(label for one in found for label in (*one.labels, *one.crowd_labels))
    return Truth(found, tuple(names))


def _image(number: int, file: Path, folder: Path, images: Path) -> TruthImage:
    ids = _indices(file)
    city = file.name.endswith(_CITYSCAPES)
    place = file.relative_to(folder).parent
    stem = file.name.removesuffix(_CITYSCAPES) + "_leftImg8bit" if city else file.stem
    candidates = [images / place / f"{stem}{suffix}" for suffix in IMAGE_SUFFIXES]
    picture = next((one for one in candidates if one.is_file()), None)
    if picture is not None and picture.samefile(file):
        raise AutolabelError(
            f"{file}: its picture would be the truth itself; give --images the folder of the "
            "pictures, in the same layout"
        )
    sequence = "" if city or place == Path() else place.as_posix()
    size_hw = (ids.shape[0], ids.shape[1])
    if picture is None:
        return TruthImage.of_masks(
            number, candidates[0].relative_to(images).as_posix(), size_hw, sequence=sequence,
            unreadable=f"its picture {candidates[0]} is not there",
        )  # fmt: skip
    things: dict[int, tuple[str, bytes]] = {}
    crowds: list[tuple[str, bytes]] = []
    for value in np.unique(ids).tolist():
        kind, crowd = _kind(value, cityscapes=city)
        if crowd:
            crowds.append((kind, _rle(ids == value)))
        elif kind:
            things[value] = (kind, _rle(ids == value))
    return TruthImage.of_masks(
        number, picture.relative_to(images).as_posix(), size_hw,
        [kind for kind, _ in things.values()], [mask for _, mask in things.values()],
        crowd_rle=tuple(mask for _, mask in crowds), crowd_labels=tuple(kind for kind, _ in crowds),
        track_ids=np.array([*things], np.int64), sequence=sequence,
    )  # fmt: skip


def _kind(value: int, *, cityscapes: bool) -> tuple[str, bool]:
    """Return what a number stands for, "" for nothing, and whether it counts neither way."""
    if not cityscapes:
        return ("", False) if value == 0 else (OBJECT, value == VOID)
    if value >= 1000:
        return CITYSCAPES_CLASSES.get(value // 1000, ""), False
    return (CITYSCAPES_CLASSES[value], True) if value in CITYSCAPES_CLASSES else ("", False)


def _indices(file: Path) -> npt.NDArray[np.int64]:
    """Read a PNG's numbers: a palette's indices, or grey values of 8 or 16 bits."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            array, mode = np.asarray(image), image.mode
    except (OSError, SyntaxError) as error:
        raise AutolabelError(f"{file}: cannot be read: {error}") from error
    if array.ndim != 2:
        raise AutolabelError(f"{file}: not an indexed PNG: it has {array.ndim} dimensions, not 2")
    ids = array.astype(np.int64)
    return ids // VOID if mode == "L" and not np.isin(ids, (0, VOID), invert=True).any() else ids


def _rle(mask: npt.NDArray[np.bool_]) -> bytes:
    encoded: dict[str, Any] = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return bytes(encoded["counts"])
