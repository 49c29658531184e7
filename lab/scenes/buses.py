"""City buses and coaches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lab.scenes.solid import DETAIL, Solid
from lab.scenes.trucks import LIVERY, rectangle
from lab.scenes.vehicles import GLASS, add_wheels

Array = npt.NDArray[np.float64]


def bus(rng: np.random.Generator) -> Solid:
    """Draw a city bus or a coach."""
    solid = Solid()
    length, height = float(rng.uniform(8.5, 12.5)), float(rng.uniform(2.8, 3.4))
    f, w, low = length / 2, 1.27, 0.32
    livery = np.array(LIVERY[rng.integers(len(LIVERY))], float) * rng.uniform(0.75, 1.0)
    second = np.array(LIVERY[rng.integers(len(LIVERY))], float)
    add_wheels(solid, (f - 2.5, -f + 2.9), 2 * w * 0.98, 0.48, rng, arch=True)
    r = 0.16
    ring = np.array(
        [[-w, low], [w, low], [w, height - r], [w - r * 0.4, height - r * 0.3], [w - r, height],
         [-w + r, height], [-w + r * 0.4, height - r * 0.3], [-w, height - r]]
    )  # fmt: skip
    stations = np.array([[-f, 0.97], [-f + 0.12, 1.0], [f - 0.25, 1.0], [f, 0.95]])
    rings = [np.column_stack([np.full(8, x), ring[:, 0] * k, ring[:, 1]]) for x, k in stations]
    for a, b in pairwise(rings):
        for j in range(1, 8):
            i = j - 1 if j else 7
            solid.add(np.stack([a[i], b[i], b[j], a[j]])[::-1], livery, gloss=0.3)
        solid.add(np.stack([a[7], b[7], b[0], a[0]])[::-1], livery, gloss=0.3)
    solid.add(rings[0][::-1], livery, gloss=0.2)
    solid.add(rings[-1], livery, gloss=0.2)
    belt, top = height * float(rng.uniform(0.38, 0.48)), height - float(rng.uniform(0.35, 0.55))
    for sign in (1.0, -1.0):
        _side(solid, sign, (f, w, low), (belt, top), second, rng)
    _ends(solid, (f, w, low, height), (belt, top), livery, rng)
    return solid


def _side(
    solid: Solid, sign: float, size: tuple[float, float, float], glass: tuple[float, float],
    colour: Array, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Add windows, a band of colour and, on the right, doors."""
    (f, w, low), (belt, top) = size, glass
    y = sign * (w + 0.006)
    solid.add(
        rectangle(1, y, (-f + 0.1, f - 0.2), (low, belt * 0.62), sign),
        colour * 0.9,
        layer=DETAIL,
    )
    edges = np.linspace(-f + 0.35, f - 0.35, int(rng.integers(6, 9)))
    for a, b in pairwise(edges):
        window = rectangle(1, y * 1.002, (a + 0.04, b - 0.04), (belt, top), sign)
        solid.add(window, GLASS * rng.uniform(0.8, 1.8), gloss=0.7, layer=DETAIL)
    door = float(f - 1.7)
    if sign < 0:
        for x in (door, -0.6):
            solid.add(
                rectangle(1, y * 1.004, (x, x + 1.1), (low + 0.05, top), sign), GLASS * 1.5,
                gloss=0.5, layer=DETAIL,
            )  # fmt: skip


def _ends(
    solid: Solid, size: tuple[float, float, float, float], glass: tuple[float, float],
    livery: Array, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Add windscreens, the destination sign and lamps."""
    (f, w, low, height), (belt, top) = size, glass
    wide = w * 0.9
    solid.add(
        rectangle(0, f + 0.01, (-wide, wide), (belt * 0.8, top), 1), GLASS, gloss=0.7, layer=DETAIL
    )
    sign_board = rectangle(0, f + 0.012, (-wide * 0.8, wide * 0.8), (top + 0.04, height - 0.1), 1)
    solid.add(
        sign_board,
        np.array([230.0, 150.0, 40.0]) * rng.uniform(0.2, 1),
        glow=float(rng.random() < 0.5),
        layer=DETAIL,
    )
    solid.add(
        rectangle(0, -f - 0.01, (-wide, wide), (belt * 1.15, top), -1),
        GLASS,
        gloss=0.6,
        layer=DETAIL,
    )
    solid.add(
        rectangle(0, -f - 0.01, (-wide * 0.7, wide * 0.7), (low + 0.3, belt), -1),
        livery * 0.6,
        layer=DETAIL,
    )
    for y in (-w + 0.08, w - 0.4):
        solid.add(
            rectangle(0, f + 0.012, (y, y + 0.32), (0.55, 0.8), 1), np.full(3, 225.0), layer=DETAIL
        )
        red = np.array([150.0, 14.0, 14.0])
        solid.add(rectangle(0, -f - 0.012, (y, y + 0.22), (0.7, 1.3), -1), red, layer=DETAIL)
