"""The types that every part of the model shares.

Spaces are part of a name: `_px` is pixels of the original image (x to the right, y down, pixel
centres at +0.5), `_model` is pixels of the model's square input, `_hw` is (height, width).
Row i of everything belongs to prompt i, in the caller's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import Rows
from sam2_core.redaction import one_line, redact

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
ImageArray = npt.NDArray[np.uint8]
# Images resized to the model's square, float32 (S, S, 3): 0..255 and not rounded.
SquareArray = npt.NDArray[np.float32]
# What an encoder takes for an image: uint8 (H, W, 3) of any size, a square, or, of backends that
# stage frames, a `sam2_core.preprocess.View`.
EncoderImage = Any

POINT_PADDING, POINT_NEGATIVE, POINT_POSITIVE, BOX_TOP_LEFT, BOX_BOTTOM_RIGHT = -1, 0, 1, 2, 3


# Names in exported graphs, as docs/MODELS.md describes.
# Raised when a graph's inputs, outputs or meaning change: models on disk are then exported anew.
# 2: the image is float planes; it was uint8 before, rounded to grey levels.
FORMAT_VERSION = 2
# Outputs of the encoder, inputs of every decoder.
FEATURES = ("embedding", "high_res_s0", "high_res_s1")
# The inputs that every prompt has.
PROMPTS = ("points", "labels", "image_index")
# Points of a box prompt: its two corners and one padding point (see `Prompts`).
BOX_POINTS = 3
SCORES = ("predicted_iou", "object_score", "stability")
# What the graphs for close-ups have behind their names.
CLOSE_UP = "_close_up"
# Outputs of a decoder.
DECODED = ("logits", *SCORES)


class AutolabelError(Exception):
    """Something a user can act on: says what was wrong, where, and what to do; never a secret."""

    explains_itself = True  # a log needs no traceback of it

    def __init__(self, *words: object) -> None:
        super().__init__(
            *(one_line(redact(word)) if isinstance(word, str) else word for word in words)
        )


class MachineError(AutolabelError):
    """The machine failed (device, memory, disk), not the frame at hand: never a frame's answer.

    What was being done stays undone and is tried again, by this machine later or by another one.
    `sam2_core.machine_errors` tells such errors from those of a frame.
    """

    explains_itself = False


class ServerAbsentError(MachineError):
    """A server does not answer, or not yet, or no more; another one, or a later one, may."""


class DeviceMemoryError(MachineError):
    """The device has too little memory for this call; a smaller chunk may fit."""


class DeviceLostError(MachineError):
    """The device answers this process no more, whatever is asked: the process must end."""


@dataclass(frozen=True, eq=False)
class Boxes(Rows):
    """N boxes of one image, in original pixels; arrays are copied.

    Attributes:
        xyxy_px: float32 (N, 4), left, top, right, bottom. May be invalid (NaN, inverted, outside):
            validity is judged where masks are made, so that no row is lost on the way.
        scores: float32 (N,), a detector's in [0, 1]; imported ones may be any number, or NaN; 1.0
            where the source gives none.
        labels: N class names.
        track_ids: int64 (N,) or None.
        source: where they come from: a detector's stamp, or the imported file.

    Raises:
        ValueError: an array has another shape, or numbers of another kind.

    """

    forms: ClassVar = {
        "labels": "tuple (N)", "xyxy_px": "float32 (N, 4)", "scores": "float32 (N)",
        "track_ids": "int64 (N)",
    }  # fmt: skip
    by_hand: ClassVar = True

    xyxy_px: FloatArray
    scores: FloatArray
    labels: tuple[str, ...]
    track_ids: IntArray | None = None
    source: str = "manual"

    @staticmethod
    def empty(source: str = "manual") -> Boxes:
        """No boxes."""
        nothing = np.zeros(0, np.float32)
        return Boxes(nothing.reshape(0, 4), nothing, (), None, source)


@dataclass(frozen=True, eq=False)
class Masks(Rows):
    """N instance masks of one image; row i belongs to box i, rejected ones included.

    Attributes:
        rle: N COCO compressed run-length strings (the `counts`), each of the whole image.
        size_hw: (height, width) of the image.
        predicted_iou: float32 (N,), the model's own estimate; 0 where rejected.
        stability: float32 (N,), IoU of the mask thresholded at +1 and -1 (Segment Anything).
        object_score: float32 (N,), logit that there is an object at all.
        area_px: int64 (N,).
        reasons: N reasons why a mask is empty or was rejected, "" for a good one.

    Raises:
        ValueError: an array has another shape, or numbers of another kind.

    """

    forms: ClassVar = {
        "rle": "tuple (N)", "predicted_iou": "float32 (N)", "stability": "float32 (N)",
        "object_score": "float32 (N)", "area_px": "int64 (N)", "reasons": "tuple (N)",
    }  # fmt: skip
    by_hand: ClassVar = True

    rle: tuple[bytes, ...]
    size_hw: tuple[int, int]
    predicted_iou: FloatArray
    stability: FloatArray
    object_score: FloatArray
    area_px: IntArray
    reasons: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Masks({len(self)} of {self.size_hw[1]}x{self.size_hw[0]} px)"

    def to_array(self, row: int) -> npt.NDArray[np.bool_]:
        """Pixels of one mask: bool (H, W)."""
        from sam2_core.mask_geometry import mask_of

        return np.asarray(mask_of(self.rle[row], self.size_hw).to_array(), np.bool_)

    def polygons(self) -> list[list[npt.NDArray[np.float64]]]:
        """Outlines of every mask: float64 (K, 2) x, y in pixels for each of its parts.

        Holes are joined to their part by a cut; a pixel's centre is at +0.5.
        """
        from sam2_core.mask_geometry import mask_of, polygons

        return [polygons(mask_of(counts, self.size_hw)) for counts in self.rle]


@dataclass(frozen=True)
class ModelStamp:
    """What made a mask: on every label."""

    name: str
    checkpoint_sha256: str
    engine_sha256: str
    backend: str
    precision: str
    code_version: str


@dataclass(frozen=True, eq=False)
class Prompts(Rows):
    """P prompts over the B images of one `Features`.

    Attributes:
        points_model: float32 (P, K, 2) x, y in model pixels, before the +0.5 shift.
        labels: int32 (P, K): 1 positive, 0 negative, 2 and 3 a box's corners, -1 padding.
            A box is (2, 3, -1): the padding point is part of the published model.
        image_index: int64 (P,), which image of the features each prompt belongs to.
        mask_logits: float32 (P, G, G) low-resolution logits to refine, G = input size / 4, or None.

    """

    forms: ClassVar = {
        "points_model": "float32 (P, K, 2)", "labels": "int32 (P, K)", "image_index": "int64 (P)",
        "mask_logits": "float32 (P, G, G)",
    }  # fmt: skip

    points_model: FloatArray
    labels: npt.NDArray[np.int32]
    image_index: IntArray
    mask_logits: FloatArray | None = None

    def first_points(self, count: int) -> Prompts:
        """Return the prompts without what is behind their first points."""
        points, labels = self.points_model[:, :count], self.labels[:, :count]
        return replace(self, points_model=points, labels=labels)


@dataclass(frozen=True, eq=False)
class Features:
    """Encoded images; what `data` is belongs to the backend and stays on its device."""

    data: Any
    batch: int


@dataclass(frozen=True, eq=False)
class LowResMasks(Rows):
    """Decoder output for P prompts.

    Attributes:
        logits: float32 or float16 (P, G, G), G = input size / 4.
        predicted_iou, object_score, stability: float32 (P,).

    """

    forms: ClassVar = {
        "logits": "float (P, G, G)", "predicted_iou": "float32 (P)", "object_score": "float32 (P)",
        "stability": "float32 (P)",
    }  # fmt: skip

    logits: FloatArray
    predicted_iou: FloatArray
    object_score: FloatArray
    stability: FloatArray

    @classmethod
    def joined(cls, parts: Sequence[LowResMasks]) -> LowResMasks:
        """Put parts one behind the other; of none, there are no masks of any grid."""
        nothing = np.zeros(0, np.float32)
        return super().joined(parts or [cls(nothing.reshape(0, 0, 0), nothing, nothing, nothing)])
