"""The server's encoder and decoder: the backends of labeling, each batch of requests in few calls.

Features stay on the server, in memory that both processes see; clients get an id.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sam2_core.segmenter import Segmenter
from sam2_core.serving.contract import ServedModel, cropped, embedding_id, image_id, text_tensor
from sam2_core.serving.python_model import Asked, ExpiredError, Outputs, PythonModel
from sam2_core.serving.store import SharedStore
from sam2_core.trust.certify import ensure_certified
from sam2_core.types import AutolabelError, Features, ImageArray, LowResMasks, Prompts

logger = logging.getLogger(__name__)
_PLAIN_PX = 64


class _Loaded(PythonModel):
    """A model with the backend."""

    segmenter: Segmenter
    served: ServedModel
    store: SharedStore

    def prepare(self) -> None:
        """Load the backend and use it once: what it cannot do is said now, and it is warm."""
        backend = self.settings.load()
        self.segmenter = Segmenter(backend)
        self.served = ServedModel.of(backend.info, self.version)
        self.store = self.settings.embeddings()
        plain = backend.encode([np.zeros((_PLAIN_PX, _PLAIN_PX, 3), np.uint8)])
        backend.features_to_host(plain)
        box = np.array([[[8, 8], [48, 48], [0, 0]]], np.float32)
        labels = np.array([[2, 3, -1]], np.int32)
        backend.decode(plain, Prompts(box, labels, np.zeros(1, np.int64)))

    def finalize(self) -> None:
        """Stop the threads."""
        self.segmenter.close()


class _ToEncode(NamedTuple):
    """A request whose features are not there yet."""

    asked: Asked
    name: str
    parts: list[ImageArray]


class EncoderModel(_Loaded):
    """An image, or regions of it, to an id of its features; or what this model is."""

    def prepare(self) -> None:
        """Load the backend and hold it against PyTorch, as labeling without a server does."""
        super().prepare()
        try:
            found = ensure_certified(self.segmenter, self.settings.path)
        except AutolabelError as error:  # for labeling to refuse; interactive use goes on
            logger.warning("%s", error)
            self.served = replace(self.served, uncertified=str(error))
        else:
            self.served = replace(self.served, certificate=found.short)

    def answer_all(self, requests: Sequence[Asked]) -> None:
        """Encode what is not known yet, of all requests together."""
        found = [asked.attempt(partial(self._known, asked)) for asked in requests]
        self._encode([one for one in found if one is not None])

    def _known(self, asked: Asked) -> _ToEncode | None:
        """Answer where nothing has to be encoded, else return what has to be."""
        if asked.wanted == {"info"}:
            asked.answer({"info": text_tensor(self.served.to_json())})
            return None
        image = asked.given.image()
        if image is None:
            raise ValueError("the request has no image: give image or jpeg")
        regions = asked.given.regions_xyxy_px((image.shape[0], image.shape[1]))
        name = embedding_id(self.served.key, image_id(image), regions)
        if name in self.store:
            asked.answer(self._named(name))
            return None
        parts = [image]
        if regions is not None:
            parts = [image[top:bottom, left:right] for left, top, right, bottom in regions.tolist()]
        return _ToEncode(asked, name, parts)

    def _named(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        return {"embedding_id": text_tensor(name), "info": text_tensor(self.served.to_json())}

    def _encode(self, waiting: Sequence[_ToEncode]) -> None:
        parts = [part for one in waiting for part in one.parts]
        if not parts:
            return
        step, backend = self.segmenter.encoder_batch, self.segmenter.backend
        encoded = [
            backend.features_to_host(backend.encode(parts[start : start + step]))
            for start in range(0, len(parts), step)
        ]
        whole = encoded[0]
        if len(encoded) > 1:
            whole = {name: np.concatenate([one[name] for one in encoded]) for name in whole}
        start = 0
        for one in waiting:
            stop = start + len(one.parts)
            rows = {name: array[start:stop] for name, array in whole.items()}
            start = stop
            one.asked.each(lambda one=one, rows=rows: self._keep(one, rows))  # type: ignore[misc]

    def _keep(self, one: _ToEncode, rows: dict[str, np.ndarray[Any, Any]]) -> Outputs:
        sizes = [list(part.shape[:2]) for part in one.parts]
        self.store.put(one.name, rows, sizes)
        return self._named(one.name)


class DecoderModel(_Loaded):
    """Prompts in model pixels on features of an id to low-resolution masks."""

    def answer_all(self, requests: Sequence[Asked]) -> None:
        """Decode; requests on the same features share the decoder's calls."""
        together: dict[str, list[Asked]] = {}
        for asked in requests:
            together.setdefault(asked.given.text("embedding_id") or "", []).append(asked)
        for name, some in together.items():
            self.together(some, partial(self._decode, name))

    def _features(self, name: str) -> Features:
        if not name:
            raise ValueError("the request lacks embedding_id")
        if not name.startswith(f"{self.served.key}-"):
            raise ExpiredError(
                f"the embedding {name[:80]} is not of this server's model: encode the image again"
            )
        found = self.store.get(name)
        if found is None:
            raise ExpiredError(
                f"the embedding {name[:80]} is not, or no longer, on this server: encode the image "
                "again"
            )
        arrays, sizes = found
        sizes_hw = [(height, width) for height, width in sizes]
        return self.segmenter.backend.features_from_host(arrays, sizes_hw)

    def _decode(self, name: str, requests: Sequence[Asked]) -> None:
        features, grid = self._features(name), self.served.image_size // 4
        read = [
            (one, one.attempt(partial(one.given.prompts, features.batch, grid))) for one in requests
        ]
        good = [(asked, prompts) for asked, prompts in read if prompts is not None]
        if not good:
            return
        masks = self.segmenter.decode(features, [prompts for _, prompts in good]).wait()
        start = 0
        for asked, prompts in good:
            stop = start + len(prompts)
            rows = slice(start, stop)
            asked.each(lambda asked=asked, rows=rows: _answer(asked, masks, rows))  # type: ignore[misc]
            start = stop


def _answer(asked: Asked, masks: LowResMasks, rows: slice) -> Outputs:
    windows, flat = cropped(masks, rows, whole=asked.given.flag("whole_grid"))
    outputs: dict[str, np.ndarray[Any, Any]] = {
        "windows": windows, "predicted_iou": masks.predicted_iou[rows],
        "object_score": masks.object_score[rows], "stability": masks.stability[rows],
    }  # fmt: skip
    if "logits" in asked.wanted:
        outputs["logits"] = flat
    if "logits_fp16" in asked.wanted:
        outputs["logits_fp16"] = flat.clip(-60000, 60000).astype(np.float16)
    if "mask_bits" in asked.wanted:
        whole = [np.asarray(one) > 0 for one in masks.logits[rows]]
        outputs["mask_bits"] = np.packbits(np.array(whole).reshape(len(whole), -1), axis=1)
    return outputs
