"""Runs the PyTorch modules: eager as the reference, compiled and captured on a GPU for speed.

On a GPU the modules are compiled for fixed sizes (numbers of images and prompts in buckets) and
each size is captured once as a CUDA graph. Work is only queued: frames are uploaded as uint8 from
pinned memory and results copied to it on streams of their own, and whoever needs them waits for an
event, so the device goes on with the next frame meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from sam2_core.backends.device_owner import device_owner
from sam2_core.backends.model_folder import CLOSE_UPS
from sam2_core.backends.protocol import Backend, BackendInfo, PendingMasks
from sam2_core.backends.torch_captured import (
    Captured,
    Tensors,
    bucket_for,
    compute_stream,
    out_of_memory,
)
from sam2_core.backends.torch_compiled import CompiledModules
from sam2_core.backends.torch_modules import build_modules, modules_for
from sam2_core.backends.torch_staging import page_locked, uploads
from sam2_core.cache import cache_folder
from sam2_core.decisive_code import mask_code
from sam2_core.preprocess import planes_of, resize_square
from sam2_core.resolve import Wanted, Weights
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_PADDING,
    EncoderImage,
    Features,
    LowResMasks,
    ModelStamp,
    Prompts,
    SquareArray,
)

IMAGE_BUCKETS = (1, 2, 4, 8)
CLOSE_UP_BUCKETS = (8, 32, 64)
BOX_BUCKETS = (8, 32, 64, 96, 136, 256)
_BOX = (BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING)
Result = TypeVar("Result")


class TorchBackend(Backend):
    """PyTorch modules on a CPU or a GPU.

    Args:
        weights: what to load.
        wanted: precision and graph.
        device: "cpu" or "cuda".
        compiled: compile and capture for fixed sizes; GPU only.
        close_ups: take each box in a crop of its own; None: where the preset has a size for them.

    """

    def __init__(
        self,
        weights: Weights,
        wanted: Wanted,
        device: str = "cpu",
        *,
        compiled: bool = False,
        close_ups: bool | None = False,
    ) -> None:
        dtype = torch.float16 if wanted.precision == "fp16" else torch.float32
        model, close_ups = modules_for(weights.load(), wanted.graph, close_ups)
        preset = model.preset
        self._image_buckets = CLOSE_UP_BUCKETS if close_ups else IMAGE_BUCKETS
        self._modules = build_modules(model, wanted.graph, dtype, device)
        self._device, self._compiled = torch.device(device), compiled
        self._owner = device_owner()
        self._graphs: dict[tuple[str, int, int], Captured] = {}
        self._last: tuple[Captured, Features] | None = None
        on_gpu = device.startswith("cuda")
        if on_gpu:
            self._stream = compute_stream(torch.cuda.current_device())
            self._uploads, self._copies = torch.cuda.Stream(), torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()
        if compiled:
            folder = cache_folder(wanted.cache) / "torch"
            about = {"preset": repr(preset), "graph": wanted.graph, "precision": wanted.precision}
            self._functions = CompiledModules(folder, about, self._device)
        how = "compiled" if compiled else "eager"
        self._info = BackendInfo(
            ModelStamp(
                name=f"{preset.name}/{CLOSE_UPS if close_ups else wanted.graph}",
                checkpoint_sha256=weights.sha256,
                engine_sha256=weights.sha256,
                backend=f"torch-{how}-{torch.__version__}",
                precision=wanted.precision,
                code_version=mask_code("torch"),
            ),
            image_size=preset.image_size,
            providers=(f"torch {torch.__version__} {how}",),
            device=torch.cuda.get_device_name(self._device) if on_gpu else "cpu",
            close_ups=close_ups,
        )

    @property
    def info(self) -> BackendInfo:
        """Stamp, input size and where it runs."""
        return self._info

    def stage_square(self, square: SquareArray) -> SquareArray:
        """Copy a square to page-locked memory, ahead and on any thread; `encode` need not then.

        The device would wait for that copy, 12 MB for a whole frame. On a CPU: the image itself.
        """
        if self._device.type != "cuda":
            return square
        staged: SquareArray = page_locked([square.transpose(2, 0, 1)])[0].numpy()
        return staged.transpose(1, 2, 0)

    @torch.no_grad()
    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images, each uint8 (H, W, 3) RGB of any size, or squares."""
        size = self._info.image_size
        squares = [resize_square(image, size) for image in images]
        sizes = tuple((image.shape[0], image.shape[1]) for image in images)
        if self._device.type == "cpu":
            batch = torch.from_numpy(planes_of(squares))
            return Features(self._modules.encoder(batch), len(images), sizes)
        batches = uploads([square.transpose(2, 0, 1) for square in squares])
        return Features(self._on_device(partial(self._encode_cuda, batches)), len(images), sizes)

    def _on_device(self, work: Callable[[], Result]) -> Result:
        """Run on the device's thread and stream; buffers are released when memory runs out."""

        @torch.no_grad()
        def queued() -> Result:
            try:
                with torch.cuda.stream(self._stream):
                    return work()
            except torch.OutOfMemoryError as error:
                self._last = None
                self._graphs.clear()
                raise out_of_memory(error) from error

        found: Result = self._owner.run(queued)
        return found

    def _encode_cuda(self, batches: Tensors) -> Tensors:
        # Beside what the device still does for others; and a stream that is never captured, because
        # page-locked memory is given back, and its stream asked, on any thread at any time.
        with torch.cuda.stream(self._uploads):
            images = torch.cat([b.to(self._device, non_blocking=True) for b in batches])
        self._stream.wait_stream(self._uploads)
        images.record_stream(self._stream)
        if not self._compiled:
            outputs: Tensors = self._modules.encoder(images)
            return outputs
        count = len(images)
        graph = self._encoder_graph(bucket_for(count, self._image_buckets))
        graph.inputs[0][:count].copy_(images)
        graph.graph.replay()
        # The graph's outputs are overwritten by its next run; the copy costs microseconds.
        return tuple(output[:count].clone() for output in graph.outputs)

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts in one call."""
        return self.decode_later(features, prompts).wait()

    @torch.no_grad()
    def decode_later(self, features: Features, prompts: Prompts) -> PendingMasks:
        """Queue P prompts; the result is waited for by whoever needs it."""
        if self._device.type == "cpu":
            outputs = self._run(features, prompts, self._prompt_tensors(prompts))
            decoded = self._masks(*(output.numpy() for output in outputs))
            return PendingMasks(len(prompts), lambda: decoded)
        return self._on_device(partial(self._decode_cuda, features, prompts))

    def _run(
        self, features: Features, prompts: Prompts, given: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Decode as called, without a graph: any number of points, and mask prompts."""
        modules = self._modules
        decoder = modules.decoder_single if features.batch == 1 else modules.decoder
        if prompts.mask_logits is not None:
            decoder = modules.decoder_masks
        return list(decoder(*features.data, *given))

    def _prompt_tensors(self, prompts: Prompts, bucket: int = 0) -> list[torch.Tensor]:
        extra = max(bucket - len(prompts), 0)
        arrays: list[np.ndarray[Any, Any]] = [
            np.pad(prompts.points_model.astype(np.float32), ((0, extra), (0, 0), (0, 0))),
            np.pad(prompts.labels.astype(np.int32), ((0, extra), (0, 0)), constant_values=-1),
            np.pad(prompts.image_index.astype(np.int64), (0, extra)),
        ]
        if prompts.mask_logits is not None:
            arrays.append(prompts.mask_logits[:, None].astype(np.float32))
        if self._device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        return [page_locked([array])[0] for array in arrays]

    def _decode_cuda(self, features: Features, prompts: Prompts) -> PendingMasks:
        count = len(prompts)
        boxes = prompts.labels.shape[1] == len(_BOX) and prompts.mask_logits is None
        if self._compiled and boxes:
            bucket = bucket_for(count, BOX_BUCKETS)
            graph = self._decoder_graph(features, bucket)
            self._load_features(graph, features)
            for target, given in zip(
                graph.inputs[3:], self._prompt_tensors(prompts, bucket), strict=True
            ):
                target.copy_(given, non_blocking=True)
            graph.graph.replay()
            outputs = [graph.outputs[0][:count].clone(), graph.outputs[1][:, :count].clone()]
        else:
            given = [
                tensor.to(self._device, non_blocking=True)
                for tensor in self._prompt_tensors(prompts)
            ]
            outputs = self._run(features, prompts, given)
        return self._download(outputs, count)

    def _load_features(self, graph: Captured, features: Features) -> None:
        """Copy features into a graph's inputs, unless the last call already did."""
        if self._last is not None and self._last[0] is graph and self._last[1] is features:
            return
        for target, value in zip(graph.inputs[:3], features.data, strict=True):
            target[: features.batch].copy_(value, non_blocking=True)
        self._last = (graph, features)

    def _download(self, outputs: Sequence[torch.Tensor], count: int) -> PendingMasks:
        """Copy results to pinned memory behind the computation, beside what comes next."""
        self._copies.wait_stream(self._stream)
        with torch.cuda.stream(self._copies):
            hosts = []
            for output in outputs:
                host = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
                host.copy_(output, non_blocking=True)
                output.record_stream(self._copies)
                hosts.append(host)
            done = torch.cuda.Event()
            done.record(self._copies)

        def fetch() -> LowResMasks:
            self._owner.wait(done.synchronize)
            return self._masks(*(host.numpy() for host in hosts))

        return PendingMasks(count, fetch)

    def _masks(self, logits: Any, scores: Any) -> LowResMasks:
        origin = np.zeros((len(logits), 2), np.int32)
        grid = (logits.shape[1], logits.shape[2])
        return LowResMasks(logits, origin, grid, scores[0], scores[1], scores[2])

    def _encoder_graph(self, images: int) -> Captured:
        def inputs() -> Tensors:
            size = self._info.image_size
            return (torch.zeros(images, 3, size, size, device=self._device),)

        return self._captured(("encoder", images, 0), self._modules.encoder, inputs)

    def _decoder_graph(self, features: Features, prompts: int) -> Captured:
        images = bucket_for(features.batch, self._image_buckets)

        def inputs() -> Tensors:
            zeros = partial(torch.zeros, device=self._device)
            return (
                *(zeros((images, *part.shape[1:]), dtype=part.dtype) for part in features.data),
                zeros((prompts, len(_BOX), 2), dtype=torch.float32),
                torch.tensor([_BOX] * prompts, dtype=torch.int32, device=self._device),
                zeros(prompts, dtype=torch.int64),
            )

        modules = self._modules
        decoder = modules.decoder_single if images == 1 else modules.decoder
        return self._captured(("decoder", images, prompts), decoder, inputs)

    def _captured(
        self, key: tuple[str, int, int], module: torch.nn.Module, inputs: Callable[[], Tensors]
    ) -> Captured:
        if key not in self._graphs:
            examples = inputs()
            function = self._functions.function("-".join(map(str, key)), module, examples)
            self._graphs[key] = Captured(function, examples, self._stream, self._pool)
        return self._graphs[key]


def load_torch(weights: Weights, wanted: Wanted, close_ups: bool | None = False) -> TorchBackend:
    """Load weights on the GPU, compiled, or on the CPU, eager."""
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    return TorchBackend(weights, wanted, device, compiled=on_gpu, close_ups=close_ups)
