"""What engines are held against: pictures, the boxes in them, and what PyTorch says to these.

Two rendered streets come with the package. They are larger than any model's input, so that a wrong
resize shows, and hold objects of every size. PyTorch's answers in float32 are recorded where
PyTorch is, at the export, and lie beside the graphs: so a machine without PyTorch can hold its
engines against PyTorch all the same.

`torch_judge` has PyTorch answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco_mask

from sam2_core.arrays import Arrays
from sam2_core.cache import write_whole
from sam2_core.images import open_image
from sam2_core.types import AutolabelError, Boxes, FloatArray, ImageArray, LowResMasks

_BUNDLED = Path(__file__).parent / "streets"
_SIGNATURE = "sha256"
FORMAT = 1
# Of a mask grid's logits so many rows and columns are kept.
SAMPLES = 16
# Both masks; only the first; only the second.
_BOTH, _FIRST, _SECOND = (70, 200, 90), (235, 70, 60), (70, 120, 240)
_STRENGTH = 0.55
_TILE_PX = 320


@dataclass(frozen=True, eq=False)
class CalibrationImage(Arrays):
    """A picture and its boxes.

    Attributes:
        name: what to call it.
        pixels: uint8 (H, W, 3) RGB.
        boxes_xyxy_px: float32 (N, 4), all valid.
        digest: sha256 of the file and of the boxes.

    """

    forms: ClassVar = {"pixels": "uint8 (H, W, 3)", "boxes_xyxy_px": "float32 (N, 4)"}
    name: str
    pixels: ImageArray
    boxes_xyxy_px: FloatArray
    digest: str

    @staticmethod
    def of(name: str, path: Path, boxes_xyxy_px: npt.ArrayLike) -> CalibrationImage:
        """Read a picture's file."""
        boxes = np.ascontiguousarray(boxes_xyxy_px, np.float32).reshape(-1, 4)
        digest = hashlib.sha256(path.read_bytes() + boxes.tobytes()).hexdigest()
        return CalibrationImage(name, open_image(path), boxes, digest)

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def boxes(self) -> Boxes:
        """The boxes as a segmenter takes them."""
        count = len(self.boxes_xyxy_px)
        labels = ("object",) * count
        return Boxes(self.boxes_xyxy_px, np.ones(count, np.float32), labels, source="calibration")


@dataclass(frozen=True, eq=False)
class Calibration:
    """Pictures in order."""

    images: tuple[CalibrationImage, ...]

    @property
    def digest(self) -> str:
        """What tells this set from any other."""
        return hashlib.sha256("\n".join(image.digest for image in self.images).encode()).hexdigest()

    @property
    def boxes(self) -> int:
        """How many boxes there are."""
        return sum(len(image.boxes_xyxy_px) for image in self.images)


def bundled_calibration() -> Calibration:
    """Return the pictures that come with the package."""
    boxes = json.loads((_BUNDLED / "boxes.json").read_text())
    named = sorted(boxes.items())
    return Calibration(tuple(CalibrationImage.of(n, _BUNDLED / n, rows) for n, rows in named))


