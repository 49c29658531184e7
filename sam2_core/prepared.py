"""A frame ready for the device: its pixels as the model takes them, and its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.types import EncoderImage, IntArray, Prompts


@dataclass(frozen=True, eq=False)
class PreparedFrame:
    """A frame ready for the device.

    Attributes:
        images_model: the whole frame, or V close-ups: float32 (S, S, 3) each, or views of a staged
            frame, which the device makes squares of.
        size_hw: of the original image.
        prompts: V valid prompts; their image index is ascending.
        rows: int64 (V,), the caller's row of each.
        reasons: N reasons, "" for a valid row.
        regions_xyxy_px: int64 (V, 4), what each close-up shows; None for the whole frame.

    """

    images_model: Sequence[EncoderImage]
    size_hw: tuple[int, int]
    prompts: Prompts
    rows: npt.NDArray[np.int64]
    reasons: tuple[str, ...]
    regions_xyxy_px: IntArray | None = None

    def __post_init__(self) -> None:
        freeze_arrays(
            self, rows="int64 (V)", reasons="tuple (N)", regions_xyxy_px="int64 (V, 4)",
        )  # fmt: skip

    def without_images(self) -> PreparedFrame:
        """Return what `finish` needs: images that the device has seen are memory for nothing."""
        return replace(self, images_model=())
