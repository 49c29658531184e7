"""Decoder and encoder measurements: ways to decode one frame's boxes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sam2_core.backends.protocol import Backend
from sam2_core.types import Features, ImageArray, Prompts


@dataclass(frozen=True, eq=False)
class Decoder:
    """A backend with one frame encoded, and how many prompts it takes in a call."""

    backend: Backend
    features: Features
    chunk: int

    def decode(self, prompts: Prompts, chunk: int | None = None) -> None:
        """Decode all prompts in chunks; results are on the host when this returns."""
        size = chunk or self.chunk
        for start in range(0, len(prompts), size):
            self.backend.decode(self.features, prompts.chosen(slice(start, start + size)))


def decoder_cases(
    decoders: Mapping[str, Decoder], prompts: Prompts
) -> dict[str, Callable[[], None]]:
    """Return each decoder over the whole frame, and the prototype's way: one box per call.

    The prototype uses the published graph where it is there.
    """
    cases: dict[str, Callable[[], None]] = {}
    first = decoders.get("published") or next(iter(decoders.values()))
    cases["prototype"] = lambda: first.decode(prompts, 1)
    for name, decoder in decoders.items():
        cases[name] = lambda decoder=decoder: decoder.decode(prompts)  # type: ignore[misc]
    return cases


def encode_and_wait(backend: Backend, images: Sequence[ImageArray]) -> Features:
    """Encode, and wait for the device where the backend itself does not."""
    features = backend.encode(images)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
    return features
