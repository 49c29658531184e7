"""Runs the PyTorch modules: eager as the reference, compiled and captured on a GPU for speed.

On a GPU the modules are compiled for fixed sizes (numbers of images and prompts in buckets) and
each size is captured once as a CUDA graph. Work is only queued: frames are uploaded as uint8 from
pinned memory, cut and resized there, and results copied back, on streams of their own; an
event tells when they are there, so the device goes on with the next frame meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from sam2_core.backends.device_owner import DEVICE_OWNER
from sam2_core.backends.gpu import opened_gpu
from sam2_core.backends.model_folder import CLOSE_UPS
from sam2_core.backends.protocol import Backend, BackendInfo, Later
from sam2_core.backends.torch_compiled import (
    BOX_BUCKETS,
    BOX_LABELS,
    CLOSE_UP_BUCKETS,
    IMAGE_BUCKETS,
    CompiledBuckets,
    Tensors,
    build_modules,
    modules_for,
    out_of_memory,
    streams_of,
)
from sam2_core.batching import bucket_for
from sam2_core.cache import cache_folder
from sam2_core.find_weights import Wanted, Weights
from sam2_core.labels_version import LABELS_VERSION
from sam2_core.preprocess import StagedFrame, View, checked_image, planes_of, resize_square
from sam2_core.types import (
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    ModelStamp,
    Prompts,
)


def page_locked(arrays: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
    """Stack arrays of one shape in page-locked memory, from which uploads are asynchronous."""
    dtype = torch.from_numpy(np.empty(0, arrays[0].dtype)).dtype
    target = torch.empty((len(arrays), *arrays[0].shape), dtype=dtype, pin_memory=True)
    np.stack(arrays, out=target.numpy())
    return target


# CUDA's kernel keeps its weights in shared memory, which ends at a factor of 94.
MOST_SHRUNK = 32


@dataclass(eq=False)
class _PageLockedFrame(StagedFrame):
    """A staged frame, and the tensor over the same bytes that uploads start from."""

    tensor: torch.Tensor = field(kw_only=True, repr=False)


class TorchPixels:
    """Stages frames and cuts squares out of them.

    Args:
        device: where squares are made; on a CPU the same code serves tests.

    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"

    def stage(self, image: ImageArray) -> StagedFrame:
        """Copy a decoded frame, uint8 (H, W, 3) RGB, to page-locked memory; on any thread.

        Raises:
            ValueError: it is no such frame.

        """
        checked_image(image)
        tensor = torch.empty(image.shape, dtype=torch.uint8, pin_memory=self._on_gpu)
        pixels = tensor.numpy()
        np.copyto(pixels, image)
        return _PageLockedFrame(pixels, self, tensor=tensor)

    def given(self, image: EncoderImage, size: int, *, cuts: bool) -> View | torch.Tensor:
        """Return an image as `squares` takes it; on any thread, ahead of the device.

        Args:
            image: a view of a staged frame, uint8 (H, W, 3) of any size, or a square.
            size: side of the squares in pixels.
            cuts: whether the device resizes; else it is done here.

        """
        pixels = image.cut() if isinstance(image, View) else image
        cuts = cuts and pixels.dtype == np.uint8 and max(pixels.shape) <= MOST_SHRUNK * size
        if not cuts:
            square = resize_square(pixels, size)
            if self._on_gpu:
                return page_locked([square.transpose(2, 0, 1)])
            return torch.from_numpy(planes_of([square]))
        staged = isinstance(image, View) and image.frame.gpu is self
        return image if staged else self.stage(pixels).whole()

    def squares(self, given: Sequence[View | torch.Tensor], size: int) -> torch.Tensor:
        """Return float32 (B, 3, size, size), 0..255; on the device's thread and current stream.

        What is allocated stays with that stream: the caller waits for it, or records another one.

        Raises:
            torch.OutOfMemoryError: no memory is left; frames' copies on the device are released.

        """
        try:
            return torch.cat([self._square(image, size) for image in given])
        except torch.OutOfMemoryError:
            for image in given:
                if isinstance(image, View):
                    image.frame.on_device = None
            raise

    def _square(self, given: View | torch.Tensor, size: int) -> torch.Tensor:
        if isinstance(given, torch.Tensor):
            return given.to(self._device, non_blocking=True)
        left, top, right, bottom = given.region_xyxy_px
        cut = self._uploaded(given.frame)[top:bottom, left:right].permute(2, 0, 1)[None]
        # Planes one behind another: CUDA's kernel has not always read other layouts as they are.
        planes = cut.to(torch.float32, memory_format=torch.contiguous_format)
        return F.interpolate(planes, (size, size), mode="bilinear", antialias=True)

    def _uploaded(self, frame: StagedFrame) -> torch.Tensor:
        """Return a frame's bytes on the device, uploaded when a view is first needed."""
        if frame.on_device is None:
            assert isinstance(frame, _PageLockedFrame)  # noqa: S101 - `given` sees to it
            frame.on_device = frame.tensor.to(self._device, non_blocking=True)
        return frame.on_device


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
        self._device = torch.device(device)
        self._owner = DEVICE_OWNER
        self._graphs: CompiledBuckets | None = None
        on_gpu = device.startswith("cuda")
        build = partial(build_modules, model, wanted.graph, dtype, device)
        if on_gpu:
            self._owner.run(self._open_device)
        self._modules = self._on_device(build) if on_gpu else build()
        if compiled:
            folder = cache_folder(wanted.cache) / "torch"
            about = {"preset": repr(preset), "graph": wanted.graph, "precision": wanted.precision}
            sizes = (preset.image_size, CLOSE_UP_BUCKETS if close_ups else IMAGE_BUCKETS)
            self._graphs = CompiledBuckets(self._modules, folder, about, sizes, self._stream)
        self._pixels = TorchPixels(self._device)
        # Whether the device cuts and resizes; a CPU's frames are resized by Pillow.
        self._cuts = on_gpu
        how = "compiled" if compiled else "eager"
        self.info = BackendInfo(
            ModelStamp(
                name=f"{preset.name}/{CLOSE_UPS if close_ups else wanted.graph}",
                checkpoint_sha256=weights.sha256,
                engine_sha256=weights.sha256,
                backend=f"torch-{how}-{torch.__version__}",
                precision=wanted.precision,
                code_version=LABELS_VERSION,
            ),
            image_size=preset.image_size,
            device=torch.cuda.get_device_name(self._device) if on_gpu else "cpu",
            close_ups=close_ups,
        )

    def stage(self, image: ImageArray) -> StagedFrame | None:
        """Copy a frame to page-locked memory, where the device cuts and resizes."""
        return self._owner.beside(partial(self._pixels.stage, image)) if self._cuts else None

    def _open_device(self) -> None:
        # By itself PyTorch lets convolutions, not matrix products, round float32 to TF32.
        torch.backends.cudnn.allow_tf32 = False
        self._stream, self._uploads, self._copies = streams_of(torch.cuda.current_device())

    def warm_up(self) -> None:
        """Load and capture whatever was compiled before, on this machine, for this model.

        What was not is compiled when a frame needs it, half a minute each; guesses would cost that.
        """
        if self._graphs is None:
            return
        graphs = self._graphs
        # One by one: what the first frames need comes between.
        for images in graphs.image_buckets:
            encoded = self._on_device(partial(graphs.warm, graphs.encoder(images)))
            if encoded is None:
                continue
            for boxes in BOX_BUCKETS:
                decoder = graphs.decoder(Features(encoded, images), boxes)
                self._on_device(partial(graphs.warm, decoder))

    @torch.no_grad()
    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images: views of staged frames, or uint8 (H, W, 3) of any size, or squares."""
        size = self.info.image_size

        def ahead() -> list[View | torch.Tensor]:
            return [self._pixels.given(image, size, cuts=self._cuts) for image in images]

        if self._device.type == "cpu":
            data = self._modules.encoder(self._pixels.squares(ahead(), size))
        else:
            data = self._on_device(partial(self._encode_cuda, self._owner.beside(ahead)))
        return Features(data, len(images))

    def _on_device(self, work: Callable[[], Result]) -> Result:
        """Run on the device's thread and stream; buffers are released when memory runs out."""

        @torch.no_grad()
        def queued() -> Result:
            try:
                with torch.cuda.stream(self._stream):
                    return work()
            except torch.OutOfMemoryError as error:
                if self._graphs is not None:
                    self._graphs.release()
                if (gpu := opened_gpu()) is not None:  # the detector's
                    gpu.release_unused()
                raise out_of_memory(error) from error

        return self._owner.run(queued)

    def _encode_cuda(self, given: Sequence[View | torch.Tensor]) -> Tensors:
        # Beside what the device still does for others; and a stream that is never captured, because
        # page-locked memory is given back, and its stream asked, on any thread at any time.
        with torch.cuda.stream(self._uploads):
            images = self._pixels.squares(given, self.info.image_size)
        self._stream.wait_stream(self._uploads)
        images.record_stream(self._stream)
        if self._graphs is None:
            return self._modules.encoder(images)
        count = len(images)
        graph = self._graphs.made(self._graphs.encoder(count))
        graph.inputs[0][:count].copy_(images)
        graph.graph.replay()
        # The graph's outputs are overwritten by its next run; the copy costs microseconds.
        return tuple(output[:count].clone() for output in graph.outputs)

    @torch.no_grad()
    def decode_later(self, features: Features, prompts: Prompts) -> Later:
        """Queue P prompts; the result is waited for where it is needed."""
        if self._device.type == "cpu":
            outputs = self._run(features, prompts, self._prompt_tensors(prompts))
            logits, scores = (output.numpy() for output in outputs)
            decoded = LowResMasks(logits, *scores)
            return lambda: decoded
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

    def _decode_cuda(self, features: Features, prompts: Prompts) -> Later:
        count = len(prompts)
        boxes = prompts.labels.shape[1] == len(BOX_LABELS) and prompts.mask_logits is None
        if self._graphs is not None and boxes:
            bucket = bucket_for(count, BOX_BUCKETS)
            graph = self._graphs.made(self._graphs.decoder(features, bucket))
            for target, value in zip(graph.inputs[:3], features.data, strict=True):
                target[: features.batch].copy_(value, non_blocking=True)
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
        return self._download(outputs)

    def _download(self, outputs: Sequence[torch.Tensor]) -> Later:
        """Copy results to pinned memory behind the computation, beside what comes next."""
        self._copies.wait_stream(self._stream)
        with torch.cuda.stream(self._copies):
            hosts = []
            for output in outputs:
                host = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
                host.copy_(output, non_blocking=True)
                output.record_stream(self._copies)
                hosts.append(host)
            done = torch.cuda.Event(blocking=True)  # who waits sleeps; else it keeps a core busy
            done.record(self._copies)

        def fetch() -> LowResMasks:
            self._owner.wait(done.synchronize)
            logits, scores = (host.numpy() for host in hosts)
            return LowResMasks(logits, *scores)

        return fetch


def load_torch(weights: Weights, wanted: Wanted, close_ups: bool | None = False) -> TorchBackend:
    """Load weights on the GPU, compiled, or on the CPU, eager."""
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    return TorchBackend(weights, wanted, device, compiled=on_gpu, close_ups=close_ups)
