"""The modules of a model, captured as CUDA graphs for buckets of images and boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sam2_core.backends.device_owner import device_owner
from sam2_core.backends.torch_captured import Captured, Tensors, bucket_for
from sam2_core.backends.torch_compiled import CompiledModules, Function
from sam2_core.backends.torch_modules import Modules
from sam2_core.machine_errors import first_line
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_PADDING,
    DeviceLostError,
    Features,
)

IMAGE_BUCKETS = (1, 2, 4, 8)
CLOSE_UP_BUCKETS = (8, 32, 64)
BOX_BUCKETS = (8, 32, 64, 96, 136, 256)
BOX_LABELS = (BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING)


@dataclass(frozen=True)
class _Bucket:
    """A module and the sizes that it is captured for: its name, images and boxes."""

    key: tuple[str, int, int]
    module: torch.nn.Module
    inputs: Callable[[], Tensors]

    @property
    def name(self) -> str:
        return "-".join(map(str, self.key))


class Buckets:
    """A model's captured modules, each made when it is first needed; on the device's thread.

    Args:
        modules: of the model.
        functions: what compiles them.
        sizes: side of the encoder's input in pixels, and its numbers of images.
        device: where the modules are.
        stream: what is captured is captured on it.

    """

    def __init__(
        self, modules: Modules, functions: CompiledModules, sizes: tuple[int, tuple[int, ...]],
        device: torch.device, stream: torch.cuda.Stream,
    ) -> None:  # fmt: skip
        self._modules, self._functions, self._device = modules, functions, device
        self._size, self.image_buckets = sizes
        self._stream, self._pool = stream, torch.cuda.graph_pool_handle()
        self.captured: dict[tuple[str, int, int], Captured] = {}

    def release(self) -> None:
        """Give memory back; what is captured afterwards gets memory of its own.

        While somebody holds what a graph has made, PyTorch refuses to capture into the memory of
        graphs that are gone ("INTERNAL ASSERT FAILED").
        """
        self.captured.clear()
        self._pool = torch.cuda.graph_pool_handle()

    def encoder(self, images: int) -> Captured:
        """Return the encoder for at least so many images."""
        return self._made(self._encoder(images))

    def decoder(self, features: Features, prompts: int) -> Captured:
        """Return the decoder for features of so many images and at least so many boxes."""
        return self._made(self._decoder(features, prompts))

    def warm_encoder(self, images: int) -> Features | None:
        """Capture the encoder for so many images if it was compiled before, on this machine.

        Returns:
            Features of no image in particular, or None where it is not compiled yet.

        """
        bucket = self._encoder(images)
        if not self._known(bucket):
            return None
        return Features(self._made(bucket).outputs, images, ((0, 0),) * images)

    def warm_decoder(self, features: Features, prompts: int) -> None:
        """Capture the decoder for such features and boxes if it was compiled before."""
        bucket = self._decoder(features, prompts)
        if self._known(bucket):
            self._made(bucket)

    def _encoder(self, images: int) -> _Bucket:
        images = bucket_for(images, self.image_buckets)
        shape = (images, 3, self._size, self._size)
        zeros = partial(torch.zeros, shape, device=self._device)
        return _Bucket(("encoder", images, 0), self._modules.encoder, lambda: (zeros(),))

    def _decoder(self, features: Features, prompts: int) -> _Bucket:
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
        return _Bucket(("decoder", images, prompts), decoder, inputs)

    def _known(self, bucket: _Bucket) -> bool:
        return bucket.key in self.captured or self._functions.known(
            bucket.name, bucket.module, bucket.inputs()
        )

    def _made(self, bucket: _Bucket) -> Captured:
        if bucket.key not in self.captured:
            examples = bucket.inputs()
            function = self._functions.function(bucket.name, bucket.module, examples)
            with device_owner().capturing():
                self.captured[bucket.key] = self._captured(function, examples)
        return self.captured[bucket.key]

    def _captured(self, function: Function, examples: Tensors) -> Captured:
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
