"""A mask model on a GPU, whatever runs its graphs: fixed buffers, a captured graph per bucket.

Frames are uploaded once, as bytes; squares and close-ups are cut on the device into the encoder's
input. Features never leave the device. Everything is queued by the device's one thread on one
stream, and results are waited for on the thread that needs them. What runs the graphs is an
ONNX Runtime session (`onnxruntime_cuda`) or a TensorRT engine (`tensorrt_backend`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.backends.gpu import Gpu, Graph, Slot
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.protocol import Backend, BackendInfo, PendingMasks
from sam2_core.batching import bucket_for, collect, gather
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


class CudaBackend(Backend):
    """A model folder's graphs over a GPU's memory.

    Any thread may call; the device's own thread does the work.

    Args:
        folder: an exported model, pinned.
        gpu: the process's.
        graphs: "encoder", "decoder" and "decoder_single", one of the latter two at least.
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
        """Decode P prompts: boxes in captured graphs, points and mask prompts without."""
        return self.decode_later(features, prompts).wait()

    def decode_later(self, features: Features, prompts: Prompts) -> PendingMasks:
        """Queue P prompts; whoever needs the result waits for it."""
        if prompts.mask_logits is not None or prompts.labels.shape[1] != BOX_POINTS:
            found = self._on_device(partial(self._decode_freely, features, prompts))
            return PendingMasks(len(prompts), lambda: found)
        parts = self._on_device(lambda: list(self._parts(features, prompts)))
        return PendingMasks(len(prompts), partial(collect, parts, self._grid))

    def _parts(
        self, features: Features, prompts: Prompts
    ) -> Iterator[tuple[npt.NDArray[np.int64], PendingMasks]]:
        """Queue boxes in calls of at most the largest buckets of images and boxes."""
        name = "decoder" if features.batch > 1 else self._single
        for first in range(0, features.batch, self._most_images):
            group = prompts.image_index // self._most_images == first // self._most_images
            rows = np.flatnonzero(group)
            for start in range(0, len(rows), self._box_buckets[-1]):
                some = rows[start : start + self._box_buckets[-1]]
                yield some, self._queue(self._graphs[name], features, prompts, some)

    def _queue(
        self, graph: Graph, features: Features, prompts: Prompts, rows: npt.NDArray[np.int64]
    ) -> PendingMasks:
        """Queue boxes of at most the largest image bucket's images, at most the largest bucket."""
        first = int(prompts.image_index[rows[0]]) // self._most_images * self._most_images
        shown = min(features.batch - first, self._most_images)
        bucket = bucket_for(len(rows), self._box_buckets)
        images = bucket_for(shown, self._image_buckets)
        padded = np.concatenate([rows, np.repeat(rows[-1:], bucket - len(rows))])
        bound = graph.bound({n: images if n in FEATURES else bucket for n in graph.declared})
        for name, slot in features.data[first // self._most_images].items():
            nbytes = shown * self._image_bytes[name]
            self.gpu.device.copy(bound.tensors[name].address, slot.address, nbytes, self.gpu.stream)
        given: tuple[npt.NDArray[Any], ...] = (
            prompts.points_model, prompts.labels, prompts.image_index - first,
        )  # fmt: skip
        kept = [
            self.gpu.upload(
                bound.tensors[name].address,
                values[padded].astype(bound.tensors[name].dtype, copy=False),
            )
            for name, values in zip(PROMPTS, given, strict=True)
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

    def _features_on_host(self, features: Features) -> dict[str, npt.NDArray[Any]]:
        """Copy features to this machine's memory."""
        found = {}
        for name in FEATURES:
            one = self._graphs["encoder"].declared[name]
            parts = [
                self.gpu.download(
                    features.data[image // self._most_images][name].address
                    + image % self._most_images * self._image_bytes[name],
                    one.dtype, one.row,
                )
                for image in range(features.batch)
            ]  # fmt: skip
            self.gpu.device.synchronize(self.gpu.stream)
            found[name] = np.stack(parts)
        return found

    def _decode_freely(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode any prompts: features go through the host, nothing is captured. Rarely used."""
        name = "decoder" if prompts.mask_logits is None else "decoder_mask"
        self.folder.graph(name)  # says so where there is none
        on_host = self._features_on_host(features)
        parts = []
        for first in range(0, features.batch, self._most_images):
            group = prompts.image_index // self._most_images == first // self._most_images
            rows = np.flatnonzero(group)
            if not len(rows):
                continue
            inputs: dict[str, Any] = {
                part: array[first : first + self._most_images] for part, array in on_host.items()
            }
            inputs |= {
                "points": prompts.points_model[rows].astype(np.float32),
                "labels": prompts.labels[rows].astype(np.int32),
                "image_index": (prompts.image_index[rows] - first).astype(np.int64),
            }
            if prompts.mask_logits is not None:
                inputs["mask_input"] = prompts.mask_logits[rows, None].astype(np.float32)
            parts.append((rows, self._masks(self._run_freely(name, inputs))))
        return gather(parts, self._grid)

    @abstractmethod
    def _run_freely(self, name: str, inputs: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Run a decoder on any number of points, and mask prompts; returns what is `DECODED`."""
