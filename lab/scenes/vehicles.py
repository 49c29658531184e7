"""Cars and vans: a shell lofted through stations along the length, wheels, glass and lamps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.scenes.solid import BEHIND, DETAIL, Solid, box, disc

Array = npt.NDArray[np.float64]

# name: length, width, height, wheel radius, and stations rear to front:
# (fraction of the length, bottom, belt, top as fractions of the height, width fraction, top width)
# A station where belt and top agree has no cabin. Own proportions of common body types.
_BODIES: dict[str, tuple[tuple[float, float, float, float], list[tuple[float, ...]]]] = {
    "sedan": ((4.6, 1.8, 1.46, 0.32), [
        (0.0, 0.24, 0.60, 0.62, 0.86, 0.80), (0.03, 0.15, 0.64, 0.66, 0.96, 0.86),
        (0.16, 0.13, 0.66, 0.69, 1.0, 0.80), (0.30, 0.12, 0.66, 0.97, 1.0, 0.66),
        (0.46, 0.12, 0.65, 1.0, 1.0, 0.68), (0.56, 0.12, 0.64, 0.97, 1.0, 0.68),
        (0.74, 0.12, 0.62, 0.65, 1.0, 0.80), (0.92, 0.13, 0.54, 0.57, 0.97, 0.80),
        (0.98, 0.16, 0.48, 0.50, 0.90, 0.74), (1.0, 0.20, 0.42, 0.44, 0.80, 0.70)]),
    "hatch": ((4.0, 1.74, 1.5, 0.31), [
        (0.0, 0.22, 0.58, 0.60, 0.88, 0.84), (0.03, 0.15, 0.62, 0.72, 0.96, 0.80),
        (0.10, 0.13, 0.64, 0.94, 1.0, 0.68), (0.24, 0.12, 0.64, 0.99, 1.0, 0.68),
        (0.42, 0.12, 0.63, 1.0, 1.0, 0.69), (0.54, 0.12, 0.62, 0.97, 1.0, 0.68),
        (0.75, 0.12, 0.61, 0.64, 1.0, 0.80), (0.92, 0.13, 0.53, 0.56, 0.97, 0.80),
        (0.98, 0.16, 0.46, 0.49, 0.90, 0.74), (1.0, 0.20, 0.40, 0.42, 0.82, 0.70)]),
    "suv": ((4.6, 1.9, 1.72, 0.37), [
        (0.0, 0.26, 0.58, 0.60, 0.90, 0.84), (0.02, 0.19, 0.62, 0.70, 0.97, 0.80),
        (0.08, 0.16, 0.63, 0.95, 1.0, 0.72), (0.24, 0.15, 0.63, 0.99, 1.0, 0.72),
        (0.44, 0.15, 0.62, 1.0, 1.0, 0.73), (0.56, 0.15, 0.62, 0.97, 1.0, 0.72),
        (0.72, 0.15, 0.61, 0.64, 1.0, 0.82), (0.93, 0.17, 0.56, 0.59, 0.98, 0.82),
        (0.985, 0.20, 0.48, 0.52, 0.92, 0.78), (1.0, 0.25, 0.42, 0.44, 0.86, 0.74)]),
    "van": ((4.9, 1.92, 1.95, 0.34), [
        (0.0, 0.18, 0.52, 0.54, 0.94, 0.90), (0.015, 0.14, 0.54, 0.93, 0.98, 0.84),
        (0.06, 0.12, 0.54, 0.98, 1.0, 0.84), (0.34, 0.11, 0.54, 1.0, 1.0, 0.84),
        (0.58, 0.11, 0.54, 1.0, 1.0, 0.84), (0.70, 0.11, 0.54, 0.95, 1.0, 0.80),
        (0.86, 0.11, 0.52, 0.58, 1.0, 0.80), (0.95, 0.13, 0.46, 0.49, 0.97, 0.80),
        (0.985, 0.15, 0.42, 0.44, 0.93, 0.76), (1.0, 0.18, 0.36, 0.38, 0.86, 0.74)]),
}  # fmt: skip
PAINTS = (
    (205, 206, 208), (150, 153, 158), (28, 29, 32), (60, 63, 68), (235, 235, 233), (225, 226, 228),
    (110, 16, 20), (165, 24, 26), (22, 38, 90), (45, 78, 130), (30, 62, 48), (150, 132, 100),
    (190, 168, 40), (98, 70, 50), (20, 90, 110), (215, 120, 40), (88, 96, 104), (44, 46, 52),
)  # fmt: skip
GLASS = np.array([22.0, 26.0, 29.0])
BLACK = np.array([20.0, 20.0, 21.0])


def choose_paint(rng: np.random.Generator) -> Array:
    """Draw a car's colour: greys, white and black mostly, as on roads."""
    if rng.random() < 0.6:
        paint = np.array(PAINTS[rng.integers(6)], float)
    else:
        paint = np.array(PAINTS[rng.integers(len(PAINTS))], float)
    return np.clip(paint * rng.uniform(0.8, 1.15) + rng.uniform(-8, 8, 3), 6, 245)


