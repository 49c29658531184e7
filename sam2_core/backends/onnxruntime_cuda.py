"""Runs an exported model with ONNX Runtime's CUDA provider: fixed buffers and CUDA graphs.

Inputs and outputs are bound to device memory that is allocated once, so that features never leave
the device, and every shape (numbers of images and prompts come in buckets) is captured by ONNX
Runtime as a CUDA graph of its own and replayed. Everything runs on one stream of ours: uploads from
pinned memory, the graphs, and the copies of the results to pinned memory.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.cuda_device import CudaDevice, Device
from sam2_core.backends.device_slots import FeatureSlots, Slot, SlotPool
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import open_session, run_session
from sam2_core.backends.onnxruntime_fusion import fused_model
from sam2_core.backends.onnxruntime_graph import FixedGraph, Shape, cuda_provider
from sam2_core.batching import bucket_for, gather
from sam2_core.library_messages import preload_cuda
from sam2_core.onnx_contract import BOX_POINTS, DECODED, FEATURES, PROMPTS, SCORES
from sam2_core.preprocess import resize_square
from sam2_core.types import (
    AutolabelError,
    BackendInfo,
    Features,
    ImageArray,
    LowResMasks,
    Prompts,
)

IMAGE_BUCKETS = (1, 2, 4)
CLOSE_UP_BUCKETS = (1, 8, 32, 64)
BOX_BUCKETS = (1, 8, 32, 64, 136)
logger = logging.getLogger(__name__)


class OnnxRuntimeCudaBackend:
    """A model folder on ONNX Runtime's CUDA provider.

    Any thread may call; a lock keeps calls apart.

    Args:
        folder: an exported model.
        device: a GPU.
        providers: ONNX Runtime's providers; CUDA on a stream of the device when None.
        where: name of the device's memory.
        fused: with ONNX Runtime's own operators (see `onnxruntime_fusion`), where it can.

    """

    def __init__(
        self,
        folder: ModelFolder,
        device: Device | None = None,
        providers: Sequence[Any] | None = None,
        where: str = "cuda",
        *,
        fused: bool = True,
    ) -> None:
        _preload(where)
        self.folder, self._fused = folder.pinned(), fused
        self._device = device or CudaDevice()
        self._lock = threading.Lock()
        self._stream = self._device.create_stream()
        self._providers = providers
        self._free: dict[str, Any] = {}
        self._where = where
        self._grid = folder.image_size // 4
        self._image_buckets = CLOSE_UP_BUCKETS if folder.close_ups else IMAGE_BUCKETS
        self._most_images = self._image_buckets[-1]
        self._graphs: dict[str, FixedGraph] = {}
        self._pinned: dict[int, SlotPool] = {}
        self._single = "decoder_single" if folder.has("decoder_single") else "decoder"
        feature_rows = self._feature_rows()
        self._encoder = self._graph("encoder", feature_rows)
        image_bytes = {
            name: math.prod(row) * self._encoder.tensors[name].dtype.itemsize
            for name, row in feature_rows.items()
        }
        self._features = FeatureSlots(self._device, self._stream, image_bytes)
        self._info = BackendInfo(
            self.folder.stamp("onnxruntime-cuda"), folder.image_size,
            ("CUDAExecutionProvider",), self._device.name, folder.close_ups,
        )  # fmt: skip

    @property
    def info(self) -> BackendInfo:
        """Stamp, input size and where it runs."""
        return self._info

    def _feature_rows(self) -> dict[str, Shape]:
        """Shapes of one image's features, which the decoder declares in full."""
        decoder = self._graph(self._single, {})
        return {name: decoder.tensors[name].row for name in FEATURES}

    def _graph(self, name: str, feature_rows: Mapping[str, Shape]) -> FixedGraph:
        if name not in self._graphs:
            images = 1 if "single" in name else self._most_images
            rows = dict.fromkeys((*PROMPTS, *DECODED), BOX_BUCKETS[-1])
            rows |= dict.fromkeys(("image", *FEATURES), images)
            shapes: dict[str, Shape] = {
                "points": (BOX_POINTS, 2), "labels": (BOX_POINTS,), **feature_rows,
                "logits": (1, self._grid, self._grid),
            }  # fmt: skip
            self._graphs[name] = FixedGraph(
                self._open(name), self._device, self._stream, self._where,
                rows=rows, row_shapes=shapes,
            )  # fmt: skip
            self.folder.unchanged()
        return self._graphs[name]

    def _open(self, name: str, *, captured: bool = True, fused: bool = True) -> Any:
        """Open a graph file; without CUDA graphs or fused operators where that is not possible."""
        path = self.folder.graph(name)
        if self._providers is not None:
            return open_session(path, None, self._providers)
        providers = cuda_provider(self._stream, captured=captured)
        model = fused_model(path) if fused and self._fused else None
        try:
            session = open_session(path, None, providers, model=model)
        except AutolabelError as error:
            if model is not None:
                logger.warning("%s runs without fused operators: %s", path, error)
                return self._open(name, captured=captured, fused=False)
            if not captured or "graph capture" not in str(error):
                raise
            logger.warning("%s runs without a CUDA graph: %s", path, error)
            return self._open(name, captured=False, fused=False)
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise AutolabelError(
                "ONNX Runtime could not load its CUDA provider: install the extra gpu "
                "(pip install 'sam2-autolabel[gpu]'), or choose --backend onnxruntime-cpu"
            )
        return session

    def _staged(self, nbytes: int) -> Slot:
        """Borrow pinned memory, in sizes of powers of two so that few pools serve all."""
        size = 1 << max(nbytes - 1, 1).bit_length()
        if size not in self._pinned:
            self._pinned[size] = SlotPool(self._device.allocate_pinned, size)
        return self._pinned[size].take()

    def _upload(
        self, graph: FixedGraph, name: str, values: Sequence[ImageArray] | npt.NDArray[Any]
    ) -> Slot:
        """Queue a copy of rows; those of a bucket behind them keep what they held."""
        tensor = graph.tensors[name]
        shape = (len(values), *values[0].shape)
        slot = self._staged(math.prod(shape) * tensor.dtype.itemsize)
        view = slot.as_array(tensor.dtype, shape)
        np.stack(list(values), out=view, casting="same_kind")
        self._device.copy(tensor.address, slot.address, view.nbytes, self._stream)
        return slot

    def encode(self, images: Sequence[ImageArray]) -> Features:
        """Encode B images, each uint8 (H, W, 3) RGB of any size."""
        size = self.folder.image_size
        squares = [resize_square(image, size) for image in images]
        encoded: list[dict[str, Slot]] = []
        with self._lock:
            for start in range(0, len(squares), self._most_images):
                encoded += self._encode(squares[start : start + self._most_images])
        return Features(encoded, len(images), tuple((i.shape[0], i.shape[1]) for i in images))

    def _encode(self, squares: Sequence[ImageArray]) -> list[dict[str, Slot]]:
        bucket = bucket_for(len(squares), self._image_buckets)
        slot = self._upload(self._encoder, "image", squares)
        self._encoder.run(dict.fromkeys(("image", *FEATURES), bucket))
        encoded = self._features.keep(self._encoder.tensors, len(squares))
        # The upload's memory lives as long as the features: by then the copy is long done.
        encoded[0]["image"] = slot
        return encoded

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts: boxes in captured graphs, points and mask prompts without."""
        if prompts.mask_logits is not None or prompts.labels.shape[1] != BOX_POINTS:
            with self._lock:
                return self._decode_freely(features, prompts)
        several = features.batch > 1
        graph = self._graph("decoder" if several else self._single, {})
        parts = []
        with self._lock:
            for first in range(0, features.batch, self._most_images):
                group = prompts.image_index // self._most_images == first // self._most_images
                rows = np.flatnonzero(group)
                for start in range(0, len(rows), BOX_BUCKETS[-1]):
                    some = rows[start : start + BOX_BUCKETS[-1]]
                    parts.append((some, self._decode(graph, features, prompts, some)))
        return gather(parts, len(prompts), self._grid)

    def _decode(
        self, graph: FixedGraph, features: Features, prompts: Prompts, rows: npt.NDArray[np.int64]
    ) -> LowResMasks:
        """Decode boxes of at most the largest image bucket's images, at most the largest bucket."""
        first = int(prompts.image_index[rows[0]]) // self._most_images * self._most_images
        shown = features.data[first : first + self._most_images]
        bucket = bucket_for(len(rows), BOX_BUCKETS)
        images = bucket_for(len(shown), self._image_buckets)
        padded = np.concatenate([rows, np.repeat(rows[-1:], bucket - len(rows))])
        for image, slots in enumerate(shown):
            self._features.place(slots, graph.tensors, image)
        given: tuple[npt.NDArray[Any], ...] = (
            prompts.points_model, prompts.labels, prompts.image_index - first,
        )  # fmt: skip
        kept = [
            self._upload(graph, name, values[padded])
            for name, values in zip(PROMPTS, given, strict=True)
            if name in graph.tensors
        ]
        graph.run({name: images if name in FEATURES else bucket for name in graph.tensors})
        outputs = {}
        for name in DECODED:
            tensor = graph.tensors[name]
            outputs[name] = self._download(tensor.address, tensor.dtype, (len(rows), *tensor.row))
        self._device.synchronize(self._stream)
        del kept
        return self._masks(outputs)

    def _download(self, address: int, dtype: np.dtype[Any], shape: Shape) -> npt.NDArray[Any]:
        """Queue a copy to pinned memory; wait for the stream before reading it."""
        nbytes = math.prod(shape) * dtype.itemsize
        array = self._staged(nbytes).as_array(dtype, shape)
        self._device.copy(array.ctypes.data, address, nbytes, self._stream)
        return array

    def _masks(self, outputs: Mapping[str, npt.NDArray[Any]]) -> LowResMasks:
        logits = outputs["logits"][:, 0]
        scores = [outputs[name].astype(np.float32) for name in SCORES]
        grid = (self._grid, self._grid)
        return LowResMasks(logits, np.zeros((len(logits), 2), np.int32), grid, *scores)

    def _decode_freely(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode any prompts: features go through the host, nothing is captured. Rarely used."""
        inputs: dict[str, Any] = {}
        for name in FEATURES:
            tensor = self._encoder.tensors[name]
            parts = [
                self._download(slots[name].address, tensor.dtype, tensor.row)
                for slots in features.data
            ]
            self._device.synchronize(self._stream)
            inputs[name] = np.stack(parts)
        inputs |= {
            "points": prompts.points_model.astype(np.float32),
            "labels": prompts.labels.astype(np.int32),
            "image_index": prompts.image_index.astype(np.int64),
        }
        name = "decoder"
        if prompts.mask_logits is not None:
            name = "decoder_mask"
            inputs["mask_input"] = prompts.mask_logits[:, None].astype(np.float32)
        if name not in self._free:
            self._free[name] = self._open(name, captured=False, fused=False)
        return self._masks(dict(zip(DECODED, run_session(self._free[name], DECODED, inputs),
                                    strict=True)))  # fmt: skip


def _preload(where: str) -> None:
    """Load CUDA's and cuDNN's libraries from their Python packages, where these are installed."""
    if where == "cuda":
        preload_cuda()
