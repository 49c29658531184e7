"""A model's modules, published or restructured; compiled and captured for buckets on a GPU.

`torch.compile` keeps what it makes in the cache folder (Inductor's own cache, which other weights
of the same model share): a size is compiled once on a machine, half a minute, and later processes
trace the module and load the rest, a few seconds. Processes that start together on an empty cache
wait for the one that compiles. A file for each size that was compiled lets a process prepare those
that labeling needs before its first frame.
"""

import functools
import hashlib
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.lean_attention import SharedLayer
from sam2_core.architecture.lean_decoder import LeanDecoder
from sam2_core.architecture.lean_encoder import LeanEncoder
from sam2_core.architecture.model import (
    REPORTED_DELTA,
    Sam2,
    at_size,
    cast,
    select_mask,
    stability,
)
from sam2_core.architecture.published import PublishedEncoder
from sam2_core.backends.device_owner import DEVICE_OWNER, is_sticky
from sam2_core.backends.model_folder import close_up_size
from sam2_core.batching import bucket_for
from sam2_core.cache import make_folder, only_one
from sam2_core.labels_version import LABELS_VERSION
from sam2_core.machine_errors import causes, first_line
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_PADDING,
    AutolabelError,
    DeviceLostError,
    DeviceMemoryError,
    Features,
    MachineError,
)


class Chosen(nn.Module):
    """A decoder reduced to what leaves the device: the chosen mask, its scores in one tensor."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (P, G, G) and float32 (3, P): predicted IoU, object score, stability."""
        logits, iou, score = self.decoder(*inputs)
        chosen, chosen_iou = select_mask(logits, iou)
        steady = stability(chosen, REPORTED_DELTA)[:, 0]
        return chosen[:, 0], torch.stack([chosen_iou.float(), score.float(), steady])


