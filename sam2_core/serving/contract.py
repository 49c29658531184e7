"""What a server and its clients agree on: names, tensors, ids, limits; and requests held to that.

Every tensor has a first dimension of 1: a request is about one image, and Triton batches requests.
Triton itself refuses unknown tensors and other types or ranks than the configuration's.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import read_only
from sam2_core.backends.protocol import BackendInfo
from sam2_core.preprocess import checked_image
from sam2_core.presets import WHOLE_FRAMES
from sam2_core.prompts import PointPrompts
from sam2_core.trust.certify import UncertifiedEngineError
from sam2_core.types import AutolabelError, ImageArray, ModelStamp

ByteArray = npt.NDArray[np.uint8]
# The input of a request that asks for `info`: Triton wants one.
DESCRIBE = {"describe": np.ones((1, 1), np.uint8)}
# Behind a model's name in a list of models to serve: whole frames, where it would take close-ups.
# How the text of the server's error begins when what a request refers to is no longer there.
EXPIRED = "expired: "
# Most prompts, and points in each, of one request: a decoder's memory grows with both.
MOST_PROMPTS, MOST_POINTS = 4096, 64
# Most pixels of an image. A JPEG is held against it before it is decoded.
MOST_PIXELS = 64_000_000
TOKEN_VARIABLE = "AUTOLABEL_TRITON_TOKEN"  # noqa: S105 - the variable's name
CA_VARIABLE = "AUTOLABEL_TRITON_CA"
CERTIFICATE_VARIABLE, KEY_VARIABLE = "AUTOLABEL_TRITON_CERTIFICATE", "AUTOLABEL_TRITON_KEY"
URLS_VARIABLE = "AUTOLABEL_TRITON_URLS"
DEFAULT_URL = "grpc://127.0.0.1:8001"


def served_as(model: str | Path) -> str:
    """Return a model's name on servers: `sam2_` and a preset's name, a folder's or a file's.

    Args:
        model: as `load_backend` takes it; with `:whole` behind it where whole frames are meant.

    """
    text = str(model)
    whole = text.endswith(WHOLE_FRAMES)
    name = re.sub(r"[^A-Za-z0-9]+", "_", Path(text.removesuffix(WHOLE_FRAMES)).name).strip("_")
    if not name:
        raise AutolabelError(f"{text!r} is no name of a model")
    return f"sam2_{name}_whole" if whole else f"sam2_{name}"


@dataclass(frozen=True)
class ServedModel(BackendInfo):
    """What a client has to know of a model: `BackendInfo` on its way, and whether it may label.

    Attributes:
        certificate: that it has on its server, in short; else `uncertified` says why it has none.
        version: of the model in its server's repository; the same model may have others elsewhere.

    """

    certificate: dict[str, Any] = field(default_factory=dict, compare=False)
    uncertified: str = field(default="", compare=False)
    version: str = field(default="", compare=False)

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


# Returns a tensor of the request, None where it has none of that name.
Tensors = Callable[[str], np.ndarray[Any, Any] | None]


class RequestTensors:
    """The tensors of one request, without their first dimension.

    Args:
        tensors: returns a tensor by its name.

    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def _tensor(self, name: str) -> np.ndarray[Any, Any] | None:
        found = self._tensors(name)
        if found is None:
            return None
        if found.ndim < 2 or found.shape[0] != 1:
            raise AutolabelError(
                f"{name} is {found.shape}: the first dimension must be 1, a request is about one "
                "image (the server batches requests by itself)"
            )
        return found[0]

    def image_id(self) -> str:
        """Return the id of an image that was sent before, "" where none is named."""
        found = self._tensor("image_id")
        return "" if found is None else text_in(found)

    def image(self) -> ImageArray | None:
        """Return the image, uint8 (H, W, 3), of the tensor `image` or decoded from `jpeg`.

        Raises:
            AutolabelError, ValueError: it is none, or too large.

        """
        pixels, encoded = self._tensor("image"), self._tensor("jpeg")
        if pixels is not None and encoded is not None:
            raise AutolabelError("give either image or jpeg, not both")
        if encoded is not None:
            return decoded(encoded.tobytes())
        if pixels is None:
            return None
        checked_image(pixels)
        _refuse_large(pixels.shape[1], pixels.shape[0])
        return read_only(pixels)

    def point_prompts(self, grid: int) -> PointPrompts:
        """Return prompts in the image's pixels, of boxes_xyxy_px, points, labels, mask_logits.

        Raises:
            AutolabelError, ValueError: they are none, too many, or do not fit each other.

        """
        names = ("boxes_xyxy_px", "points", "labels", "mask_logits")
        prompts = PointPrompts.of(*map(self._tensor, names))
        if not 1 <= len(prompts) <= MOST_PROMPTS:
            raise AutolabelError(
                f"the request has {len(prompts)} rows: from 1 to {MOST_PROMPTS} are possible"
            )
        points, logits = prompts.labels.shape[1], prompts.mask_logits
        if points > MOST_POINTS:
            raise AutolabelError(f"{points} points: at most {MOST_POINTS} a prompt")
        if logits is not None and (
            logits.shape[1:] != (grid, grid) or not np.isfinite(logits).all()
        ):
            raise AutolabelError(
                f"mask_logits is {(1, *logits.shape)}: expected finite numbers (1, P, {grid}, "
                f"{grid})"
            )
        return prompts


def _refuse_large(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise AutolabelError(
            f"the image of {width}x{height} px is larger than {MOST_PIXELS / 1e6:.0f} megapixels"
        )


def decoded(encoded: bytes) -> ImageArray:
    """Decode a JPEG as labeling decodes one: uint8 (H, W, 3) RGB.

    Raises:
        AutolabelError: it is none, it is damaged, or it would be too large; then it is not decoded.

    """
    import simplejpeg
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as header:
            width, height = header.size
        _refuse_large(width, height)
        pixels: ImageArray = simplejpeg.decode_jpeg(encoded, "RGB", strict=True)
    except UnidentifiedImageError as error:
        raise AutolabelError("jpeg cannot be decoded: it is no JPEG") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise AutolabelError(f"jpeg cannot be decoded: {error}") from error
    return pixels
