"""One frame encoded, and a way to decode its boxes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sam2_core.backends.protocol import Backend
from sam2_core.types import Features, ImageArray, Prompts


@dataclass(frozen=True, eq=False)
class Decoder:
    """A backend with one frame encoded, and how many prompts it takes in a call."""

    backend: Backend
    features: Features
    chunk: int

    def decode(self, prompts: Prompts) -> None:
        """Decode all prompts in chunks; results are on the host when this returns."""
        for start in range(0, len(prompts), self.chunk):
            chunk = prompts.chosen(slice(start, start + self.chunk))
            self.backend.decode(self.features, chunk)


def encode_and_wait(backend: Backend, images: Sequence[ImageArray]) -> Features:
    """Encode, and wait for the device where the backend itself does not."""
    features = backend.encode(images)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
    return features
