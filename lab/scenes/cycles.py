"""Motorcycles, scooters and bicycles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.scenes.solid import BEHIND, DETAIL, Solid, disc
from lab.scenes.vehicles import BLACK, PAINTS

Array = npt.NDArray[np.float64]


def _bar(
    solid: Solid,
    a: tuple[float, ...],
    b: tuple[float, ...],
    radius: float,
    albedo: Array,
    *,
    body: bool = False,
) -> None:
    octahedron = np.concatenate([np.eye(3), -np.eye(3)]) * radius
    ends = np.concatenate([np.array(a) + octahedron, np.array(b) + octahedron])
    solid.add(ends, albedo, layer=BEHIND, gloss=0.15, body=float(body))


def _slab(
    solid: Solid,
    profile: list[tuple[float, float]],
    width: float,
    albedo: Array,
    *,
    body: bool = False,
) -> None:
    """Add a convex side profile (x, z) of a width."""
    flat = np.array(profile)
    sides = [
        np.column_stack([flat[:, 0], np.full(len(flat), y), flat[:, 1]])
        for y in (-width / 2, width / 2)
    ]
    solid.add(np.concatenate(sides), albedo, layer=BEHIND, gloss=0.25, body=float(body))


def _scooter_body(solid: Solid, paint: Array) -> None:
    dark = BLACK * 1.5
    _slab(solid, [(0.35, 0.3), (0.55, 0.4), (0.42, 1.0), (0.3, 0.95)], 0.38, paint, body=True)
    _slab(solid, [(-0.15, 0.22), (0.4, 0.22), (0.4, 0.32), (-0.15, 0.32)], 0.34, dark)
    _slab(
        solid,
        [(-0.85, 0.62), (-0.75, 0.4), (-0.1, 0.3), (-0.05, 0.7), (-0.7, 0.76)],
        0.34,
        paint,
        body=True,
    )


def _motorcycle_body(solid: Solid, paint: Array) -> None:
    metal = np.array([120.0, 122.0, 125.0])
    _slab(solid, [(-0.25, 0.25), (0.35, 0.28), (0.4, 0.6), (-0.2, 0.6)], 0.32, metal * 0.5)
    _slab(
        solid,
        [(-0.05, 0.65), (0.1, 0.6), (0.42, 0.7), (0.38, 0.92), (0.05, 0.9)],
        0.3,
        paint,
        body=True,
    )
    _slab(solid, [(-0.95, 0.78), (-0.6, 0.62), (-0.1, 0.62), (-0.2, 0.78)], 0.24, paint, body=True)
    _bar(solid, (-0.1, -0.17, 0.3), (-0.8, -0.19, 0.4), 0.06, metal)


def motorcycle(rng: np.random.Generator) -> Solid:
    """Draw a scooter or a motorcycle, seat at about 0.8 m."""
    solid = Solid()
    paint = np.array(PAINTS[rng.integers(len(PAINTS))], float)
    dark, metal = BLACK * 1.5, np.array([120.0, 122.0, 125.0])
    scooter = rng.random() < 0.45
    r = 0.23 if scooter else 0.31
    base = 0.63 if scooter else 0.7
    for x in (-base, base):
        for y in (-0.06, 0.06):
            solid.add(disc(np.array([x, y, r]), r, 1, 1.0), BLACK, layer=BEHIND)
        solid.add(disc(np.array([x, 0.065, r]), r * 0.6, 1, 1.0), metal * 0.8, layer=DETAIL)
        solid.add(disc(np.array([x, -0.065, r]), r * 0.6, 1, -1.0), metal * 0.8, layer=DETAIL)
    _bar(solid, (base, 0.05, r), (base - 0.28, 0.05, 0.95), 0.035, metal)
    _bar(solid, (base - 0.3, -0.33, 1.03), (base - 0.3, 0.33, 1.03), 0.025, dark)
    _bar(solid, (base - 0.3, -0.3, 1.05), (base - 0.28, -0.3, 1.22), 0.02, dark)
    _bar(solid, (base - 0.3, 0.3, 1.05), (base - 0.28, 0.3, 1.22), 0.02, dark)
    (_scooter_body if scooter else _motorcycle_body)(solid, paint)
    _slab(solid, [(-0.75, 0.75), (0.0, 0.72), (0.0, 0.8), (-0.72, 0.84)], 0.28, dark)
    _slab(
        solid,
        [(base - 0.26, 0.8), (base - 0.12, 0.8), (base - 0.14, 0.98), (base - 0.26, 0.98)],
        0.2,
        paint,
        body=True,
    )
    lamp = disc(np.array([base - 0.11, 0.0, 0.88]), 0.09, 0, 1.0, 10)
    solid.add(lamp, np.array([230.0, 230.0, 225.0]), layer=DETAIL, glow=1.0)
    solid.add(
        disc(np.array([-0.97, 0.0, 0.72]), 0.06, 0, -1.0, 8),
        np.array([170.0, 15, 15]),
        layer=DETAIL,
    )
    return solid


def bicycle(rng: np.random.Generator) -> Solid:
    """Draw a bicycle, seat at about 0.95 m. The inside of its wheels belongs to it."""
    solid = Solid()
    paint = np.array(PAINTS[rng.integers(len(PAINTS))], float)
    r, base = 0.34, 0.52
    solid.hoops = [(np.array([-base, 0.0, r]), r), (np.array([base, 0.0, r]), r)]
    crank, seat, head = (0.0, 0.0, 0.3), (-0.2, 0.0, 0.82), (0.37, 0.0, 0.85)
    step = rng.random() < 0.4
    for a, b in (
        (crank, seat), (crank, head), ((-0.15, 0.0, 0.6) if step else (-0.19, 0, 0.78), head),
        (crank, (-base, 0.0, r)), (seat, (-base, 0.0, r)), (head, (base, 0.0, r)),
    ):  # fmt: skip
        _bar(solid, a, b, 0.02, paint, body=True)
    _bar(solid, head, (0.36, 0.0, 1.02), 0.016, BLACK * 2)
    _bar(solid, (0.34, -0.28, 1.04), (0.34, 0.28, 1.04), 0.017, BLACK * 2)
    _bar(solid, (-0.2, 0.0, 0.82), (-0.22, 0.0, 0.93), 0.016, BLACK * 3)
    _slab(solid, [(-0.36, 0.93), (-0.08, 0.93), (-0.08, 0.97), (-0.36, 0.99)], 0.14, BLACK * 1.4)
    _bar(solid, (0.0, 0.08, 0.3), (0.12, 0.1, 0.18), 0.02, BLACK * 2)
    _bar(solid, (0.0, -0.08, 0.3), (-0.12, -0.1, 0.42), 0.02, BLACK * 2)
    if rng.random() < 0.4:
        _slab(
            solid,
            [(0.42, 0.78), (0.7, 0.78), (0.74, 1.0), (0.4, 1.0)],
            0.34,
            np.array([95.0, 82, 64]),
        )
    if rng.random() < 0.4:
        _slab(solid, [(-0.8, 0.72), (-0.35, 0.72), (-0.35, 0.75), (-0.8, 0.75)], 0.14, BLACK * 3)
    return solid
