"""Trucks, buses, motorcycles and bicycles."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tasks.scenes.solid import BEHIND, DETAIL, Solid, box, disc
from tasks.scenes.vehicles import BLACK, GLASS, PAINTS, add_wheels

Array = npt.NDArray[np.float64]
_LIVERY = ((236, 236, 234), (200, 202, 205), (40, 70, 130), (150, 30, 30), (230, 190, 60),
           (60, 110, 70), (215, 120, 50), (90, 140, 170))  # fmt: skip


def rectangle(
    axis: int, at: float, a: tuple[float, float], b: tuple[float, float], sign: float
) -> Array:
    """(4, 3) of a rectangle facing along +-axis (0 x, 1 y): a spans the other ground axis, b z."""
    other = 1 - axis
    result = np.zeros((4, 3))
    result[:, axis] = at
    result[:, other] = [a[0], a[1], a[1], a[0]]
    result[:, 2] = [b[0], b[0], b[1], b[1]]
    flip = (sign > 0) == (axis == 1)
    return result[::-1] if flip else result


def _block(
    solid: Solid,
    low: tuple[float, ...],
    high: tuple[float, ...],
    albedo: Array,
    gloss: float = 0.15,
) -> None:
    for face in box(np.array(low), np.array(high)):
        solid.add(face, albedo, gloss=gloss)


def truck(rng: np.random.Generator) -> Solid:
    """Draw a lorry: cab, and a box, a flat bed with a load, a tipper or a tank behind it."""
    solid = Solid()
    heavy = rng.random() < 0.45
    length = float(rng.uniform(8.5, 13.5) if heavy else rng.uniform(5.2, 7.5))
    width = 2.5 if heavy else float(rng.uniform(1.95, 2.3))
    cab_height = float(rng.uniform(2.9, 3.6) if heavy else rng.uniform(2.1, 2.6))
    wheel = 0.5 if heavy else 0.39
    cab_length = float(rng.uniform(1.9, 2.4) if heavy else rng.uniform(1.6, 1.9))
    front, w = length / 2, width / 2
    nose = front - cab_length
    paint = np.array(PAINTS[rng.integers(len(PAINTS))], float)
    axles = [front - 1.0, -front + 1.2]
    if heavy:
        axles += [-front + 2.5]
    add_wheels(solid, tuple(axles), width * 0.97, wheel, rng, arch=False)
    _block(
        solid, (-front + 0.1, -w * 0.8, wheel), (front - 0.2, w * 0.8, wheel + 0.45), BLACK * 1.6
    )
    _cargo(solid, (-front, nose - 0.15), w, wheel + 0.45, cab_height, rng)
    _cab(solid, (nose, front), w * 0.98, wheel * 0.75, cab_height, paint)
    return solid


def _cargo(
    solid: Solid,
    x: tuple[float, float],
    w: float,
    floor: float,
    cab: float,
    rng: np.random.Generator,
) -> None:
    kind = rng.choice(["box", "curtain", "bed", "tipper"], p=[0.5, 0.2, 0.15, 0.15])
    livery = np.array(_LIVERY[rng.integers(len(_LIVERY))], float) * rng.uniform(0.7, 1.0)
    top = floor + (cab - floor) * float(rng.uniform(0.95, 1.3))
    if kind == "bed":
        _block(solid, (x[0], -w, floor), (x[1], w, floor + 0.35), livery * 0.6)
        for _ in range(int(rng.integers(1, 4))):
            a = float(rng.uniform(x[0], x[1] - 1.3))
            high = floor + 0.35 + float(rng.uniform(0.4, 1.2))
            load = np.array([130.0, 105.0, 75.0]) * rng.uniform(0.5, 1.4)
            _block(solid, (a, -w * 0.8, floor + 0.35), (a + 1.2, w * 0.8, high), load)
        return
    if kind == "tipper":
        top = floor + 1.2
    _block(solid, (x[0], -w, floor), (x[1], w, top), livery, 0.12)
    for sign in (1.0, -1.0):
        if rng.random() < 0.6:
            high = floor + (top - floor) * float(rng.uniform(0.25, 0.6))
            stripe = np.array(_LIVERY[rng.integers(len(_LIVERY))], float)
            band = rectangle(1, sign * (w + 0.004), (x[0], x[1]), (high, high + 0.45), sign)
            solid.add(band, stripe, layer=DETAIL)
        ribs = np.arange(x[0] + 0.4, x[1], 0.6 if kind == "tipper" else 1.1)
        for rib in ribs:
            bar = rectangle(1, sign * (w + 0.01), (rib, rib + 0.05), (floor, top), sign)
            solid.add(bar, livery * 0.78, layer=DETAIL)
    rear = x[0] - 0.01
    solid.add(rectangle(0, rear, (-0.02, 0.02), (floor, top), -1), livery * 0.5, layer=DETAIL)
    for y in (-w * 0.5, w * 0.5):
        solid.add(
            rectangle(0, rear, (y - 0.02, y + 0.02), (floor, top), -1), livery * 0.7, layer=DETAIL
        )
    for y in (-w + 0.05, w - 0.4):
        lamp = rectangle(0, rear, (y, y + 0.35), (floor - 0.3, floor - 0.12), -1)
        solid.add(lamp, np.array([150.0, 14.0, 14.0]), layer=DETAIL)
    bumper = rectangle(0, rear, (-w * 0.9, w * 0.9), (floor - 0.55, floor - 0.4), -1)
    solid.add(bumper, BLACK * 2, layer=DETAIL)


def _cab(
    solid: Solid, x: tuple[float, float], w: float, low: float, high: float, paint: Array
) -> None:
    slope = 0.28
    side = np.array(
        [[x[0], low], [x[1], low], [x[1], low + (high - low) * 0.5], [x[1] - slope, high - 0.1],
         [x[1] - slope - 0.15, high], [x[0], high]]
    )  # fmt: skip
    left = np.column_stack([side[:, 0], np.full(6, w), side[:, 1]])
    right = left * [1, -1, 1]
    solid.add(left[::-1], paint, gloss=0.3, body=1.0)
    solid.add(right, paint, gloss=0.3, body=1.0)
    for i in range(6):
        j = (i + 1) % 6
        solid.add(
            np.stack([left[i], right[i], right[j], left[j]])[::-1], paint, gloss=0.3, body=1.0
        )
    a, b = left[2], left[3]
    inset = np.array([1.0, 0.9, 1.0])
    out = np.array([0.012, 0, 0.0])
    pane = np.stack([a * inset, b * inset, b * inset * [1, -1, 1], a * inset * [1, -1, 1]]) + out
    solid.add(pane, GLASS * 1.1, gloss=0.8, layer=DETAIL)
    mid = low + (high - low) * 0.52
    for sign in (1.0, -1.0):
        y = sign * (w + 0.012)
        pane = rectangle(1, y, (x[0] + 0.45, x[1] - slope - 0.05), (mid, high - 0.3), sign)
        solid.add(pane, GLASS, gloss=0.8, layer=DETAIL)
        door = rectangle(1, y, (x[0] + 0.4, x[0] + 0.43), (low + 0.1, high - 0.2), sign)
        solid.add(door, paint * 0.6, layer=DETAIL)
        mirror = box(
            np.array([x[1] - 0.35, y, mid]), np.array([x[1] - 0.2, y + sign * 0.2, mid + 0.5])
        )
        if sign > 0:
            for face in mirror:
                solid.add(face, BLACK * 1.4, layer=DETAIL)
        lamp = sorted((sign * w * 0.55, sign * w * 0.93))
        solid.add(
            rectangle(0, x[1] + 0.012, (lamp[0], lamp[1]), (low + 0.12, low + 0.38), 1),
            np.array([225.0, 226.0, 224.0]), gloss=0.4, layer=DETAIL,
        )  # fmt: skip
    grille = (low + 0.35, low + (high - low) * 0.4)
    solid.add(rectangle(0, x[1] + 0.01, (-w * 0.5, w * 0.5), grille, 1), BLACK * 1.5, layer=DETAIL)


def bus(rng: np.random.Generator) -> Solid:
    """Draw a city bus or a coach."""
    solid = Solid()
    length, height = float(rng.uniform(8.5, 12.5)), float(rng.uniform(2.8, 3.4))
    f, w, low = length / 2, 1.27, 0.32
    livery = np.array(_LIVERY[rng.integers(len(_LIVERY))], float) * rng.uniform(0.75, 1.0)
    second = np.array(_LIVERY[rng.integers(len(_LIVERY))], float)
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
        y = sign * (w + 0.006)
        solid.add(
            rectangle(1, y, (-f + 0.1, f - 0.2), (low, belt * 0.62), sign),
            second * 0.9,
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
    return solid


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
    if scooter:
        _slab(solid, [(0.35, 0.3), (0.55, 0.4), (0.42, 1.0), (0.3, 0.95)], 0.38, paint, body=True)
        _slab(solid, [(-0.15, 0.22), (0.4, 0.22), (0.4, 0.32), (-0.15, 0.32)], 0.34, dark)
        _slab(
            solid,
            [(-0.85, 0.62), (-0.75, 0.4), (-0.1, 0.3), (-0.05, 0.7), (-0.7, 0.76)],
            0.34,
            paint,
            body=True,
        )
    else:
        _slab(solid, [(-0.25, 0.25), (0.35, 0.28), (0.4, 0.6), (-0.2, 0.6)], 0.32, metal * 0.5)
        _slab(
            solid,
            [(-0.05, 0.65), (0.1, 0.6), (0.42, 0.7), (0.38, 0.92), (0.05, 0.9)],
            0.3,
            paint,
            body=True,
        )
        _slab(
            solid, [(-0.95, 0.78), (-0.6, 0.62), (-0.1, 0.62), (-0.2, 0.78)], 0.24, paint, body=True
        )
        _bar(solid, (-0.1, -0.17, 0.3), (-0.8, -0.19, 0.4), 0.06, metal)
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
