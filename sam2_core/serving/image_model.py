"""The server's model of images: an image, or its id, and prompts in its pixels to masks of it.

It is `OpenImage` on the server: the encoder and the decoder beside it do the work (Triton calls a
model that asks others "BLS"), and the image stays open, under a bound, for what is asked next.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from sam2_core.backends.triton_backend import TritonBackend
from sam2_core.clicks import OpenImage
from sam2_core.serving.contract import image_id, text_tensor
from sam2_core.serving.failover import Servers, is_loading
from sam2_core.serving.python_model import (
    Asked,
    ExpiredError,
    Outputs,
    PythonModel,
    UnwantedError,
    array_of,
    tensor_of,
)
from sam2_core.serving.store import SharedStore
from sam2_core.serving.transport import (
    Call,
    ModelReplacedError,
    ServerAbsentError,
    Tensors,
    Transport,
    refused,
)
from sam2_core.types import Masks

# Open images of this process; their pixels are in shared memory.
_OPEN = 8


class _Beside(Transport):
    """The models beside this one, on the same server and of the same version.

    So a new version takes over as a whole, when its model of images is loaded.
    """

    def __init__(self, version: str) -> None:
        super().__init__("here")
        self._version = int(version)
        # Whom it asks for: a request for many boxes goes to the others once for each.
        self.on_behalf_of: Asked | None = None

    def infer(self, call: Call) -> Tensors:
        """Ask a model beside this one."""
        import triton_python_backend_utils as triton

        if self.on_behalf_of is not None and self.on_behalf_of.is_unwanted():
            raise UnwantedError("cancelled by its client, or its deadline has passed")
        request = triton.InferenceRequest(
            model_name=call.model,
            model_version=self._version,
            requested_output_names=list(call.outputs),
            inputs=[tensor_of(name, array) for name, array in call.inputs.items()],
        )
        answer = request.exec()
        if answer.has_error():
            text = answer.error().message()
            if is_loading(text):
                raise ServerAbsentError(text)
            raise refused(text, self.url)
        return {
            name: array_of(triton.get_output_tensor_by_name(answer, name)).copy()
            for name in call.outputs
        }


class ImageModel(PythonModel):
    """Images and prompts to masks."""

    _images: SharedStore
    _open: OrderedDict[str, OpenImage]
    _beside: _Beside
    _backend: TritonBackend | None = None

    def prepare(self) -> None:
        """Find where images lie; the models beside it may come later."""
        self._images, self._open = self.settings.images(), OrderedDict()
        self._beside = _Beside(self.version)

    def _on(self) -> TritonBackend:
        """Return the models beside this one; anew where they were replaced."""
        if self._backend is None:
            servers = Servers([self._beside], self.settings.served_as, first_patience_s=10.0)
            self._backend = TritonBackend(servers, at_once=0)
        return self._backend

    def answer_all(self, requests: Sequence[Asked]) -> None:
        """Answer one after another; what nobody waits for any more is not started."""
        for asked in requests:
            if not asked.drop_if_cancelled():
                asked.each(lambda asked=asked: self._answer(asked))  # type: ignore[misc]

    def _answer(self, asked: Asked) -> Outputs:
        self._beside.on_behalf_of = asked
        try:
            return self._answered(asked)
        except ModelReplacedError:  # the encoder was loaded anew, perhaps in another version
            self._backend = None
            self._open.clear()
            return self._answered(asked)

    def _answered(self, asked: Asked) -> Outputs:
        opened, name = self._opened(asked)
        outputs: dict[str, np.ndarray[Any, Any]] = {
            "image_id": text_tensor(name),
            "size_hw": np.array(opened.size_hw, np.int32),
        }
        if asked.wanted <= set(outputs):
            return outputs
        grid = self._on().info.image_size // 4
        masks = opened.segment(asked.given.point_prompts(grid))
        return outputs | _tensors_of(masks, asked.wanted)

    def _opened(self, asked: Asked) -> tuple[OpenImage, str]:
        """Return the image that a request is about, open."""
        pixels, name = asked.given.image(), asked.given.text("image_id")
        if pixels is not None:
            name = image_id(pixels)
            self._images.put(name, {"pixels": pixels})
        if not name:
            raise ValueError("the request has no image: give image, jpeg, or image_id")
        found = self._images.get(name)
        if found is None:
            self._open.pop(name, None)
            raise ExpiredError(
                f"the image {name[:80]} is not, or no longer, on this server: send it again"
            )
        if name not in self._open:
            self._open[name] = OpenImage(self._on(), found[0]["pixels"])
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name], name


def _tensors_of(masks: Masks, wanted: frozenset[str]) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = {
        "rle": text_tensor(b"".join(masks.rle)),
        "rle_bytes": np.array([len(one) for one in masks.rle], np.int32),
        "reasons": text_tensor(json.dumps(masks.reasons)),
        "predicted_iou": masks.predicted_iou, "stability": masks.stability,
        "object_score": masks.object_score, "area_px": masks.area_px,
    }  # fmt: skip
    if "mask_bits" in wanted:
        whole = [masks.to_array(row).reshape(-1) for row in range(len(masks))]
        found["mask_bits"] = np.packbits(np.array(whole), axis=1)
    return found
