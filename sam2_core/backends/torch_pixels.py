"""Frames into the encoder's input on PyTorch's device: one upload of a frame's bytes serves all.

Resizing is `torch.nn.functional.interpolate` on floats, antialiased, which is what Meta's transform
calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from sam2_core.preprocess import StagedFrame, View, checked_image, planes_of, resize_square
from sam2_core.types import EncoderImage, ImageArray


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
            return torch.cat([self._square(one, size) for one in given])
        except torch.OutOfMemoryError:
            for one in given:
                if isinstance(one, View):
                    one.frame.on_device = None
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
        found: torch.Tensor = frame.on_device
        return found
