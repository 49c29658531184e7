"""The road: lanes, kerbs and pavements along a gently curved line."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.scenes.camera import Camera
from tasks.scenes.canvas import Canvas
from tasks.scenes.light import Light

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Road:
    """A road of constant curvature. s runs along it, d to the left of its middle, in metres."""

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

    @property
    def half_width(self) -> float:
        """Kerb to the middle."""
        return self.lane_width * sum(self.lanes) / 2 + self.verge

    def world(self, s: npt.ArrayLike, d: npt.ArrayLike, z: float = 0.0) -> Array:
        """Points (..., 3) of road coordinates."""
        s, d = np.broadcast_arrays(np.asarray(s, float), np.asarray(d, float))
        k = self.curvature if abs(self.curvature) > 1e-7 else 1e-7
        radius = 1 / k - d
        result: Array = np.stack(
            [np.sin(k * s) * radius, 1 / k - np.cos(k * s) * radius, np.full(s.shape, z)], -1
        )
        return result

    def heading(self, s: float) -> float:
        """Direction of the road at s, radians."""
        return self.curvature * s


def choose_road(rng: np.random.Generator) -> Road:
    """Draw a cross-section and a curvature."""
    lanes = int(rng.choice([1, 1, 2, 2, 3]))
    grey = rng.uniform(70, 135)
    tint = rng.uniform(-5, 5, 3)
    ground = np.array([[88, 98, 58], [120, 112, 90], [130, 128, 124]], float)[rng.integers(3)]
    return Road(
        float(rng.normal(0, 0.0025)) * float(rng.random() < 0.6), (lanes, lanes),
        float(rng.uniform(2.9, 3.6)), float(rng.choice([0.3, 2.3], p=[0.45, 0.55])),
        float(rng.uniform(1.8, 5.0)), grey + tint,
        grey * rng.uniform(1.0, 1.35) + rng.uniform(-8, 8, 3),
        ground * rng.uniform(0.8, 1.2), bool(rng.random() < 0.3), bool(rng.random() < 0.4),
    )  # fmt: skip


def paint_ground(canvas: Canvas, camera: Camera, light: Light, road: Road, s0: float) -> None:
    """Fill everything below the horizon: land, pavements, kerbs, asphalt, markings."""
    height, width = canvas.size_hw
    rows = camera.horizon_rows()
    land = np.concatenate(
        [
            np.stack([np.arange(width) + 0.5, rows], 1)[[0, -1]],
            [[width + 9, height + 9], [-9, height + 9]],
        ]
    )
    up = light.sky + light.bounce * 0.1 + light.sun * max(light.sun_direction[2], 0)
    canvas.polygon(land, road.ground * up * 0.6 + light.haze * 0.4, 0)
    steps = np.concatenate([np.arange(-60, 60, 4.0), np.arange(60, 260, 20.0)]) + s0
    half, out = road.half_width, road.half_width + road.pavement
    for low, high, albedo in (
        (-60.0, 60.0, road.ground), (-out, out, road.paving),
        (-half - 0.16, half + 0.16, road.paving * 1.2),
        (-half, half, road.paving * 0.55), (-half + 0.06, half - 0.06, road.asphalt),
    ):  # fmt: skip
        for a, b in itertools.pairwise(steps):
            _strip(canvas, camera, light, road, (a, b), (low, high), albedo * up)
    _markings(canvas, camera, light, road, s0, up)


def _strip(
    canvas: Canvas, camera: Camera, light: Light, road: Road, s: tuple[float, float],
    d: tuple[float, float], colour: Array,
) -> None:  # fmt: skip
    quad = road.world([s[0], s[1], s[1], s[0]], [d[0], d[0], d[1], d[1]])
    outline = camera.polygon(quad)
    if outline is None:
        return
    fade = light.fade(float(np.linalg.norm(quad.mean(0) - camera.position)))
    canvas.polygon(outline, np.clip(colour * (1 - fade) + light.haze * fade, 0, 255), 0)


def _markings(
    canvas: Canvas, camera: Camera, light: Light, road: Road, s0: float, up: Array
) -> None:
    white = np.array([215.0, 215.0, 210.0])
    middle = np.array([205.0, 170.0, 70.0]) if road.yellow else white
    edge = road.lane_width * sum(road.lanes) / 2
    for lane in range(sum(road.lanes) + 1):
        d = -edge + lane * road.lane_width
        solid = lane in (0, sum(road.lanes)) or (lane == road.lanes[0] and road.yellow)
        colour = (middle if lane == road.lanes[0] else white) * up * 0.9
        period, dash = (4.0, 4.0) if solid else (9.0, 3.6)
        for start in np.arange(np.floor((s0 - 40) / period) * period, s0 + 110, period):
            _strip(canvas, camera, light, road, (start, start + dash), (d - 0.07, d + 0.07), colour)