class OneImageLayer(nn.Module):
    """A `SharedLayer` for prompts of one image: all their tokens are one long sequence.

    Batched over prompts, the image's keys and values would be copied for each of them: 142 MB each
    at 136 prompts, 0.9 of the decoder's 4.6 ms on an H200.
    """

    def __init__(self, shared: SharedLayer) -> None:
        super().__init__()
        self.shared = shared

    def _by_head(self, x: Tensor) -> Tensor:
        """(1, N, h * d) -> (h, N, d)."""
        return self.shared.look.by_head(x)

    def forward(
        self, prompt: Tensor, image: Tensor, position: Tensor, _index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(P, T, w), (1, N, w) twice, (P,) -> tokens (P, T, w) and image (P, N, w), updated."""
        shared = self.shared
        layer, placed = shared.layer, image + position
        tokens = layer.update_tokens(prompt, prompt)
        prompts, count = tokens.shape[:2]
        queries = self._by_head(shared.look.inner(tokens + prompt).to(image.dtype))
        keys = self._by_head(shared.keys(placed))
        values = self._by_head(shared.image_values(image))
        looked = F.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=1.0)
        looked = looked[0].transpose(0, 1).reshape(prompts, count, -1).to(tokens.dtype)
        tokens = layer.norm2(tokens + shared.look.out(looked))
        tokens = layer.norm3(tokens + layer.mlp(tokens))
        update = shared.image_update(tokens, prompt, shared.image_queries(placed))
        return tokens, shared.norm(image + update)


@dataclass(frozen=True)
class Modules:
    """What a backend calls; all in evaluation mode on one device.

    Attributes:
        encoder: float32 (B, 3, S, S) to three feature tensors.
        decoder: features, points, labels, image index to a chosen mask (see `Chosen`).
        decoder_single: the same for features of one image.
        decoder_masks: the same with mask prompts.

    """

    encoder: nn.Module
    decoder: nn.Module
    decoder_single: nn.Module
    decoder_masks: nn.Module


def modules_for(model: Sam2, graph: str, close_ups: bool | None) -> tuple[Sam2, bool]:
    """Return the model at the input size that is wanted, and whether that is of close-ups.

    Raises:
        AutolabelError: close-ups are wanted, and there is no size for them.

    """
    size = close_up_size(model.preset, graph)
    if close_ups and not size:
        raise AutolabelError(f"{model.preset.name}/{graph} has no close-ups: use whole frames")
    if close_ups is False or not size:
        return model, False
    return at_size(model, size), True


def build_modules(model: Sam2, graph: str, dtype: torch.dtype, device: str) -> Modules:
    """Build the modules of a model; the model must not be used afterwards."""
    model = model.eval()
    parts: list[nn.Module]
    if graph == "published":
        parts = [PublishedEncoder(model), model, model, model]
    else:
        single = LeanDecoder(model, baked=True)
        single.first = OneImageLayer(single.first)
        masked = LeanDecoder(model, masked=True, baked=True)
        parts = [LeanEncoder(model, fused=True), LeanDecoder(model, baked=True), single, masked]
    # Folded in float32, cast afterwards.
    encoder, *decoders = (cast(part.eval(), dtype).to(device) for part in parts)
    return Modules(encoder, *(Chosen(decoder).eval() for decoder in decoders))


logger = logging.getLogger(__name__)

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
Tensors = tuple[torch.Tensor, ...]
IMAGE_BUCKETS = (1, 2, 4, 8)
CLOSE_UP_BUCKETS = (8, 32, 64)
BOX_BUCKETS = (8, 32, 64, 96, 136, 256)
BOX_LABELS = (BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING)


@functools.cache
def streams_of(device: int) -> list[torch.cuda.Stream]:
    """Return what all models of a process compute on, upload frames on, and copy results back on.

    cuBLAS keeps 33 MiB for every stream that it has seen, and never gives them back: with a stream
    of its own, each model that is loaded and released would cost that. And PyTorch has 32 streams,
    which it hands out in turn: the sixteenth model's copies would be on the one that is captured.

    Args:
        device: its index.

    """
    return [torch.cuda.Stream(device) for _ in range(3)]


class Captured:
    """A function of fixed shapes as a CUDA graph over its own input and output tensors."""

    def __init__(
        self, function: Callable[..., Any], inputs: Tensors, stream: torch.cuda.Stream, pool: Any
    ) -> None:
        self.inputs = inputs
        self._function = function  # its weights must stay where they are
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # loads kernels, and lets libraries allocate their workspaces
                function(*inputs)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        mode = "thread_local"  # other threads may take page-locked memory meanwhile
        with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode=mode):
            outputs = function(*inputs)
        self.outputs: Tensors = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


class Bucket(NamedTuple):
    """A module and the sizes that it is captured for.

    Attributes:
        key: its name and two sizes, of images and boxes or of prompts and objects.
        module: it.
        inputs: makes inputs of these sizes.
        any_rows: compiled once for all lengths, two at least, of those inputs that are longer than
            one; captured for each.

    """

    key: tuple[str, int, int]
    module: torch.nn.Module
    inputs: Callable[[], Tensors]
    any_rows: bool = False

    @property
    def name(self) -> str:
        """What is compiled."""
        return "-".join(map(str, self.key[:2] if self.any_rows else self.key))


class Graphs:
    """Captured modules, each made when it is first needed; on the device's thread.

    Args:
        device: of the modules.
        folder: where the compiler keeps what it makes, a part of the cache folder.
        about: what a compiled size depends on beside PyTorch, this code and the device.
        stream: what is captured is captured on it.

    """

    def __init__(
        self, device: torch.device, folder: Path, about: Mapping[str, str],
        stream: torch.cuda.Stream,
    ) -> None:  # fmt: skip
        self._device, self._folder = device, folder
        self._stream, self._pool = stream, torch.cuda.graph_pool_handle()
        facts = [torch.__version__, torch.version.cuda, LABELS_VERSION, sorted(about.items())]
        facts.append(torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu")
        self._facts = hashlib.sha256(repr(facts).encode()).hexdigest()[:20]
        self.captured: dict[tuple[str, int, int], Captured] = {}
        self._functions: dict[str, Callable[..., Tensors]] = {}

    def release(self) -> None:
        """Give memory back; what is captured afterwards gets memory of its own.

        While somebody holds what a graph has made, PyTorch refuses to capture into the memory of
        graphs that are gone ("INTERNAL ASSERT FAILED").
        """
        self.captured.clear()
        self._pool = torch.cuda.graph_pool_handle()

    def warm(self, bucket: Bucket) -> Tensors | None:
        """Capture what was compiled before, on this machine; its outputs, None where it was not."""
        return self.made(bucket).outputs if self._file(bucket).exists() else None

    def _file(self, bucket: Bucket) -> Path:
        """Return the empty file that says that a size was compiled before."""
        return self._folder / f"{bucket.name}-{self._facts}.compiled"

    def made(self, bucket: Bucket) -> Captured:
        """Return a module for its sizes, compiled and captured the first time."""
        if bucket.key not in self.captured:
            examples = bucket.inputs()
            function = self._compiled(bucket, examples)
            with DEVICE_OWNER.capturing():
                self.captured[bucket.key] = self._captured(function, examples)
        return self.captured[bucket.key]

    def _compiled(self, bucket: Bucket, examples: Tensors) -> Callable[..., Tensors]:
        """Compile a module for inputs of these shapes, or load what was compiled before.

        Raises:
            MachineError: the compiler fails here.
            torch.OutOfMemoryError: the device's memory does not suffice.

        """
        if bucket.any_rows:
            for example in examples:
                if len(example) > 1:
                    torch._dynamo.mark_dynamic(example, 0)
        compiled, name = self._file(bucket), bucket.name
        known = name in self._functions  # a compiled module has no truth: `len` of it raises
        if known:
            function = self._functions[name]
        else:
            self._prepare_compiler()
            dynamic = None if bucket.any_rows else False
            function = torch.compile(bucket.module, dynamic=dynamic)
        waiting = partial(logger.warning, "waiting for another process, which compiles the model")
        try:
            if known or compiled.exists():
                function(*examples)
            else:
                with only_one(self._folder / f".{compiled.name}.lock", waiting):
                    if not compiled.exists():
                        logger.warning(
                            "compiling the mask model for this GPU (%s), up to half a minute for "
                            "each size of its inputs; later starts load it from %s",
                            name, self._folder,
                        )  # fmt: skip
                    function(*examples)
                    compiled.touch()
        except Exception as error:
            _raise_of_device(error)
            raise MachineError(
                f"PyTorch cannot compile the mask model on this machine: {first_line(error)} (it "
                "needs gcc and g++, or what CC and CXX name; `autolabel cache clear torch` removes "
                "what was compiled before)"
            ) from error
        self._functions[name] = function  # only now: one that failed is compiled again
        return function

    def _prepare_compiler(self) -> None:
        """Let Inductor keep what it makes in our folder, unless the user has named another."""
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        # Inductor sets the variable to its own default as soon as anything asks for the folder.
        if os.environ.get(CACHE_VARIABLE) in {None, default_cache_dir()}:
            os.environ[CACHE_VARIABLE] = str(make_folder(self._folder))
        # It recommends TF32, which changes masks and is off on purpose, and warns of its own code.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        warnings.filterwarnings("ignore", "`isinstance.treespec", FutureWarning)
        torch._dynamo.config.recompile_limit = 64  # every bucket compiles the same modules

    def _captured(self, function: Callable[..., Tensors], examples: Tensors) -> Captured:
        try:
            return Captured(function, examples, self._stream, self._pool)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "captur" not in str(error):
                raise
            # PyTorch's allocator stays in the capture: it takes no other one, and keeps memory that
            # more than one stream has used.
            raise DeviceLostError(
                f"PyTorch cannot go on after a capture that failed: {first_line(error)}"
            ) from error


class CompiledBuckets(Graphs):
    """A model's captured modules.

    Args:
        modules: of the model.
        folder: as in `Graphs`.
        about: as in `Graphs`.
        sizes: side of the encoder's input in pixels, and its numbers of images.
        stream: as in `Graphs`.

    """

    def __init__(
        self, modules: Modules, folder: Path, about: Mapping[str, str],
        sizes: tuple[int, tuple[int, ...]], stream: torch.cuda.Stream,
    ) -> None:  # fmt: skip
        super().__init__(next(modules.encoder.parameters()).device, folder, about, stream)
        self._modules = modules
        self._size, self.image_buckets = sizes

    def encoder(self, images: int) -> Bucket:
        """Return the encoder for at least so many images."""
        images = bucket_for(images, self.image_buckets)
        shape = (images, 3, self._size, self._size)
        zeros = partial(torch.zeros, shape, device=self._device)
        return Bucket(("encoder", images, 0), self._modules.encoder, lambda: (zeros(),))

    def decoder(self, features: Features, prompts: int) -> Bucket:
        """Return the decoder for features of so many images and at least so many boxes."""
        images = bucket_for(features.batch, self.image_buckets)
        prompts = bucket_for(prompts, BOX_BUCKETS)

        def inputs() -> Tensors:
            zeros: Callable[..., Any] = partial(torch.zeros, device=self._device)
            return (
                *(zeros((images, *part.shape[1:]), dtype=part.dtype) for part in features.data),
                zeros((prompts, len(BOX_LABELS), 2), dtype=torch.float32),
                torch.tensor([BOX_LABELS] * prompts, dtype=torch.int32, device=self._device),
                zeros(prompts, dtype=torch.int64),
            )

        modules = self._modules
        decoder = modules.decoder_single if images == 1 else modules.decoder
        return Bucket(("decoder", images, prompts), decoder, inputs)


def _raise_of_device(error: BaseException) -> None:
    """Raise what the compiler is not to blame for: no memory, or a device that is lost."""
    for cause in causes(error, contexts=True):
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause
    if is_sticky(error):
        raise error


def out_of_memory(error: Exception) -> DeviceMemoryError:
    """Give cached memory back to the device and say what happened."""
    torch.cuda.empty_cache()
    return DeviceMemoryError(f"the GPU has no memory left: {first_line(error)}")
