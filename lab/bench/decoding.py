"""Decoder and encoder measurements: ways to decode one frame's boxes, batch and thread sweeps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.bench.timing import Note, Timing, interleaved
from sam2_core.backends.protocol import Backend
from sam2_core.types import DeviceMemoryError, Features, ImageArray, Prompts

SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENCODER_SWEEP = (1, 2, 4, 8)


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


def many(prompts: Prompts, count: int) -> Prompts:
    """Return exactly `count` prompts, repeating from the first where there are fewer."""
    return prompts.chosen(np.arange(count) % len(prompts))


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


def decoder_sweep(
    decoders: Mapping[str, Decoder],
    prompts: Prompts,
    sizes: Sequence[int],
    *,
    repeats: int,
    budget_s: float,
    note: Note,
) -> tuple[dict[str, dict[int, Timing]], dict[str, str]]:
    """Time one decoder call of each size; those that do not fit the memory come back with why."""
    found: dict[str, dict[int, Timing]] = {name: {} for name in decoders}
    skipped: dict[str, str] = {}
    for size in sizes:
        chosen = many(prompts, size)
        cases = {}
        for name, decoder in decoders.items():
            if f"{name} decoder" in skipped:
                continue
            try:
                decoder.decode(chosen, size)
            except DeviceMemoryError as error:
                skipped[f"{name} decoder"] = f"from {size} boxes in a call: {error}"
                continue
            cases[name] = lambda decoder=decoder: decoder.decode(chosen, size)  # noqa: B023
        share = budget_s / len(sizes)
        timings = interleaved(cases, repeats, budget_s=share, warm_up=0, note=note)
        for name, timing in timings.items():
            found[name][size] = timing
    return found, skipped


def encode_and_wait(backend: Backend, images: Sequence[ImageArray]) -> Features:
    """Encode, and wait for the device where the backend itself does not."""
    features = backend.encode(images)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
    return features


def encoder_sweep(
    backend: Backend,
    image: ImageArray,
    sizes: Sequence[int],
    *,
    repeats: int,
    budget_s: float,
    note: Note,
) -> tuple[dict[int, Timing], dict[str, str]]:
    """Time encoding of 1, 2, ... equal images in one call; ms per call, not per image."""
    cases: dict[str, Callable[[], object]] = {}
    skipped: dict[str, str] = {}
    for size in sizes:
        try:
            backend.encode([image] * size)
        except DeviceMemoryError as error:
            skipped["encoder batch"] = f"from {size} images: {error}"
            break
        cases[str(size)] = lambda size=size: encode_and_wait(backend, [image] * size)  # type: ignore[misc]
    timings = interleaved(cases, repeats, budget_s=budget_s, warm_up=0, note=note)
    return {int(size): timing for size, timing in timings.items()}, skipped
