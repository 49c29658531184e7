"""A bank of procedural textures, each a pure function of its index and made once per process."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[np.float64]
Levels = tuple[Bytes, ...]
NOISES, FOLIAGES, CLOUDS, SURFACES = 12, 20, 6, 32


def octaves(
    rng: np.random.Generator, size: int, first: int, last: int, persistence: float = 0.55,
    stretch: float = 1.0,
) -> Array:  # fmt: skip
    """Tileable noise (size, size) of mean 0 and deviation 1: octaves of 2**first..2**last cells."""
    total, weight = np.zeros((size, size), np.float32), 1.0
    for octave in range(first, last + 1):
        cells = 1 << octave
        rows = max(1, round(cells * stretch))
        grid = rng.standard_normal((rows, cells)).astype(np.float32)
        # Interpolated across the seam, then cut back to one period.
        padded = np.pad(grid, 2, mode="wrap")
        scale = (size * (cells + 4) // cells, size * (rows + 4) // rows)
        large = cv2.resize(padded, scale, interpolation=cv2.INTER_CUBIC)
        top, left = 2 * size // rows, 2 * size // cells
        total += weight * large[top : top + size, left : left + size]
        weight *= persistence
    result: Array = (total - total.mean()) / max(float(total.std()), 1e-6)
    return result


def to_bytes(values: npt.ArrayLike) -> Bytes:
    """Round and clip to 0-255."""
    result: Bytes = np.clip(np.rint(np.asarray(values)), 0, 255).astype(np.uint8)
    return result


def pyramid(texture: Bytes, levels: int = 6) -> Levels:
    """Halve a texture again and again, for sampling from afar."""
    result = [np.ascontiguousarray(texture)]
    while len(result) < levels and min(result[-1].shape[:2]) >= 8:
        height, width = result[-1].shape[:2]
        result.append(
            cv2.resize(result[-1], (width // 2, height // 2), interpolation=cv2.INTER_AREA)
        )
    return tuple(result)


@cache
def noise(index: int) -> Bytes:
    """Grey noise (256, 256) around 128: even indices fine grain, odd ones broad patches."""
    rng = np.random.default_rng([71, index])
    first, last, keep = ((4, 8, 0.9), (1, 6, 0.62))[index % 2]
    stretch = (1.0, 1.0, 0.25)[index % 3]
    return to_bytes(128 + octaves(rng, 256, first, last, keep, stretch) * rng.uniform(12, 26))


@cache
def clouds(index: int) -> Bytes:
    """Cloud cover (256, 512) in 0-255, left and right edges match."""
    rng = np.random.default_rng([72, index])
    field = octaves(rng, 512, 1, 7, 0.6, 2.0)[:256]
    return to_bytes(255 / (1 + np.exp(-field * rng.uniform(1.5, 4.0))))


@cache
def foliage(index: int) -> tuple[Levels, Levels]:
    """Crown of a tree or a bush: luminance (256, 256) and cover (0 or 255), in levels."""
    rng = np.random.default_rng([73, index])
    size = 256
    yy, xx = np.mgrid[0:size, 0:size] / size - 0.5
    kind = index % 5
    shape = np.zeros((size, size), np.float32)
    if kind == 3:  # conifer
        shape = (0.44 * np.clip(yy + 0.48, 0, 1) - np.abs(xx)).astype(np.float32) * 3
    elif kind == 4:
        return _bare_tree(rng, size)
    else:
        for _ in range(int(rng.integers(9, 22))):
            angle, reach = rng.uniform(0, 6.3), rng.uniform(0, 0.26)
            cx, cy = np.cos(angle) * reach, np.sin(angle) * reach * 0.9
            radius = rng.uniform(0.1, 0.2)
            shape = np.maximum(shape, 1.6 * (radius - np.hypot(xx - cx, yy - cy)) + 0.02)
        shape = np.where(shape <= 0, -0.25, shape)
    ragged = octaves(rng, size, 3, 7, 0.75)
    clumps = octaves(rng, size, 3, 5, 0.6)
    cover = shape * 4 + 0.22 * ragged + 0.15 * clumps > 0.12
    holes = (ragged + 0.8 * clumps > rng.uniform(1.9, 2.9)) & (shape < 0.16)
    leaf = octaves(rng, size, 5, 7, 0.9)
    light = 120 - 90 * yy - 40 * xx * rng.choice([-1, 1]) + 26 * clumps + 24 * leaf + 10 * ragged
    mask = ((cover & ~holes) * 255).astype(np.uint8)
    x, y, w, h = cv2.boundingRect(mask)
    grey, mask = to_bytes(light)[y : y + h, x : x + w], mask[y : y + h, x : x + w]
    return pyramid(grey), pyramid(mask)


def _bare_tree(rng: np.random.Generator, size: int) -> tuple[Levels, Levels]:
    mask = np.zeros((size, size), np.uint8)
    stack = [(np.array([size / 2, size - 1.0]), -np.pi / 2, size * 0.26, 7.0)]
    while stack:
        start, angle, length, width = stack.pop()
        end = start + length * np.array([np.cos(angle), np.sin(angle)])
        ends = [tuple(int(v) for v in p) for p in (start, end)]
        cv2.line(mask, ends[0], ends[1], 255, max(1, round(width)))
        if length > 9:
            for _ in range(int(rng.integers(2, 4))):
                turn = angle + rng.normal(0, 0.5)
                stack.append((end, turn, length * rng.uniform(0.6, 0.85), width * 0.66))
    grain = to_bytes(95 + 25 * octaves(rng, size, 4, 7))
    return pyramid(grain), pyramid(mask)


@cache
def surface(index: int) -> Bytes:
    """Coloured pattern (256, 256, 3) for walls, cloth, ground and random backgrounds."""
    rng = np.random.default_rng([74, index])
    size = 256
    base, other = rng.uniform(20, 235, 3), rng.uniform(20, 235, 3)
    other = base + (other - base) * rng.uniform(0.15, 1.0)
    yy, xx = np.mgrid[0:size, 0:size]
    kind = index % 8
    if kind == 0:
        weight = octaves(rng, size, 1, 6, 0.6) * 0.35 + 0.5
    elif kind == 1:  # stripes
        period = 2 ** int(rng.integers(3, 7))
        weight = ((xx // (period // 2)) % 2).astype(float)
    elif kind == 2:  # bricks or tiles
        high = 2 ** int(rng.integers(3, 6))
        shift = (yy // high % 2) * high
        joint = (yy % high < 2) | ((xx + shift) % (2 * high) < 2)
        weight = joint * 0.8 + octaves(rng, size, 5, 7) * 0.06
    elif kind == 3:  # leaves and gravel
        weight = np.tanh(octaves(rng, size, 4, 7, 0.8) * 1.5) * 0.5 + 0.5
    elif kind == 4:  # checks
        period = 2 ** int(rng.integers(3, 6))
        weight = ((xx // period % 2) + (yy // period % 2)) / 2.0
    elif kind == 5:  # streaks
        weight = octaves(rng, size, 2, 7, 0.7, 0.12) * 0.3 + 0.5
    elif kind == 6:  # dots
        period = 2 ** int(rng.integers(4, 7))
        near = np.hypot(xx % period - period / 2, yy % period - period / 2)
        weight = (near < period * rng.uniform(0.15, 0.4)).astype(float)
    else:
        weight = np.abs(octaves(rng, size, 2, 5, 0.5)) * 0.7
    weight = np.clip(weight, 0, 1)[..., None]
    grain = octaves(rng, size, 4, 8, 0.9)[..., None] * rng.uniform(2, 9)
    return to_bytes(base * (1 - weight) + other * weight + grain)