def car(rng: np.random.Generator) -> Solid:
    """Draw a car: body type and proportions."""
    name = str(rng.choice(["sedan", "hatch", "suv", "van"], p=[0.34, 0.28, 0.27, 0.11]))
    (length, width, height, wheel), stations = _BODIES[name]
    length *= rng.uniform(0.92, 1.08)
    width *= rng.uniform(0.96, 1.04)
    height *= rng.uniform(0.95, 1.06)
    wheel *= rng.uniform(0.95, 1.08)
    table = np.array(stations)
    table[1:-1, 0] += rng.uniform(-0.015, 0.015, len(table) - 2)
    solid = Solid()
    axles = (length * rng.uniform(-0.31, -0.28), length * rng.uniform(0.29, 0.33))
    add_wheels(solid, axles, width, wheel, rng, arch=True)
    blind = name == "van" and rng.random() < 0.5
    loft(solid, table, (length, width, height), choose_paint(rng), rng, blind=blind)
    _lamps(solid, table, (length, width, height), rng)
    _doors(solid, table, (length, width, height), rng)
    return solid


def loft(
    solid: Solid, table: Array, size: tuple[float, float, float], paint: Array,
    rng: np.random.Generator, *, blind: bool = False,
) -> None:  # fmt: skip
    """Add the shell through the stations of a table (see `_BODIES`)."""
    length, width, height = size
    rings = np.stack([_ring(row, length, width, height) for row in table])
    trim = paint if rng.random() < 0.6 else np.array([36.0, 36.0, 38.0])
    gloss, half = float(rng.uniform(0.25, 0.6)), rings.shape[1] // 2
    cabin = table[:, 3] - table[:, 2] > 0.2
    for i in range(len(table) - 1):
        inside = cabin[i] and cabin[i + 1]
        slope = cabin[i] != cabin[i + 1]
        pane = float(rng.uniform(0.6, 2.4))
        for j in range(rings.shape[1] - 1):
            band = min(j, rings.shape[1] - 2 - j)
            quad = np.stack([rings[i, j], rings[i + 1, j], rings[i + 1, j + 1], rings[i, j + 1]])
            colour, shine, body = paint, gloss, 1.0
            if band == 0:
                colour, shine, body = trim, gloss * 0.4, float(trim is paint)
            elif (band == 3 and inside and not (blind and i < 4)) or (band >= half - 1 and slope):
                colour, shine, body = GLASS * pane, float(rng.uniform(0.6, 1.0)), 0.0
            solid.add(quad[::-1], colour, gloss=shine, body=body)
    for ring, flip in ((rings[0], False), (rings[-1], True)):
        solid.add(ring[::-1] if not flip else ring, paint * 0.9, gloss=gloss, body=0.9)
    _pillars(solid, rings, cabin, paint, gloss)


def _ring(row: Array, length: float, width: float, height: float) -> Array:
    at, bottom, belt, top, wide, top_wide = row
    x, w = (at - 0.5) * length, width / 2 * wide
    t = width / 2 * top_wide
    side = [
        (w * 0.93, bottom), (w, bottom + 0.12), (w, bottom + 0.6 * (belt - bottom)),
        (w * 0.965, belt), (t, top - 0.025), (t * 0.82, top), (0.0, top + 0.012),
    ]  # fmt: skip
    ring = [(x, y, z * height) for y, z in side] + [(x, -y, z * height) for y, z in side[-2::-1]]
    return np.array(ring)


