"""Outlines in the boxes in place of the noise that random weights draw.

Noise has hundreds of thousands of runs per mask, which no trained model's masks have; who encodes
runs pays for them, and who makes full masks first does not. So whole frames of random weights are
timed with outlines in everybody's logits: all the work of the model is done as always, and its
logits remain as a small ripple of the outlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sam2_core.backends.protocol import Backend, Later
from sam2_core.preprocess import StagedFrame
from sam2_core.types import Features, FloatArray, ImageArray, LowResMasks, Prompts


def outlined(logits: Any, corners: Any, cell: Any) -> Any:
    """Return logits of rounded boxes; NumPy arrays and torch tensors alike.

    Args:
        logits: (P, G, G), the model's own, of the mask grid or of a window of it.
        corners: (P, 2, 2) left top and right bottom of each box, in cells from there.
        cell: (G,) centres of the cells, 0.5 to G - 0.5.

    """
    centre = (corners[:, 0] + corners[:, 1]) / 2
    half = ((corners[:, 1] - corners[:, 0]) / 2).clip(0.5, None)
    dx = (cell - centre[:, :1]) / half[:, :1]
    dy = (cell - centre[:, 1:]) / half[:, 1:]
    outline = 4 * (1 - dy[:, :, None] ** 4 - dx[:, None, :] ** 4)
    return outline.clip(-20, 20) + 0.3 * logits.clip(-1, 1)


class OutlinedBackend(Backend):
    """A backend whose logits are exchanged for outlines in the boxes that were asked for."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.info = backend, backend.info

    def encode(self, images: Sequence[ImageArray]) -> Features:
        """As the backend within."""
        return self.backend.encode(images)

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """As the backend within, with outlines."""
        return self._drawn(self.backend.decode(features, prompts), prompts)

    def decode_later(self, features: Features, prompts: Prompts) -> Later:
        """As the backend within, with outlines."""
        later = self.backend.decode_later(features, prompts)
        return lambda: self._drawn(later(), prompts)

    def stage(self, image: ImageArray) -> StagedFrame | None:
        """As the backend within."""
        return self.backend.stage(image)

    def staged(self, frame: StagedFrame) -> StagedFrame | None:
        """As the backend within."""
        return self.backend.staged(frame)

    def warm_up(self) -> None:
        """As the backend within."""
        self.backend.warm_up()

    def _drawn(self, low_res: LowResMasks, prompts: Prompts) -> LowResMasks:
        corners = prompts.points_model[: len(low_res), :2] / np.float32(4)
        drawn = [
            outlined(logits[None], corners[row : row + 1], _centres(len(logits)))[0]
            for row, logits in enumerate(low_res.logits)
        ]
        return replace(low_res, logits=np.stack(drawn) if drawn else low_res.logits)


@cache
def _centres(cells: int) -> FloatArray:
    return np.arange(cells, dtype=np.float32) + np.float32(0.5)
