"""Runs an exported model on TensorRT: features stay on the device, no allocation while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.backends.device_slots import FeatureSlots, Slot
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.protocol import Backend, BackendInfo, HostFeatures
from sam2_core.backends.tensorrt_calls import DecoderCall, DecoderEngines
from sam2_core.backends.tensorrt_loading import require_tensorrt
from sam2_core.backends.tensorrt_plan import split_into_buckets
from sam2_core.batching import no_masks, slice_prompts
from sam2_core.preprocess import StagedFrame, View, size_hw_of
from sam2_core.types import (
    BOX_POINTS,
    DECODED,
    FEATURES,
    SCORES,
    AutolabelError,
    DeviceMemoryError,
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    Prompts,
)

if TYPE_CHECKING:
    from sam2_core.backends.tensorrt_engine import LoadedEngine

Result = TypeVar("Result")


class TensorRTBackend(Backend):
    """Encoder and decoder engines on the stream of a GPU, beside the detector's.

    Any thread may call; the device's own thread does the work, because an engine's buffers are
    fixed, so that CUDA graphs never see a new address.

    Args:
        folder: an exported model, pinned.
        engine_paths: engines of its graphs, by their names.
        gpu: the process's.

    """

    def __init__(self, folder: ModelFolder, engine_paths: Mapping[str, Path], gpu: Gpu) -> None:
        require_tensorrt()
        from sam2_core.backends.tensorrt_build import full_version
        from sam2_core.backends.tensorrt_engine import load_engines

        self.folder, self._gpu = folder, gpu
        self._device, self._stream = gpu.device, gpu.stream
        engines = gpu.run(lambda: load_engines(engine_paths, gpu))
        self._encoder = engines["encoder"]
        self._image_buckets = self._encoder.buckets("image")
        self._decoders = DecoderEngines(engines, self._image_buckets, folder.path)
        self._features = FeatureSlots(self._device, self._stream, self._check_features())
        self._info = BackendInfo(
            folder.stamp(f"tensorrt-{full_version()}"),
            folder.image_size,
            ("TensorRT",),
            self._device.name,
            folder.close_ups,
        )

    @property
    def info(self) -> BackendInfo:
        """Stamp, input size and where it runs."""
        return self._info

    def _check_features(self) -> dict[str, int]:
        """Bytes of one image's features; both engines must agree on them."""
        most, most_read = self._image_buckets[-1], self._decoders.most_images
        nbytes = {}
        for name in FEATURES:
            made, read = self._encoder.tensors[name], self._decoders.several.tensors[name]
            nbytes[name] = made.nbytes // most
            if made.dtype != read.dtype or nbytes[name] != read.nbytes // most_read:
                raise AutolabelError(
                    f"{self.folder.path}: encoder and decoder do not fit together at {name!r}: "
                    "export the model again"
                )
        return nbytes

    def _on_device(self, work: Callable[[], Result]) -> Result:
        """Run on the device's thread; memory that nothing needs is released when it is too little.

        The engines keep theirs, without which they cannot run.
        """

        def releasing() -> Result:
            try:
                return work()
            except DeviceMemoryError:
                self._device.synchronize(self._stream)
                self._features.release_free()
                self._gpu.release_unused()
                raise

        return self._gpu.run(releasing)

    def warm_up(self, images: int = 1) -> None:
        """Create every bucket's context and CUDA graph, for features of this many images."""

        def warm() -> None:
            size = self.folder.image_size
            for count in self._image_buckets:
                self._encoder.warm_up({"image": (count, 3, size, size)})
            for call in self._decoders.box_calls(images):
                call.engine.warm_up(call.shapes(BOX_POINTS))

        self._on_device(warm)

    def stage(self, image: ImageArray) -> StagedFrame:
        """Copy a frame to page-locked memory, where the device cuts and resizes."""
        return self._gpu.stage(image)

    def staged(self, frame: StagedFrame) -> StagedFrame:
        """Return the frame with what the device has of it, where it was staged for this device."""
        return self._gpu.staged(frame)

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images: views of staged frames, or uint8 (H, W, 3) of any size."""
        size = self.folder.image_size
        given = [one if isinstance(one, View) else self.stage(one).whole() for one in images]
        target = self._encoder.tensors["image"].address
        encoded: list[dict[str, Slot]] = []

        def queue() -> None:
            kept = []
            for start, stop, bucket in split_into_buckets(len(given), self._image_buckets):
                kept.append(self._gpu.squares(given[start:stop], target, size))
                self._encoder.run({"image": (bucket, 3, size, size)})
                encoded.extend(self._features.keep(self._encoder.tensors, stop - start))
            # Pinned frames may be overwritten once they are on the device.
            self._device.synchronize(self._stream)

        self._on_device(queue)
        return Features(encoded, len(images), tuple(map(size_hw_of, images)))

    def features_to_host(self, features: Features) -> HostFeatures:
        """Copy features to this machine's memory, as they lie: uint8 (B, bytes)."""
        return self._on_device(lambda: self._copied(features))

    def _copied(self, features: Features) -> HostFeatures:
        found = {}
        for name in FEATURES:
            nbytes = features.data[0][name].nbytes
            host = self._gpu.pinned(nbytes * features.batch)
            for row, slots in enumerate(features.data):
                place = host.address + row * nbytes
                self._device.copy(place, slots[name].address, nbytes, self._stream)
            self._device.synchronize(self._stream)
            found[name] = host.as_array(np.uint8, (features.batch, nbytes)).copy()
        return found

    def features_from_host(
        self, arrays: HostFeatures, sizes_hw: Sequence[tuple[int, int]]
    ) -> Features:
        """Copy features to the device."""

        def queue() -> list[dict[str, Slot]]:
            encoded = []
            for row in range(len(sizes_hw)):
                encoded.append(slots := self._features.take())
                for name, slot in slots.items():
                    host = self._gpu.pinned(slot.nbytes)
                    np.copyto(host.as_array(np.uint8, (slot.nbytes,)), arrays[name][row])
                    self._device.copy(slot.address, host.address, slot.nbytes, self._stream)
                    self._device.synchronize(self._stream)  # pinned memory is reused
            return encoded

        return Features(self._on_device(queue), len(sizes_hw), tuple(sizes_hw))

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts; all that fit a bucket share a call."""
        grid = self.folder.image_size // 4
        count = len(prompts)
        if not count:
            return no_masks(grid)
        calls = list(self._decoders.calls(prompts))
        targets = self._on_device(lambda: self._decoded(features, prompts, calls))
        order = np.concatenate([call.rows for call in calls])
        decoded = {name: array[:count] for name, array in targets.items()}
        if not np.array_equal(order, np.arange(count)):
            place = np.argsort(order)
            decoded = {name: array[place] for name, array in decoded.items()}
        scores = [decoded[name].reshape(count).astype(np.float32) for name in SCORES]
        origin = np.zeros((count, 2), np.int32)
        return LowResMasks(decoded["logits"][:, 0], origin, (grid, grid), *scores)

    def _decoded(
        self, features: Features, prompts: Prompts, calls: Sequence[DecoderCall]
    ) -> dict[str, npt.NDArray[Any]]:
        """Run calls one after another; everything is enqueued first."""
        targets = self._targets(calls, len(prompts))
        kept = []  # slots live until the stream is done with them
        start = 0
        for call in calls:
            kept.append(self._enqueue(features, prompts, call, targets, start))
            start += len(call.rows)
        self._device.synchronize(self._stream)
        return targets

    def _targets(self, calls: Sequence[DecoderCall], count: int) -> dict[str, npt.NDArray[Any]]:
        """Pinned arrays that hold the outputs of all calls one after the other, on loan."""
        engine = calls[0].engine
        largest = max(*self._decoders.box_buckets, engine.most_free("points"))
        rows = -(-count // largest) * largest
        arrays = {}
        for name in DECODED:
            tensor = engine.tensors[name]
            shape = (rows, *engine.row_shape(name))
            slot = self._gpu.pinned(math.prod(shape) * tensor.dtype.itemsize)
            arrays[name] = slot.as_array(tensor.dtype, shape)
        return arrays

    def _enqueue(
        self,
        features: Features,
        prompts: Prompts,
        call: DecoderCall,
        targets: Mapping[str, npt.NDArray[Any]],
        start: int,
    ) -> list[Slot]:
        """Put one call on the stream; its outputs go to rows from `start` of the targets."""
        missing = call.bucket - len(call.rows)
        padded = np.concatenate([call.rows, np.repeat(call.rows[-1:], missing)])
        chosen = slice_prompts(prompts, padded)
        for position in range(call.image_bucket):
            slots = features.data[call.images[min(position, len(call.images) - 1)]]
            self._features.place(slots, call.engine.tensors, position)
        inputs: dict[str, npt.NDArray[Any]] = {
            "points": chosen.points_model,
            "labels": chosen.labels,
            "image_index": np.searchsorted(call.images, chosen.image_index),
        }
        if chosen.mask_logits is not None:
            inputs["mask_input"] = chosen.mask_logits[:, None]
        kept = [
            self._upload(call.engine, name, values)
            for name, values in inputs.items()
            if name in call.engine.tensors
        ]
        call.engine.run(call.shapes(chosen.labels.shape[1]))
        for name, array in targets.items():
            rows = array[start : start + len(call.rows)]
            source = call.engine.tensors[name].address
            self._device.copy(rows.ctypes.data, source, rows.nbytes, self._stream)
        return kept

    def _upload(self, engine: LoadedEngine, name: str, values: npt.NDArray[Any]) -> Slot:
        tensor = engine.tensors[name]
        slot = self._gpu.pinned(tensor.nbytes)
        view = slot.as_array(tensor.dtype, values.shape)
        view[...] = values
        self._device.copy(tensor.address, slot.address, view.nbytes, self._stream)
        return slot
