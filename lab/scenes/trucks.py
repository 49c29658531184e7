"""Lorries: cab, chassis and what they carry."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.scenes.solid import DETAIL, Solid, box
from lab.scenes.vehicles import BLACK, GLASS, PAINTS, add_wheels

Array = npt.NDArray[np.float64]
LIVERY = ((236, 236, 234), (200, 202, 205), (40, 70, 130), (150, 30, 30), (230, 190, 60),
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
    livery = np.array(LIVERY[rng.integers(len(LIVERY))], float) * rng.uniform(0.7, 1.0)
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
            stripe = np.array(LIVERY[rng.integers(len(LIVERY))], float)
            band = rectangle(1, sign * (w + 0.004), (x[0], x[1]), (high, high + 0.45), sign)
            solid.add(band, stripe, layer=DETAIL)
        ribs = np.arange(x[0] + 0.4, x[1], 0.6 if kind == "tipper" else 1.1)
        for rib in ribs:
            bar = rectangle(1, sign * (w + 0.01), (rib, rib + 0.05), (floor, top), sign)
            solid.add(bar, livery * 0.78, layer=DETAIL)
    _tail(solid, x[0] - 0.01, w, (floor, top), livery)


def _tail(solid: Solid, rear: float, w: float, z: tuple[float, float], livery: Array) -> None:
    """Add the doors' joints, lamps and the bar below them."""
    floor, top = z
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
