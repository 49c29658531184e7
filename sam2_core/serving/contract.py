"""What a server and its clients agree on: names, tensors, ids, limits.

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
from sam2_core.trust.certify import UncertifiedEngineError
from sam2_core.types import AutolabelError, ImageArray, ModelStamp

ByteArray = npt.NDArray[np.uint8]
# The input of a request that asks for `info`: Triton wants one.
DESCRIBE = {"describe": np.ones((1, 1), np.uint8)}
# Behind a model's name in a list of models to serve: whole frames, where it would take close-ups.
WHOLE_FRAMES = ":whole"
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
