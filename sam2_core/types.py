"""The types that every part of the model shares.

Spaces are part of a name: `_px` is pixels of the original image (x to the right, y down, pixel
centres at +0.5), `_model` is pixels of the model's square input, `_hw` is (height, width).
Row i of everything belongs to prompt i, in the caller's order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sam2_core.redaction import redact

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
ImageArray = npt.NDArray[np.uint8]
# Images resized to the model's square, float32 (S, S, 3): 0..255 and not rounded.
SquareArray = npt.NDArray[np.float32]
# What an encoder takes for an image: uint8 (H, W, 3) of any size, a square, or, of backends that
# stage frames, a `sam2_core.views.View`.
EncoderImage = Any

POINT_PADDING, POINT_NEGATIVE, POINT_POSITIVE, BOX_TOP_LEFT, BOX_BOTTOM_RIGHT = -1, 0, 1, 2, 3


class AutolabelError(Exception):
    """Something a user can act on: says what was wrong, where, and what to do; never a secret."""

    def __init__(self, *words: object) -> None:
        super().__init__(*(redact(word) if isinstance(word, str) else word for word in words))


class MachineError(AutolabelError):
    """The machine failed (device, memory, disk), not the frame at hand: never a frame's answer.

    What was being done stays undone and is tried again, by this machine later or by another one.
    `sam2_core.machine_errors` tells such errors from those of a frame.
    """


class DeviceMemoryError(MachineError):
    """The device has too little memory for this call; a smaller chunk may fit."""


class DeviceLostError(MachineError):
    """The device answers this process no more, whatever is asked: the process must end."""


def _read_only(array: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    result = np.array(array, dtype=dtype)
    result.flags.writeable = False
    return result


@dataclass(frozen=True, eq=False)
class Boxes:
    """N boxes of one image, in original pixels.

    Attributes:
        xyxy_px: float32 (N, 4), left, top, right, bottom. May be invalid (NaN, inverted, outside):
            validity is judged where masks are made, so that no row is lost on the way.
        scores: float32 (N,) in [0, 1]; 1.0 where the source gives none.
        labels: N class names.
        track_ids: int64 (N,) or None.
        source: where they come from: a detector's stamp, or the imported file.

    """

    xyxy_px: FloatArray
    scores: FloatArray
    labels: tuple[str, ...]
    track_ids: IntArray | None = None
    source: str = "manual"

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "xyxy_px", _read_only(self.xyxy_px, np.float32).reshape(-1, 4))
        set_(self, "scores", _read_only(self.scores, np.float32).reshape(-1))
        set_(self, "labels", tuple(self.labels))
        if self.track_ids is not None:
            set_(self, "track_ids", _read_only(self.track_ids, np.int64).reshape(-1))
        rows = {len(self.xyxy_px), len(self.scores), len(self.labels)}
        rows |= set() if self.track_ids is None else {len(self.track_ids)}
        if len(rows) != 1:
            raise ValueError(
                f"boxes, scores, labels and track ids differ in length: {sorted(rows)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def empty(source: str = "manual") -> Boxes:
        """No boxes."""
        nothing = np.zeros(0, np.float32)
        return Boxes(nothing.reshape(0, 4), nothing, (), None, source)


@dataclass(frozen=True, eq=False)
class Masks:
    """N instance masks of one image; row i belongs to box i, rejected ones included.

    Attributes:
        rle: N COCO compressed run-length strings (the `counts`), each of the whole image.
        size_hw: (height, width) of the image.
        predicted_iou: float32 (N,), the model's own estimate; 0 where rejected.
        stability: float32 (N,), IoU of the mask thresholded at +1 and -1 (Segment Anything).
        object_score: float32 (N,), logit that there is an object at all.
        area_px: int64 (N,).
        reasons: N reasons why a mask is empty or was rejected, "" for a good one.

    """

    rle: tuple[bytes, ...]
    size_hw: tuple[int, int]
    predicted_iou: FloatArray
    stability: FloatArray
    object_score: FloatArray
    area_px: IntArray
    reasons: tuple[str, ...]

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for name in ("predicted_iou", "stability", "object_score"):
            set_(self, name, _read_only(getattr(self, name), np.float32).reshape(-1))
        set_(self, "area_px", _read_only(self.area_px, np.int64).reshape(-1))
        rows = {
            len(self.rle), len(self.predicted_iou), len(self.stability), len(self.object_score),
            len(self.area_px), len(self.reasons),
        }  # fmt: skip
        if len(rows) != 1:
            raise ValueError(f"mask columns differ in length: {sorted(rows)}")

    def __len__(self) -> int:
        return len(self.rle)

    def to_array(self, row: int) -> npt.NDArray[np.bool_]:
        """Pixels of one mask: bool (H, W)."""
        from pycocotools import mask as coco_mask

        run_lengths = {"size": list(self.size_hw), "counts": self.rle[row]}
        return np.asarray(coco_mask.decode(run_lengths), np.bool_)

    def polygons(self) -> list[list[npt.NDArray[np.float64]]]:
        """Outlines of every mask: float64 (K, 2) x, y in pixels for each of its parts.

        Holes are joined to their part by a cut; a pixel's centre is at +0.5.
        """
        from sam2_core.polygons import polygons

        return [polygons(self.to_array(row).astype(np.uint8)) for row in range(len(self))]


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
class Prompts:
    """P prompts over the B images of one `Features`.

    Attributes:
        points_model: float32 (P, K, 2) x, y in model pixels, before the +0.5 shift.
        labels: int32 (P, K): 1 positive, 0 negative, 2 and 3 a box's corners, -1 padding.
            A box is (2, 3, -1): the padding point is part of the published model.
        image_index: int64 (P,), which image of the features each prompt belongs to.
        mask_logits: float32 (P, G, G) low-resolution logits to refine, G = input size / 4, or None.

    """

    points_model: FloatArray
    labels: npt.NDArray[np.int32]
    image_index: IntArray
    mask_logits: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Features:
    """Encoded images; what `data` is belongs to the backend and stays on its device."""

    data: Any
    batch: int
    sizes_hw: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class LowResMasks:
    """Decoder output for P prompts, possibly only inside a window of the model's mask grid.

    Attributes:
        logits: P float32 arrays (h_i, w_i), each the logits of a window of the mask grid.
        origin_yx: int32 (P, 2), each window's top left cell in the grid; 0, 0 for a full grid.
        grid_hw: the whole grid, (input size / 4,) * 2. Outside a window the mask is background.
        predicted_iou, object_score, stability: float32 (P,).

    """

    logits: Sequence[FloatArray] | FloatArray
    origin_yx: npt.NDArray[np.int32]
    grid_hw: tuple[int, int]
    predicted_iou: FloatArray
    object_score: FloatArray
    stability: FloatArray


class PendingMasks:
    """Decoder output that may still be on its way from the device; any thread may wait for it."""

    def __init__(self, count: int, fetch: Callable[[], LowResMasks]) -> None:
        self._count, self._lock = count, threading.Lock()
        self._fetch: Callable[[], LowResMasks] | None = fetch
        self._masks: LowResMasks | None = None

    def __len__(self) -> int:
        return self._count

    def wait(self) -> LowResMasks:
        """Return the output, waiting for the device the first time."""
        with self._lock:
            if self._masks is None:
                assert self._fetch is not None  # noqa: S101 - until the first result
                self._masks, self._fetch = self._fetch(), None
            return self._masks


@dataclass(frozen=True)
class BackendInfo:
    """What a caller may need to know of a loaded backend.

    Attributes:
        stamp: what makes its masks.
        image_size: S, side of the square input in pixels.
        providers: what runs it, in its own words.
        device: "cpu", or the GPU's name.
        close_ups: whether it takes each box in a crop of its own, not whole frames.

    """

    stamp: ModelStamp
    image_size: int
    providers: tuple[str, ...] = field(default=())
    device: str = "cpu"
    close_ups: bool = False


class Backend(Protocol):
    """A loaded model. No hidden state: any thread may decode any features.

    A backend may also have `decode_later(features, prompts) -> PendingMasks`: the work is queued on
    the device and the caller goes on; waiting for the result is another thread's. And
    `staged(image) -> image`: a copy that the device can fetch by itself, made by a reader's thread.
    """

    @property
    def info(self) -> BackendInfo:
        """Stamp, input size and where it runs."""
        ...

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images.

        Raises:
            DeviceMemoryError: the batch is too large; fewer images may fit.

        """
        ...

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts in one call; the caller chooses the chunk.

        Raises:
            DeviceMemoryError: the chunk is too large; fewer prompts may fit.

        """
        ...
