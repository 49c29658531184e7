"""A mask model on a GPU, whatever runs its graphs: fixed buffers, a captured graph per bucket.

Frames are uploaded once, as bytes; squares and close-ups are cut on the device into the encoder's
input. Features never leave the device. Everything is queued by the device's one thread on one
stream, and results are waited for on the thread that needs them. What runs the graphs is an
ONNX Runtime session (`onnxruntime_cuda`) or a TensorRT engine (`tensorrt_backend`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.backends.gpu import Gpu, Graph, Slot
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.protocol import Backend, BackendInfo, PendingMasks
from sam2_core.batching import bucket_for, collect
from sam2_core.preprocess import StagedFrame, View
from sam2_core.types import (
    BOX_POINTS,
    DECODED,
    FEATURES,
    PROMPTS,
    SCORES,
    DeviceMemoryError,
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    Prompts,
)

Result = TypeVar("Result")
# Most prompts in a call that are no boxes alone: clicked points, any number of them, and masks.
FREE_PROMPTS = 8


class CudaBackend(Backend):
    """A model folder's graphs over a GPU's memory.

    Any thread may call; the device's own thread does the work.

    Args:
        folder: an exported model, pinned.
        gpu: the process's.
        graphs: "encoder" and "decoder"; "decoder_single" and "decoder_mask" where there are.
        buckets: numbers of images, and of boxes, that graphs are captured for, ascending.
        made_by: what runs the graphs, for the stamp and in its own words.

    """

    def __init__(
        self, folder: ModelFolder, gpu: Gpu, graphs: Mapping[str, Graph],
        buckets: tuple[Sequence[int], Sequence[int]], made_by: tuple[str, str],
    ) -> None:  # fmt: skip
        self.folder, self.gpu, self._graphs = folder, gpu, graphs
        self._grid = folder.image_size // 4
        self._image_buckets, self._box_buckets = buckets
        self._most_images = self._image_buckets[-1]
        self._single = "decoder_single" if "decoder_single" in graphs else "decoder"
        encoder = graphs["encoder"].declared
        self._image_bytes = {
            name: math.prod(encoder[name].row) * encoder[name].dtype.itemsize for name in FEATURES
        }
        self._info = BackendInfo(
            folder.stamp(made_by[0]), folder.image_size, made_by[1:], gpu.device.name,
            folder.close_ups,
        )  # fmt: skip

    @property
    def info(self) -> BackendInfo:
        """Stamp, input size and where it runs."""
        return self._info

    def _on_device(self, work: Callable[[], Result]) -> Result:
        """Run on the device's thread; what memory there is is released when it is too little."""

        def releasing() -> Result:
            try:
                return work()
            except DeviceMemoryError:
                self._release()
                raise

        return self.gpu.run(releasing)

    def _release(self) -> None:
        self.gpu.device.synchronize(self.gpu.stream)
        for graph in self._graphs.values():
            graph.release()
        self.gpu.release_unused()

    def stage(self, image: ImageArray) -> StagedFrame:
        """Copy a frame to page-locked memory, where the device cuts and resizes."""
        return self.gpu.stage(image)

    def staged(self, frame: StagedFrame) -> StagedFrame:
        """Return the frame with what the device has of it, where it was staged for this device."""
        return self.gpu.staged(frame)

    def warm_up(self) -> None:
        """Capture every bucket that boxes use, before there are frames."""
        single = [(self._single, 1, boxes) for boxes in self._box_buckets]
        if self.folder.close_ups:
            single = [("decoder", count, count) for count in self._image_buckets]
        for images in self._image_buckets:
            self._on_device(partial(self._run_once, "encoder", images, images))
        for name, images, boxes in single:
            self._on_device(partial(self._run_once, name, images, boxes))

    def _run_once(self, name: str, images: int, boxes: int) -> None:
        graph = self._graphs[name]
        counts = {one: images if one in (*FEATURES, "image") else boxes for one in graph.declared}
        graph.bound(counts).run()

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images: views of staged frames, or uint8 (H, W, 3) of any size."""
        views = [one if isinstance(one, View) else self.stage(one).whole() for one in images]
        return self._on_device(partial(self._encode_all, views))

    def _encode_all(self, images: Sequence[View]) -> Features:
        encoded = [
            self._encode(images[start : start + self._most_images])
            for start in range(0, len(images), self._most_images)
        ]
        return Features(encoded, len(images))

    def _encode(self, images: Sequence[View]) -> dict[str, Slot]:
        """Queue at most the largest bucket's images; returns their features, one slot each."""
        bucket = bucket_for(len(images), self._image_buckets)
        encoder = self._graphs["encoder"].bound(dict.fromkeys(("image", *FEATURES), bucket))
        target = encoder.tensors["image"].address
        kept = self.gpu.squares(images, target, self.folder.image_size)
        encoder.run()
        self.gpu.queued(kept)
        # Graphs read and write fixed buffers; features are copied (microseconds), so that any
        # number of encoded images can be alive.
        kept_features = {}
        for name, nbytes in self._image_bytes.items():
            slot = kept_features[name] = self.gpu.memory(len(images) * nbytes)
            source = encoder.tensors[name].address
            self.gpu.device.copy(slot.address, source, len(images) * nbytes, self.gpu.stream)
        return kept_features

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts."""
        return self.decode_later(features, prompts).wait()

    def decode_later(self, features: Features, prompts: Prompts) -> PendingMasks:
        """Queue P prompts; whoever needs the result waits for it."""
        parts = self._on_device(lambda: list(self._parts(features, prompts)))
        return PendingMasks(len(prompts), partial(collect, parts, self._grid))

    def _parts(
        self, features: Features, prompts: Prompts
    ) -> Iterator[tuple[npt.NDArray[np.int64], PendingMasks]]:
        """Queue prompts in calls of at most the largest buckets of images and boxes."""
        name = "decoder" if features.batch > 1 else self._single
        most = self._box_buckets[-1]
        if prompts.mask_logits is not None:
            name, most = "decoder_mask", FREE_PROMPTS
            self.folder.graph(name)  # says so where there is none
        elif prompts.labels.shape[1] != BOX_POINTS:
            most = FREE_PROMPTS
        graph = self._graphs[name]
        for first in range(0, features.batch, self._most_images):
            group = prompts.image_index // self._most_images == first // self._most_images
            rows = np.flatnonzero(group)
            for start in range(0, len(rows), most):
                some = rows[start : start + most]
                yield some, self._queue(graph, features, prompts, some)

    def _queue(
        self, graph: Graph, features: Features, prompts: Prompts, rows: npt.NDArray[np.int64]
    ) -> PendingMasks:
        """Queue prompts of the largest image bucket's images, at most its bucket of boxes."""
        first = int(prompts.image_index[rows[0]]) // self._most_images * self._most_images
        shown = min(features.batch - first, self._most_images)
        bucket = bucket_for(len(rows), self._box_buckets)
        images = bucket_for(shown, self._image_buckets)
        padded = np.concatenate([rows, np.repeat(rows[-1:], bucket - len(rows))])
        bound = graph.bound(
            {n: images if n in FEATURES else bucket for n in graph.declared},
            prompts.labels.shape[1],
        )
        for name, slot in features.data[first // self._most_images].items():
            nbytes = shown * self._image_bytes[name]
            self.gpu.device.copy(bound.tensors[name].address, slot.address, nbytes, self.gpu.stream)
        given: list[npt.NDArray[Any]] = [
            prompts.points_model, prompts.labels, prompts.image_index - first,
        ]  # fmt: skip
        if prompts.mask_logits is not None:
            given.append(prompts.mask_logits[:, None])
        kept = [
            self.gpu.upload(
                bound.tensors[name].address,
                values[padded].astype(bound.tensors[name].dtype, copy=False),
            )
            for name, values in zip((*PROMPTS, "mask_input"), given, strict=False)
            if name in bound.tensors
        ]
        bound.run()
        outputs = {}
        for name in DECODED:
            tensor = bound.tensors[name]
            outputs[name] = self.gpu.download(
                tensor.address, tensor.dtype, (len(rows), *tensor.row)
            )
        wait = self.gpu.queued(kept, outputs)

        def fetch() -> LowResMasks:
            wait()
            return self._masks(outputs)

        return PendingMasks(len(rows), fetch)

    def _masks(self, outputs: Mapping[str, npt.NDArray[Any]]) -> LowResMasks:
        scores = [outputs[name].astype(np.float32) for name in SCORES]
        return LowResMasks(outputs["logits"][:, 0], *scores)
