"""Ground truth in folders of indexed PNGs: a number for each object, as DAVIS and MOSE have them.

Layouts that are known, by what lies there:

    <TRUTH>/<sequence>/00000.png         DAVIS, MOSE; pictures <images>/<sequence>/00000.jpg
                                         (DAVIS 2016: one object, grey and white)
    <TRUTH>/<city>/*_gtFine_instanceIds.png   Cityscapes; <images>/<city>/*_leftImg8bit.png
    <TRUTH>/*.png                        one folder; pictures of the same names
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.types import AutolabelError
from tasks.dataset.coco_segmentation import rle_box_xyxy_px
from tasks.dataset.coco_truth import Truth, TruthImage

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
        return _without_picture(number, candidates[0], images, size_hw, sequence)
    labels: list[str] = []
    rles: list[bytes] = []
    tracks: list[int] = []
    crowds: list[tuple[str, bytes]] = []
    for value in np.unique(ids).tolist():
        mask = _rle(ids == value)
        kind, crowd = _kind(value, cityscapes=city)
        if crowd:
            crowds.append((kind, mask))
        elif kind:
            labels.append(kind)
            rles.append(mask)
            tracks.append(value)
    boxes = [rle_box_xyxy_px(one, size_hw) for one in rles]
    return TruthImage(
        number, picture.relative_to(images).as_posix(), size_hw,
        np.array(boxes, np.float32).reshape(-1, 4), tuple(labels), tuple(rles),
        np.array([(ids == value).sum() for value in tracks], np.int64),
        tuple(mask for _, mask in crowds), tuple(kind for kind, _ in crowds),
        track_ids=np.array(tracks, np.int64), sequence=sequence,
    )  # fmt: skip


def _without_picture(
    number: int, picture: Path, images: Path, size_hw: tuple[int, int], sequence: str
) -> TruthImage:
    return TruthImage(
        number, picture.relative_to(images).as_posix(), size_hw, np.zeros((0, 4), np.float32),
        (), (), np.zeros(0, np.int64), sequence=sequence,
        unreadable=f"its picture {picture} is not there",
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
    from pycocotools import mask as coco_mask

    encoded: dict[str, Any] = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return bytes(encoded["counts"])
