"""The road: lanes, kerbs, pavements, crossings, along a gently curved line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.scenes.camera import NEAR_M, Camera
from lab.scenes.canvas import SCENERY, Canvas
from lab.scenes.light import Light

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Road:
    """A road of constant curvature. s runs along it, d to the left of its middle, in metres.

    Attributes:
        curvature: 1 / radius, positive to the left.
        lanes: number of lanes right and left of the middle.
        lane_width, verge, pavement: metres; the verge (or parking) lies between lanes and kerb.
        asphalt, paving, ground: albedo in 0-255.
        yellow: colour of the middle line.
        drive_left: traffic keeps to the left.
        crossings: s of the middle of side streets.
        zebras: s of pedestrian crossings.
        patches: (N, 5) s, d, length, width, tone of repairs, covers and stains.
        grain: which noise textures.

    """

    curvature: float
    lanes: tuple[int, int]
    lane_width: float
    verge: float
    pavement: float
    asphalt: Array
    paving: Array
    ground: Array
    yellow: bool
    drive_left: bool
    crossings: tuple[float, ...]
    zebras: tuple[float, ...]
    patches: Array
    grain: tuple[int, int]

    @property
    def half_width(self) -> float:
        """Kerb to the middle."""
        return self.lane_width * sum(self.lanes) / 2 + self.verge

    def world(self, s: npt.ArrayLike, d: npt.ArrayLike, z: float = 0.0) -> Array:
        """Points (..., 3) of road coordinates."""
        k = self.curvature if abs(self.curvature) > 1e-7 else 1e-7
        turn = k * np.asarray(s, float)
        radius = 1 / k - np.asarray(d, float)
        x = np.sin(turn) * radius
        result = np.empty((*x.shape, 3))
        result[..., 0], result[..., 1], result[..., 2] = x, 1 / k - np.cos(turn) * radius, z
        return result

    def heading(self, s: float) -> float:
        """Direction of the road at s, radians."""
        return self.curvature * s

    def near_crossing(self, s: float, reach: float = 8.0) -> bool:
        """Whether a side street is within reach of s."""
        return any(abs(s - c) < reach for c in self.crossings)


CROSSING_HALF_M = 5.0


def choose_road(rng: np.random.Generator) -> Road:
    """Draw a cross-section and a curvature."""
    lanes = int(rng.choice([1, 1, 2, 2, 3]))
    grey = rng.uniform(60, 135)
    tint = rng.uniform(-5, 5, 3)
    ground = np.array([[88, 98, 58], [120, 112, 90], [130, 128, 124]], float)[rng.integers(3)]
    crossings = tuple(
        float(s) for s in np.cumsum(rng.uniform(28, 90, 4)) - 20 if rng.random() < 0.7
    )
    zebras = [c - CROSSING_HALF_M - 3.5 for c in crossings if rng.random() < 0.6]
    if rng.random() < 0.2:
        zebras.append(float(rng.uniform(8, 50)))
    number = int(rng.integers(3, 16))
    patches = np.stack(
        [
            rng.uniform(-5, 60, number), rng.uniform(-8, 8, number), rng.uniform(0.3, 5, number),
            rng.uniform(0.2, 1.8, number), rng.uniform(0.6, 1.2, number),
        ], 1,
    )  # fmt: skip
    paving = grey * rng.uniform(1.0, 1.45) + rng.uniform(-8, 8, 3)
    return Road(
        float(rng.normal(0, 0.0028)) * float(rng.random() < 0.6), (lanes, lanes),
        float(rng.uniform(2.9, 3.6)), float(rng.choice([0.3, 2.3], p=[0.45, 0.55])),
        float(rng.uniform(1.8, 5.0)), grey + tint, paving, ground * rng.uniform(0.8, 1.2),
        bool(rng.random() < 0.3), bool(rng.random() < 0.4), crossings, tuple(zebras), patches,
        (int(rng.choice([0, 4, 6, 10])), int(rng.choice([1, 3, 7, 9]))),
    )  # fmt: skip


def paint_ground(canvas: Canvas, camera: Camera, light: Light, road: Road, s0: float) -> None:
    """Fill everything below the horizon with flat colours; `ground.finish_ground` does the rest."""
    height, width = canvas.size_hw
    rows = camera.horizon_rows()
    land = np.array(
        [[-9, rows[0]], [width + 9, rows[-1]], [width + 9, height + 9], [-9, height + 9]]
    )
    up = light.sky + light.bounce * 0.1 + light.sun * max(light.sun_direction[2], 0)
    canvas.polygon(land, np.clip(road.ground * up, 0, 255), SCENERY)
    steps = np.concatenate(
        [np.arange(-60, 60, 5.0), np.arange(60, 150, 15.0), np.arange(150, 400, 50.0)]
    )
    half, out = road.half_width, road.half_width + road.pavement

    def ribbon(low: float, high: float, albedo: Array, span: Array | None = None) -> None:
        s = steps + s0 if span is None else span
        edge = np.concatenate([road.world(s, low), road.world(s[::-1], high)])
        outline = camera.polygon(edge)
        if outline is not None:
            canvas.polygon(outline, np.clip(albedo * up, 0, 255), SCENERY, convex=False)

    ribbon(-out, out, road.paving)
    ribbon(-half - 0.16, half + 0.16, road.paving * 1.2)
    ribbon(-half - 0.02, half + 0.02, road.paving * 0.55)
    for c in road.crossings:
        ribbon(-70, 70, road.asphalt, np.array([c - CROSSING_HALF_M, c + CROSSING_HALF_M]))
    ribbon(-half + 0.06, half - 0.06, road.asphalt)
    for s, d, length, wide, tone in road.patches:
        if abs(d) + wide < half:
            ribbon(d, d + wide, road.asphalt * tone, np.array([s, s + length]))
    _markings(canvas, camera, road, s0, up)


def _markings(canvas: Canvas, camera: Camera, road: Road, s0: float, up: Array) -> None:
    white = np.array([200.0, 200.0, 196.0])
    middle = np.array([205.0, 170.0, 70.0]) if road.yellow else white
    edge = road.lane_width * sum(road.lanes) / 2
    quads: list[Array] = []
    colours: list[Array] = []
    for lane in range(sum(road.lanes) + 1):
        d = -edge + lane * road.lane_width
        border = lane in (0, sum(road.lanes))
        if border and road.verge < 1 and not road.yellow:
            continue
        solid = border or (lane == road.lanes[0] and road.yellow)
        period, dash = (6.0, 6.0) if solid else (9.0, 3.6)
        starts = np.arange(np.floor((s0 - 30) / period) * period, s0 + 110, period)
        starts = np.array([s for s in starts if not road.near_crossing(s + dash / 2, 8.5)])
        if len(starts):
            quads.append(_quads(road, starts, starts + dash, d - 0.07, d + 0.07))
            colours += [middle if lane == road.lanes[0] else white] * len(starts)
    for s in road.zebras:
        low = np.arange(-road.half_width + 0.4, road.half_width - 0.8, 1.0)
        corners = [road.world(s, low), road.world(s + 3, low), road.world(s + 3, low + 0.5)]
        quads.append(np.stack([*corners, road.world(s, low + 0.5)], 1))
        colours += [white] * len(low)
    if not quads:
        return
    local = camera.to_camera(np.concatenate(quads))
    front = (local[..., 2] > NEAR_M).all(1)
    if front.any():
        pixels = camera.to_pixels(local[front])
        shown = np.array(colours)[front] * up * 0.95
        canvas.polygons(list(pixels), shown, SCENERY)


def _quads(road: Road, a: Array, b: Array, low: float, high: float) -> Array:
    """(N, 4, 3) of strips along the road."""
    return np.stack(
        [road.world(a, low), road.world(b, low), road.world(b, high), road.world(a, high)], 1
    )
