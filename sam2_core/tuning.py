"""How many prompts a decoder call should take on this machine: measured once and remembered."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from pathlib import Path

import numpy as np

from sam2_core.backends.protocol import Backend
from sam2_core.cache import cache_folder, write_whole
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_PADDING,
    AutolabelError,
    DeviceMemoryError,
    Features,
    Prompts,
)

logger = logging.getLogger(__name__)

_CANDIDATES_CPU = (4, 8, 16, 32)
_CANDIDATES_GPU = (32, 64, 128, 256)
# A larger chunk costs memory: it must be this much faster per prompt to be worth it.
_WORTH = 0.97


def sample_prompts(count: int, image_size: int, seed: int = 0) -> Prompts:
    """Return boxes like those of a street scene, in model pixels: small and all over the image."""
    generator = np.random.default_rng(seed)
    centre = generator.uniform(0.05, 0.95, (count, 2)) * image_size
    half = generator.lognormal(np.log(0.02), 0.7, (count, 2)) * image_size
    corners = np.stack([centre - half, centre + half], 1).clip(0, image_size)
    points = np.concatenate([corners, np.zeros((count, 1, 2))], 1).astype(np.float32)
    label = np.array([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING], np.int32)
    return Prompts(points, np.tile(label, (count, 1)), np.zeros(count, np.int64))


def _seconds_per_prompt(backend: Backend, features: Features, count: int) -> float:
    prompts = sample_prompts(count, backend.info.image_size)
    backend.decode(features, prompts)
    repeats = 1 if backend.info.device == "cpu" else 5
    started = time.perf_counter()
    for _ in range(repeats):
        backend.decode(features, prompts)
    return (time.perf_counter() - started) / repeats / count


def measure_decoder_chunk(backend: Backend) -> tuple[int, dict[int, float]]:
    """Time decoder chunks; return the smallest that is near the fastest, and all times in s."""
    size = backend.info.image_size
    features = backend.encode([np.zeros((size, size, 3), np.uint8)])
    candidates = _CANDIDATES_CPU if backend.info.device == "cpu" else _CANDIDATES_GPU
    times: dict[int, float] = {}
    for count in candidates:
        try:
            times[count] = _seconds_per_prompt(backend, features, count)
        except DeviceMemoryError:
            break
    if not times:
        raise AutolabelError(f"not even {candidates[0]} prompts fit on {backend.info.device}")
    best = min(times.values())
    return next(count for count, cost in times.items() if cost <= best / _WORTH), times


def tuned_decoder_chunk(backend: Backend, cache: Path | None = None) -> int:
    """Return the measured best decoder chunk of this machine, device and model."""
    info = backend.info
    key = "|".join(
        [platform.node(), platform.machine(), info.device, info.stamp.backend,
         info.stamp.engine_sha256, info.stamp.precision, ",".join(info.providers)]
    )  # fmt: skip
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = cache_folder(cache) / "tuning" / f"{name}.json"
    try:
        known = json.loads(path.read_text())
        if known["key"] == key:
            return int(known["decoder_chunk"])
    except (OSError, ValueError, KeyError):
        pass  # not measured yet, or damaged
    chunk, times = measure_decoder_chunk(backend)
    costs = ", ".join(f"{count}: {cost * 1e3:.2f}" for count, cost in times.items())
    logger.info("decoder chunk %d is fastest here (ms per prompt: %s)", chunk, costs)
    try:
        write_whole(path, json.dumps({"key": key, "decoder_chunk": chunk, "seconds": times}))
    except OSError as error:
        logger.warning("cannot remember the decoder chunk: %s", error)
    return chunk
