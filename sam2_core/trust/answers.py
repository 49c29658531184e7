"""What PyTorch in float32 says to the calibration pictures: what every engine is held against.

These answers are recorded where PyTorch is, at the export, and lie beside the graphs. So a machine
without PyTorch can hold its engines against PyTorch all the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.cache import write_whole
from sam2_core.types import AutolabelError, FloatArray, LowResMasks

_SIGNATURE = "sha256"


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
        values = json.loads(path.read_text(encoding="utf-8"))
        signature = values.pop(_SIGNATURE)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise AutolabelError(
            f"cannot read {path}: {error!r}. Remove it to have it made again"
        ) from (error)
    if signature != digest_of(values):
        raise AutolabelError(
            f"{path} is not what was signed: it was changed or cut. Remove it to have it made again"
        )
    return dict(values)


FORMAT = 1
# Of a mask grid's logits so many rows and columns are kept.
SAMPLES = 16


@dataclass(frozen=True, eq=False)
class ImageAnswers:
    """The masks of a picture's N boxes.

    Attributes:
        rle: N COCO compressed run-length strings of the whole picture.
        predicted_iou: float32 (N,).
        logits: float32 (N, K, K), every so many of the low-resolution mask's.

    """

    rle: tuple[bytes, ...]
    predicted_iou: FloatArray
    logits: FloatArray

    def __post_init__(self) -> None:
        freeze_arrays(
            self, rle="tuple (N)", predicted_iou="float32 (N)", logits="float32 (N, K, K)"
        )


def sampled(logits: Sequence[Any] | npt.NDArray[Any]) -> FloatArray:
    """Return some of the logits of whole grids (N, G, G): float32 (N, 16, 16)."""
    grids = np.stack([np.asarray(one, np.float32) for one in logits])
    step = max(grids.shape[-1] // SAMPLES, 1)
    found: FloatArray = np.ascontiguousarray(grids[:, step // 2 :: step, step // 2 :: step])
    return found


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
                "rle": [one.decode("ascii") for one in image.rle],
                "predicted_iou": [round(float(score), 6) for score in image.predicted_iou],
                "samples": image.logits.shape[-1],
                "logits": base64.b64encode(image.logits.astype("<f4").tobytes()).decode("ascii"),
            }
            for image in self.images
        ]
        values = {
            "format": FORMAT, "checkpoint_sha256": self.checkpoint_sha256,
            "close_ups": self.close_ups, "calibration": self.calibration,
            "made_by": self.made_by, "images": images,
        }  # fmt: skip
        write_whole(path, signed_text(values))
        path.chmod(0o644)  # beside graphs that others may read, too

    @staticmethod
    def read(path: Path) -> Answers:
        """Read a file of `write`.

        Raises:
            FileNotFoundError: there is none.
            AutolabelError: it is damaged, or of another version.

        """
        values = read_signed(path)
        if values.get("format") != FORMAT:
            raise AutolabelError(f"{path} is of another version: export the model again")
        return Answers(
            values["checkpoint_sha256"], values["close_ups"], values["calibration"],
            values["made_by"], tuple(map(_image, values["images"])),
        )  # fmt: skip


def _image(values: dict[str, Any]) -> ImageAnswers:
    side, count = values["samples"], len(values["rle"])
    logits = np.frombuffer(base64.b64decode(values["logits"]), "<f4").astype(np.float32)
    return ImageAnswers(
        tuple(one.encode("ascii") for one in values["rle"]),
        np.array(values["predicted_iou"], np.float32),
        logits.reshape(count, side, side),
    )


def file_name(*, close_ups: bool) -> str:
    """Name of the recorded answers in a model's folder."""
    return "reference_close_up.json" if close_ups else "reference.json"
