"""Open an image on a server, then ask for masks of it: what both clients send, and the plain one.

`Sam2Client` is for scripts and batch workers; see `async_client` for interactive tools.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.preprocess import checked_image
from sam2_core.prompts import PointPrompts
from sam2_core.serving.contract import (
    DEFAULT_URL,
    ServedModel,
    image_id,
    served_as,
    text_in,
    text_tensor,
)
from sam2_core.serving.transport import (
    Call,
    Cancellation,
    ExpiredOnServerError,
    Servers,
    Tensors,
    Transport,
)
from sam2_core.types import AutolabelError, FloatArray, ImageArray, Masks

MASKS = (
    "size_hw", "rle", "rle_bytes", "reasons", "predicted_iou", "stability",
    "object_score", "area_px",
)  # fmt: skip
_OPENED = ("image_id", "size_hw")
# Logits of a mask that is given: those of a cell inside and, negative, of one outside.
_SURE = 10.0


@dataclass(frozen=True, eq=False)
class SentImage:
    """An image that a server knows by its id, and what to send if it has forgotten it.

    Attributes:
        name: its id.
        size_hw: height and width in pixels.
        content: uint8 (H, W, 3) RGB, or a JPEG.

    """

    name: str
    size_hw: tuple[int, int]
    content: ImageArray | bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes):
            freeze_arrays(self, content="uint8 (H, W, 3)")


def _size_hw(found: Tensors) -> tuple[int, int]:
    height, width = (int(size) for size in found["size_hw"].reshape(-1))
    return height, width


def _prompt_tensors(prompts: PointPrompts) -> Tensors:
    """Return the tensors of a request for the masks of prompts."""
    given = {
        "boxes_xyxy_px": prompts.xyxy_px, "points": prompts.points_px, "labels": prompts.labels,
        "mask_logits": prompts.mask_logits,
    }  # fmt: skip
    return {name: array[None] for name, array in given.items() if array is not None and array.size}


def masks_in(found: Tensors) -> Masks:
    """Read the answer to a request for `MASKS`."""
    names = ("predicted_iou", "stability", "object_score", "area_px")
    iou, stability, score, area = (found[name][0] for name in names)
    text, ends = found["rle"].tobytes(), np.cumsum(found["rle_bytes"][0])
    starts = [0, *ends[:-1].tolist()]
    return Masks(
        tuple(text[start:end] for start, end in zip(starts, ends.tolist(), strict=True)),
        _size_hw(found), iou, stability, score, area, tuple(json.loads(text_in(found["reasons"]))),
    )  # fmt: skip


def as_prompts(
    boxes_xyxy_px: npt.ArrayLike | None = None,
    points_px: npt.ArrayLike | None = None,
    labels: npt.ArrayLike | None = None,
    masks: npt.NDArray[np.bool_] | None = None,
    *,
    grid: int,
) -> PointPrompts:
    """Return N prompts of what a caller has.

    Args:
        boxes_xyxy_px: (N, 4) in pixels of the image.
        points_px: (N, K, 2).
        labels: (N, K): 1 positive, 0 negative, -1 no point.
        masks: bool (N, H, W), earlier masks in pixels of the image, to refine.
        grid: G, side of the model's mask grid.

    Raises:
        ValueError: they do not fit each other.

    """
    logits = None if masks is None else mask_logits(masks, grid)
    return PointPrompts.of(boxes_xyxy_px, points_px, labels, logits)


def mask_logits(masks: npt.NDArray[np.bool_], grid: int) -> FloatArray:
    """Return masks of an image as the model takes earlier masks.

    Args:
        masks: bool (N, H, W).
        grid: G.

    Returns:
        float32 (N, G, G) logits.

    """
    from PIL import Image

    if masks.ndim != 3 or masks.dtype != np.bool_:
        raise ValueError(f"masks must be bool (N, H, W), got {masks.dtype} {masks.shape}")
    shares: Sequence[npt.NDArray[np.float32]] = [
        np.asarray(
            Image.fromarray(mask.astype(np.float32)).resize((grid, grid), Image.Resampling.BILINEAR)
        )
        for mask in masks
    ]
    logits = (2 * np.array(shares, np.float32).reshape(-1, grid, grid) - 1) * np.float32(_SURE)
    return logits.astype(np.float32)


class Requests:
    """Requests about images that a server may have forgotten; nothing is sent before the first.

    Args:
        urls, model: as `Sam2Client` takes them.
        deadline_s: how long to wait for an answer.
        patience_s: how long to go on while no server answers; at first and later.

    """

    def __init__(
        self, urls: str | Sequence[str], model: str | Path,
        deadline_s: float, patience_s: tuple[float, float],
    ) -> None:  # fmt: skip
        every = [urls] if isinstance(urls, str) else urls
        transports = [Transport(url) for url in every]
        first, later = patience_s
        self._servers = Servers(
            transports, served_as(model), patience_s=later, first_patience_s=first
        )
        self._deadline_s = deadline_s

    @property
    def served(self) -> ServedModel:
        """What the servers run; `AutolabelError` where none serves the model."""
        return self._servers.served

    def set_image(
        self, image: ImageArray | bytes, cancellation: Cancellation | None = None
    ) -> SentImage:
        """Make an image known to the server, which keeps it for as long as it has room.

        Args:
            image: uint8 (H, W, 3) RGB, or a JPEG. One that the server knows is not sent again.
            cancellation: gives the request up.

        """
        # Of a JPEG only the server knows the pixels.
        name = "" if isinstance(image, bytes) else image_id(checked_image(image))
        found = self._ask(name, image, {}, _OPENED, cancellation)
        return SentImage(text_in(found["image_id"]), _size_hw(found), image)

    def segment(
        self, image: SentImage, prompts: PointPrompts, cancellation: Cancellation | None = None
    ) -> Masks:
        """Return the masks of prompts; as `OpenImage.segment` without a server."""
        if not len(prompts):
            nothing = np.zeros(0, np.float32)
            return Masks((), image.size_hw, nothing, nothing, nothing, np.zeros(0, np.int64), ())
        given = _prompt_tensors(prompts)
        outputs = ("image_id", *MASKS)  # of an image that is to be kept
        return masks_in(self._ask(image.name, image.content, given, outputs, cancellation))

    def _ask(
        self, name: str, image: ImageArray | bytes, given: Tensors, outputs: Sequence[str],
        cancellation: Cancellation | None,
    ) -> Tensors:  # fmt: skip
        """Send a request about an image by its id; with the image where that is not known."""

        def infer(about: Tensors) -> Tensors:
            until = cancellation or Cancellation()
            inputs = about | given
            call = Call(self._servers.model, inputs, outputs, self._deadline_s, cancellation=until)
            return self._servers.infer(call)

        if name:
            with contextlib.suppress(ExpiredOnServerError):
                return infer({"image_id": text_tensor(name)[None]})
        if isinstance(image, bytes):
            return infer({"jpeg": text_tensor(image)[None]})
        return infer({"image": image[None]})

    def close(self) -> None:
        """Let go of connections."""
        self._servers.close()


class Sam2Client(Requests, contextlib.AbstractContextManager["Sam2Client"]):
    """A model on Triton servers; any thread may ask.

    Args:
        urls: address of a server, or several in the order in which they are tried: grpc://HOST:PORT
            or grpcs://.
        model: as it was given to `autolabel serve`.
        deadline_s: how long to wait for an answer.
        patience_s: how long to go on while no server answers.

    Raises:
        AutolabelError: no server answers, or none serves the model.

    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        model: str | Path = "compact",
        *,
        deadline_s: float = 30.0,
        patience_s: float = 10.0,
    ) -> None:
        super().__init__(urls, model, deadline_s, (min(patience_s, 5.0), patience_s))
        _ = self.served

    def predict(
        self,
        image: SentImage,
        *,
        boxes_xyxy_px: npt.ArrayLike | None = None,
        points_px: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        masks: npt.NDArray[np.bool_] | None = None,
    ) -> Masks:
        """Return the masks of N prompts, all in pixels of the image.

        Args:
            image: of `set_image`; sent again where the server has forgotten it.
            boxes_xyxy_px: (N, 4).
            points_px: (N, K, 2).
            labels: (N, K): 1 positive, 0 negative, -1 no point.
            masks: bool (N, H, W) of earlier masks, to refine; of models of whole frames.

        Returns:
            N rows; one that is no valid prompt is empty and says why.

        """
        if masks is not None and masks.shape[1:] != image.size_hw:
            raise AutolabelError(
                f"the masks are {masks.shape[1:]} and the image is {image.size_hw} (height, width)"
            )
        grid = self.served.image_size // 4
        return self.segment(image, as_prompts(boxes_xyxy_px, points_px, labels, masks, grid=grid))

    def __exit__(self, *_: object) -> None:
        self.close()