def _pillars(
    solid: Solid, rings: Array, cabin: npt.NDArray[np.bool_], paint: Array, gloss: float
) -> None:
    """Body-coloured strips between the side windows."""
    stations = np.flatnonzero(cabin)
    for i in stations[:: max(1, len(stations) - 1)].tolist() + [stations[len(stations) // 2]]:
        for low, high, sign in ((3, 4, 1.0), (-4, -5, -1.0)):
            a, b = rings[i, low], rings[i, high]
            lift = np.array([0.0, 0.006 * sign, 0.0])
            wide = np.array([0.045, 0.0, 0.0])
            quad = np.stack([a - wide, a + wide, b + wide, b - wide]) + lift
            middle = i == stations[len(stations) // 2]
            colour = np.full(3, 24.0) if middle else paint
            body = 0.0 if middle else 1.0
            solid.add(
                quad[::-1] if sign > 0 else quad, colour, gloss=gloss, layer=DETAIL, body=body
            )


def add_wheels(
    solid: Solid, axles: tuple[float, ...], width: float, radius: float,
    rng: np.random.Generator, *, arch: bool,
) -> None:  # fmt: skip
    """Add wheels at both ends of every axle (x of each), with arches cut into the body's sides."""
    rim = np.array([150.0, 152.0, 156.0]) * rng.uniform(0.25, 1.15)
    tyre = np.array([24.0, 24.0, 25.0])
    spokes, inset = int(rng.integers(4, 8)), 0.02
    for x in axles:
        for sign in (1.0, -1.0):
            y = sign * (width / 2 - inset)
            centre = np.array([x, y, radius])
            inner = disc(np.array([x, y - sign * 0.21, radius]), radius, 1, sign)
            solid.add(np.concatenate([disc(centre, radius, 1, sign), inner]), tyre, layer=BEHIND)
            if arch:
                hole = disc(
                    centre + [0, sign * 0.035, 0], radius * 1.14, 1, sign, 14, (-0.15, np.pi + 0.15)
                )
                solid.add(hole, BLACK * 0.7, layer=DETAIL)
            out = np.array([0.0, sign * 0.04, 0.0])
            solid.add(disc(centre + out, radius, 1, sign), tyre, layer=DETAIL)
            solid.add(disc(centre + out, radius * 0.68, 1, sign), rim, gloss=0.3, layer=DETAIL)
            for k in range(spokes):
                t = 2 * np.pi * (k + 0.5) / spokes
                gap = disc(
                    centre + out + radius * 0.42 * np.array([np.cos(t), 0, np.sin(t)]),
                    radius * 0.42 * np.pi / spokes * 0.62, 1, sign, 6,
                )  # fmt: skip
                solid.add(gap, rim * 0.2, layer=DETAIL)


def _doors(
    solid: Solid, table: Array, size: tuple[float, float, float], rng: np.random.Generator
) -> None:
    """Add joints, handles, a moulding and mirrors to both sides; heads behind the glass."""
    length, width, height = size
    w, belt = width / 2, float(np.interp(0.5, table[:, 0], table[:, 2])) * height
    sill = 0.16 * height
    dark = np.full(3, 26.0)
    moulding = rng.random() < 0.4
    for sign in (1.0, -1.0):
        y = sign * (w + 0.008)

        def strip(
            x: float, wide: float, z: float, high: float, y: float = y, sign: float = sign
        ) -> Array:
            quad = np.array(
                [[x, y, z], [x + wide, y, z], [x + wide, y, z + high], [x, y, z + high]]
            )
            return quad if sign < 0 else quad[::-1]

        for x in (-0.19, 0.02, 0.2):
            solid.add(strip(x * length, 0.025, sill + 0.1, belt - sill - 0.14), dark, layer=DETAIL)
        for x in (-0.16, 0.05):
            handle = strip(x * length, 0.16, belt - 0.13, 0.035)
            solid.add(handle, dark * 2, layer=DETAIL, gloss=0.3, body=0.75)
        if moulding:
            solid.add(strip(-0.2 * length, 0.42 * length, sill + 0.22, 0.05), dark, layer=DETAIL)
        front = 0.19 * length
        low, high = sorted((sign * w * 0.95, sign * (w + 0.16)))
        for face in box(
            np.array([front - 0.05, low, belt - 0.02]), np.array([front + 0.1, high, belt + 0.14])
        ):
            solid.add(face, dark, gloss=0.3, body=1.0 if length > 4.3 else 0.0)


def _face(x: float, y: tuple[float, float], z: tuple[float, float], sign: float) -> Array:
    quad = np.array([[x, y[0], z[0]], [x, y[1], z[0]], [x, y[1], z[1]], [x, y[0], z[1]]])
    return quad if sign > 0 else quad[::-1]


def _lamps(
    solid: Solid, table: Array, size: tuple[float, float, float], rng: np.random.Generator
) -> None:
    length, width, height = size
    w = width / 2
    lit = rng.random() < 0.4
    for front in (True, False):
        sign = 1.0 if front else -1.0
        x = sign * (length / 2 + 0.005)
        row = table[-1] if front else table[0]
        bottom, belt = row[1] * height, row[2] * height
        span = belt - bottom
        edge = w * row[4] * 0.98
        lamp = np.array([225.0, 228.0, 230.0]) if front else np.array([150.0, 12.0, 14.0])
        glow = 1.0 if lit and not front else (1.15 if lit else 0.0)
        for side in (1.0, -1.0):
            y = sorted((side * edge, side * edge * rng.uniform(0.5, 0.62)))
            solid.add(
                _face(x, (y[0], y[1]), (bottom + span * 0.62, bottom + span * 0.97), sign),
                lamp, gloss=0.5, layer=DETAIL, glow=glow,
            )  # fmt: skip
        dark = np.array([26.0, 26.0, 28.0])
        if front:
            grille = (bottom + span * 0.55, bottom + span * 0.9)
            solid.add(_face(x, (-edge * 0.5, edge * 0.5), grille, sign), dark, layer=DETAIL)
        solid.add(
            _face(x, (-edge * 0.8, edge * 0.8), (bottom, bottom + span * 0.22), sign),
            dark,
            layer=DETAIL,
        )
        plate = np.array([[222.0, 222.0, 218.0], [205.0, 180.0, 60.0]])[int(rng.random() < 0.2)]
        low = bottom + span * 0.3
        solid.add(_face(x * 1.001, (-0.26, 0.26), (low, low + 0.12), sign), plate, layer=DETAIL)
