"""What the server's models and their clients agree on: names, tensors, ids, reasons.

Every tensor has a first dimension of 1: a request is about one image, and Triton batches requests.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.protocol import BackendInfo
from sam2_core.trust.certificate import UncertifiedEngineError
from sam2_core.types import AutolabelError, FloatArray, ImageArray, LowResMasks, ModelStamp


def cropped(
    masks: LowResMasks, rows: slice, *, whole: bool = False
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], FloatArray]:
    """Cut masks to their positive cells and one more on every side.

    Args:
        masks: of a decoder.
        rows: which of them.
        whole: leave them as they are.

    Returns:
        int32 (P, 4) top, left, height and width in the mask grid of each window, and the windows'
        float32 logits one after another.

    """
    windows, parts = [], []
    for logits, origin in zip(masks.logits[rows], masks.origin_yx[rows], strict=True):
        window = np.asarray(logits)
        top, bottom, left, right = (
            (0, window.shape[0], 0, window.shape[1]) if whole else _extent(window)
        )
        windows.append((int(origin[0]) + top, int(origin[1]) + left, bottom - top, right - left))
        parts.append(window[top:bottom, left:right].astype(np.float32, copy=False).reshape(-1))
    flat = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return np.array(windows, np.int32).reshape(-1, 4), flat


def _extent(window: np.ndarray[Any, Any]) -> tuple[int, int, int, int]:
    """First row, last + 1, first column, last + 1; one cell where nothing is positive."""
    if not np.isfinite(window).all():  # whoever makes the mask says so
        return 0, window.shape[0], 0, window.shape[1]
    positive = window > 0
    rows, columns = np.flatnonzero(positive.any(1)), np.flatnonzero(positive.any(0))
    if not len(rows):
        return 0, 1, 0, 1
    return (
        max(int(rows[0]) - 1, 0), min(int(rows[-1]) + 2, window.shape[0]),
        max(int(columns[0]) - 1, 0), min(int(columns[-1]) + 2, window.shape[1]),
    )  # fmt: skip


def pasted(
    windows: np.ndarray[Any, Any], flat: np.ndarray[Any, Any], scores: np.ndarray[Any, Any],
    grid: int,
) -> LowResMasks:  # fmt: skip
    """Return masks again from what `cropped` made.

    Args:
        windows: int32 (P, 4).
        flat: their logits.
        scores: float32 (3, P), predicted IoU, object score, stability.
        grid: G, side of the mask grid.

    """
    sizes = windows[:, 2].astype(np.int64) * windows[:, 3]
    ends = np.cumsum(sizes)
    bad = (windows < 0).any() or (windows[:, :2] + windows[:, 2:] > grid).any()
    if bad or (len(ends) and int(ends[-1]) != flat.size):
        raise AutolabelError("the server's masks do not fit their windows: it runs another version")
    found = [
        flat[end - size : end].reshape(height, width)
        for end, size, (_, _, height, width) in zip(ends, sizes, windows, strict=True)
    ]
    return LowResMasks(found, windows[:, :2].astype(np.int32), (grid, grid), *scores)


ByteArray = npt.NDArray[np.uint8]
# The input of a request that asks an encoder what it is: Triton wants one.
DESCRIBE = {"describe": np.ones((1, 1), np.uint8)}
# Behind a model's name in a list of models to serve: whole frames, where it would take close-ups.
WHOLE_FRAMES = ":whole"
# How the text of the server's error begins when what a request refers to is no longer there.
EXPIRED = "expired: "
# Most prompts, and points in each, of one request: a decoder's memory grows with both.
MOST_PROMPTS, MOST_POINTS = 4096, 64
# Most pixels of an image. A JPEG is held against it before it is decoded.
MOST_PIXELS = 64_000_000
# Most cells of the encoder's regions in one request.
MOST_REGIONS = 4096
TOKEN_VARIABLE = "AUTOLABEL_TRITON_TOKEN"  # noqa: S105 - the variable's name
CA_VARIABLE = "AUTOLABEL_TRITON_CA"
CERTIFICATE_VARIABLE, KEY_VARIABLE = "AUTOLABEL_TRITON_CERTIFICATE", "AUTOLABEL_TRITON_KEY"
URLS_VARIABLE = "AUTOLABEL_TRITON_URLS"
DEFAULT_URL = "grpc://127.0.0.1:8001"


@dataclass(frozen=True)
class ModelNames:
    """What a served model's parts are called on the server.

    Attributes:
        encoder: pixels to features, which stay on the server.
        decoder: prompts to low-resolution masks.
        image: an image, or its id, and prompts in its pixels to masks of the image.

    """

    encoder: str
    decoder: str
    image: str


def names_of(model: str) -> ModelNames:
    """Return the names of the parts of a model that is served as `model`."""
    return ModelNames(f"sam2_encoder_{model}", f"sam2_decoder_{model}", f"sam2_{model}")


def served_as(model: str | Path) -> str:
    """Return what a model is served as: a preset's name, a folder's or a file's.

    Args:
        model: as `load_backend` takes it; with `:whole` behind it where whole frames are meant.

    """
    text = str(model)
    whole = text.endswith(WHOLE_FRAMES)
    name = re.sub(r"[^A-Za-z0-9]+", "_", Path(text.removesuffix(WHOLE_FRAMES)).name).strip("_")
    if not name:
        raise AutolabelError(f"{text!r} is no name of a model")
    return f"{name}_whole" if whole else name


@dataclass(frozen=True)
class ServedModel:
    """What a client has to know of a model: `BackendInfo` on its way, and whether it may label.

    Attributes:
        stamp, image_size, device, close_ups: as in `BackendInfo`.
        certificate: that it has on its server, in short; else `uncertified` says why it has none.
        version: of the model in its server's repository; the same model may have others elsewhere.

    """

    stamp: ModelStamp
    image_size: int
    device: str
    close_ups: bool
    certificate: dict[str, Any] = field(default_factory=dict, compare=False)
    uncertified: str = field(default="", compare=False)
    version: str = field(default="", compare=False)

    @staticmethod
    def of(info: BackendInfo, version: str = "") -> ServedModel:
        """Say what a loaded backend is."""
        return ServedModel(
            info.stamp, info.image_size, info.device, info.close_ups, version=version
        )

    def certified(self) -> dict[str, Any]:
        """Return the certificate that it has on its server, in short.

        Raises:
            UncertifiedEngineError: it has none.

        """
        if not self.certificate:
            raise UncertifiedEngineError(
                f"on its server: {self.uncertified or 'it was not certified there'}"
            )
        return self.certificate

    @property
    def key(self) -> str:
        """Short hash of what makes its features: they fit no other model's decoder."""
        text = json.dumps(asdict(self.stamp), sort_keys=True) + str(self.image_size)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Return it as a text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> ServedModel:
        """Read such a text; `AutolabelError` where it is none."""
        try:
            facts = json.loads(text)
            return ServedModel(**facts | {"stamp": ModelStamp(**facts["stamp"])})
        except (ValueError, KeyError, TypeError) as error:
            raise AutolabelError(
                f"the server does not say what its model is ({error}): it runs another version"
            ) from error


def text_tensor(text: str | bytes) -> ByteArray:
    """Return a text as a tensor.

    Texts and files travel as bytes of type UINT8: Triton's BYTES need NumPy 1 in its models.
    """
    return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)


def text_in(tensor: np.ndarray[Any, Any]) -> str:
    """Return the text of such a tensor."""
    return tensor.tobytes().decode("utf-8", "replace")


def image_id(image: ImageArray) -> str:
    """Return the id of an image on every server: a hash of its size and its pixels."""
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


def embedding_id(key: str, image: str, regions_xyxy_px: np.ndarray | None) -> str:
    """Return the id of the features of an image's regions, made by the model of a key."""
    if regions_xyxy_px is None:
        return f"{key}-{image}"
    regions = np.ascontiguousarray(regions_xyxy_px, np.int32).tobytes()
    return f"{key}-{image}-{hashlib.blake2b(regions, digest_size=8).hexdigest()}"