def digest_of(values: Mapping[str, Any]) -> str:
    """Return the sha256 of plain values, whatever the order of their names."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def signed_text(values: Mapping[str, Any]) -> str:
    """Return JSON text of the values and their sha256."""
    return json.dumps({**values, _SIGNATURE: digest_of(values)}, indent=1) + "\n"


def read_signed(path: Path) -> dict[str, Any]:
    """Read what `signed_text` made.

    Raises:
        FileNotFoundError: there is no such file.
        AutolabelError: it cannot be read, or its values are not those that were signed.

    """
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        signature = values.pop(_SIGNATURE)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise AutolabelError(
            f"cannot read {path}: {error!r}. Remove it to have it made again"
        ) from error
    if signature != digest_of(values):
        raise AutolabelError(
            f"{path} is not what was signed: it was changed or cut. Remove it to have it made again"
        )
    return values


@dataclass(frozen=True, eq=False)
class ImageAnswers(Arrays):
    """The masks of a picture's N boxes.

    Attributes:
        rle: N COCO compressed run-length strings of the whole picture.
        predicted_iou: float32 (N,).
        logits: float32 (N, K, K), every so many of the low-resolution mask's.

    """

    forms: ClassVar = {
        "rle": "tuple (N)",
        "predicted_iou": "float32 (N)",
        "logits": "float32 (N, K, K)",
    }
    rle: tuple[bytes, ...]
    predicted_iou: FloatArray
    logits: FloatArray


def sampled(logits: Sequence[Any] | npt.NDArray[Any]) -> FloatArray:
    """Return some of the logits of whole grids (N, G, G): float32 (N, 16, 16)."""
    grids = np.stack([np.asarray(grid, np.float32) for grid in logits])
    step = max(grids.shape[-1] // SAMPLES, 1)
    return np.ascontiguousarray(grids[:, step // 2 :: step, step // 2 :: step])


def answers_of(rle: Sequence[bytes], low_res: LowResMasks) -> ImageAnswers:
    """Return an engine's own answers for a picture."""
    scores = np.array(low_res.predicted_iou, np.float32)
    return ImageAnswers(tuple(rle), scores, sampled(low_res.logits))


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model in float32 says to a calibration set.

    Attributes:
        checkpoint_sha256: of its weights.
        close_ups: whether it was given close-ups, or whole frames.
        calibration: digest of the set.
        made_by: in words.
        images: for each picture.

    """

    checkpoint_sha256: str
    close_ups: bool
    calibration: str
    made_by: str
    images: tuple[ImageAnswers, ...]

    def write(self, path: Path) -> None:
        """Write them to a file, signed."""
        images = [
            {
                "rle": [counts.decode("ascii") for counts in image.rle],
                "predicted_iou": [round(float(score), 6) for score in image.predicted_iou],
                "samples": image.logits.shape[-1],
                "logits": base64.b64encode(image.logits.astype("<f4").tobytes()).decode("ascii"),
            }
            for image in self.images
        ]
        write_whole(path, signed_text({"format": FORMAT, **vars(self), "images": images}))
        path.chmod(0o644)  # beside graphs that others may read, too

    @staticmethod
    def read(path: Path) -> Answers:
        """Read a file of `write`.

        Raises:
            FileNotFoundError: there is none.
            AutolabelError: it is damaged, or of another version.

        """
        values = read_signed(path)
        if values.pop("format", None) != FORMAT:
            raise AutolabelError(f"{path} is of another version: export the model again")
        images = []
        for image in values["images"]:
            logits = np.frombuffer(base64.b64decode(image["logits"]), "<f4").astype(np.float32)
            images.append(
                ImageAnswers(
                    tuple(rle.encode("ascii") for rle in image["rle"]),
                    np.array(image["predicted_iou"], np.float32),
                    logits.reshape(-1, image["samples"], image["samples"]),
                )
            )
        return Answers(**{**values, "images": tuple(images)})


# What a memory's answers are called there.
MEMORY_ANSWERS = "reference_memory.json"


def file_name(*, close_ups: bool) -> str:
    """Name of the recorded answers in a model's folder."""
    return "reference_close_up.json" if close_ups else "reference.json"


def write_difference(
    path: Path,
    pixels: ImageArray,
    first: bytes,
    second: bytes,
    box_xyxy_px: npt.NDArray[np.floating],
) -> None:
    """Write a crop around a box, as it is and with both masks: green, red only in the first one.

    Args:
        path: a PNG of two tiles.
        pixels: uint8 (H, W, 3) RGB.
        first: compressed run-length counts of the whole picture, such as an engine's.
        second: the same of the reference's mask; blue where only that is.
        box_xyxy_px: (4,).

    """
    size = [pixels.shape[0], pixels.shape[1]]
    own, true = (coco_mask.decode({"size": size, "counts": rle}) > 0 for rle in (first, second))
    drawn = pixels.astype(np.float32)
    for where, colour in ((own & true, _BOTH), (own & ~true, _FIRST), (true & ~own, _SECOND)):
        drawn[where] = drawn[where] * (1 - _STRENGTH) + np.array(colour) * _STRENGTH
    corners = np.asarray(box_xyxy_px, np.float64).reshape(2, 2)
    half = 1.3 * max(*(corners[1] - corners[0]), 24.0) / 2
    centre = corners.mean(0)
    crop = tuple(np.concatenate([centre - half, centre + half]).round().astype(int).tolist())
    tiles = [
        Image.fromarray(part).crop(crop).resize((_TILE_PX, _TILE_PX), Image.Resampling.BICUBIC)
        for part in (pixels, drawn.astype(np.uint8))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.hstack([np.asarray(tile) for tile in tiles])).save(path)
