"""A mask model on a GPU, whatever runs its graphs: fixed buffers, a captured graph per bucket.

Frames are uploaded once, as bytes; squares and close-ups are cut on the device into the encoder's
input. Features never leave the device. Everything is queued by the device's one thread on one
stream, and results are waited for on the thread that needs them. What runs the graphs is an
ONNX Runtime session (`onnxruntime_cuda`) or a TensorRT engine (`tensorrt_backend`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.backends.cuda_graphs import Bound, Graph
from sam2_core.backends.gpu import Gpu, Slot
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.protocol import Backend, BackendInfo, Later
from sam2_core.batching import bucket_for, gather
from sam2_core.preprocess import StagedFrame, View
from sam2_core.types import (
    BOX_POINTS,
    DECODED,
    FEATURES,
    PROMPTS,
    SCORES,
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    Prompts,
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Buckets:
    """Sizes that graphs run at; what lies between is padded.

    Attributes:
        boxes: prompts in one decoder call, ascending; more are split over calls.
        images: images in one encoder call, and of one decoder call's features, ascending.
        own_images: every box has an image of its own, as in close-ups.

    """

    boxes: tuple[int, ...] = (1, 8, 32, 64, 136)
    images: tuple[int, ...] = (1, 2, 4)
    own_images: bool = False


_OF_CLOSE_UPS = (8, 16, 32, 64)


def buckets_for(folder: ModelFolder) -> Buckets:
    """Return the sizes that a model folder's graphs run at."""
    close_ups = Buckets(_OF_CLOSE_UPS, _OF_CLOSE_UPS, own_images=True)
    return close_ups if folder.close_ups else Buckets()


def graphs_of(folder: ModelFolder) -> tuple[str, ...]:
    """Return the graphs of a model folder that run on a GPU."""
    optional = ("decoder_single", "decoder_mask")
    return ("encoder", "decoder", *(name for name in optional if folder.has(name)))


# Most prompts in a call that are more than boxes: clicked points, any number of them, and masks.
FREE_PROMPTS = 8


class CudaBackend(Backend):
    """A model folder's graphs over a GPU's memory.

    Any thread may call; the device's own thread does the work.

    Args:
        folder: an exported model, pinned.
        gpu: the process's.
        graphs: "encoder" and "decoder"; "decoder_single" and "decoder_mask" where there are.
        buckets: sizes that graphs are captured for.
        made_by: what runs the graphs, for the stamp.

    """

    def __init__(
        self, folder: ModelFolder, gpu: Gpu, graphs: Mapping[str, Graph],
        buckets: Buckets, made_by: str,
    ) -> None:  # fmt: skip
        self.folder, self.gpu, self._graphs = folder, gpu, graphs
        self._image_buckets, self._box_buckets = buckets.images, buckets.boxes
        self._most_images = self._image_buckets[-1]
        self._single = "decoder_single" if "decoder_single" in graphs else "decoder"
        encoder = graphs["encoder"].declared
        self._image_bytes = {
            name: math.prod(encoder[name].row) * encoder[name].dtype.itemsize for name in FEATURES
        }
        self.info = BackendInfo(
            folder.stamp(made_by), folder.image_size, gpu.device.name,
            folder.close_ups,
        )  # fmt: skip

    def _on_device(self, work: Callable[[], Result]) -> Result:
        return self.gpu.run_beside(self._graphs.values(), work)

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
        for bucket in [*(("encoder", count, count) for count in self._image_buckets), *single]:
            bound = self._on_device(partial(self._bound, *bucket))
            self._on_device(bound.run)

    def _bound(self, name: str, images: int, boxes: int, points: int = BOX_POINTS) -> Bound:
        """Return a graph for so many images and prompts, of so many points each."""
        graph = self._graphs[name]
        of_images = (*FEATURES, "image")
        return graph.bound(
            {tensor: images if tensor in of_images else boxes for tensor in graph.declared}, points
        )

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images: views of staged frames, or uint8 (H, W, 3) of any size."""
        views = [
            image if isinstance(image, View) else self.stage(image).whole() for image in images
        ]
        most = self._most_images
        calls = [views[start : start + most] for start in range(0, len(views), most)]
        return Features(self._on_device(lambda: list(map(self._encode, calls))), len(images))

    def _encode(self, images: Sequence[View]) -> dict[str, Slot]:
        """Queue at most the largest bucket's images; returns their features, one slot each."""
        bucket = bucket_for(len(images), self._image_buckets)
        encoder = self._bound("encoder", bucket, bucket)
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

    def decode_later(self, features: Features, prompts: Prompts) -> Later:
        """Queue P prompts; the result is waited for where it is needed."""
        parts = self._on_device(lambda: list(self._parts(features, prompts)))
        return lambda: gather([(rows, part()) for rows, part in parts])

    def _parts(
        self, features: Features, prompts: Prompts
    ) -> Iterator[tuple[npt.NDArray[np.int64], Later]]:
        """Queue prompts in calls of at most the largest buckets of images and boxes."""
        name = "decoder" if features.batch > 1 else self._single
        most = self._box_buckets[-1]
        if prompts.mask_logits is not None:
            name, most = "decoder_mask", FREE_PROMPTS
            self.folder.graph(name)  # says so where there is none
        elif prompts.labels.shape[1] != BOX_POINTS:
            most = FREE_PROMPTS
        for first in range(0, features.batch, self._most_images):
            group = prompts.image_index // self._most_images == first // self._most_images
            rows = np.flatnonzero(group)
            for start in range(0, len(rows), most):
                some = rows[start : start + most]
                yield some, self._queue(name, features, prompts, some)

    def _queue(
        self, name: str, features: Features, prompts: Prompts, rows: npt.NDArray[np.int64]
    ) -> Later:
        """Queue prompts of the largest image bucket's images, at most its bucket of boxes."""
        first = int(prompts.image_index[rows[0]]) // self._most_images * self._most_images
        shown = min(features.batch - first, self._most_images)
        bucket = bucket_for(len(rows), self._box_buckets)
        images = bucket_for(shown, self._image_buckets)
        padded = np.concatenate([rows, np.repeat(rows[-1:], bucket - len(rows))])
        bound = self._bound(name, images, bucket, prompts.labels.shape[1])
        for part, slot in features.data[first // self._most_images].items():
            nbytes = shown * self._image_bytes[part]
            self.gpu.device.copy(bound.tensors[part].address, slot.address, nbytes, self.gpu.stream)
        given: list[npt.NDArray[Any]] = [
            prompts.points_model, prompts.labels, prompts.image_index - first,
        ]  # fmt: skip
        if prompts.mask_logits is not None:
            given.append(prompts.mask_logits[:, None])
        kept = [
            self.gpu.upload(
                bound.tensors[part].address,
                values[padded].astype(bound.tensors[part].dtype, copy=False),
            )
            for part, values in zip((*PROMPTS, "mask_input"), given, strict=False)
            if part in bound.tensors
        ]
        bound.run()
        tensors = {part: bound.tensors[part] for part in DECODED}
        outputs = {
            part: self.gpu.download(tensor.address, tensor.dtype, (len(rows), *tensor.row))
            for part, tensor in tensors.items()
        }
        wait = self.gpu.queued(kept, outputs)

        def fetch() -> LowResMasks:
            wait()
            scores = [outputs[part].astype(np.float32) for part in SCORES]
            return LowResMasks(outputs["logits"][:, 0], *scores)

        return fetch
