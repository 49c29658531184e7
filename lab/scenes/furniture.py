"""Things on pavements: poles, signals, signs, hydrants, bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.scenes.camera import Camera
from lab.scenes.canvas import SCENERY, Canvas
from lab.scenes.light import Light
from lab.scenes.solid import BEHIND, DETAIL, Solid, box, disc

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pole:
    """A post with an optional arm; `arm` is the vector from its top."""

    base: Array
    height: float
    radius: float
    arm: Array
    albedo: Array
    lamp: bool = False

    def key(self, camera: Camera) -> float:
        """Paint order: just behind what hangs on it."""
        return float(camera.to_camera(self.base)[2]) + 0.3

    def paint(self, canvas: Canvas, camera: Camera, light: Light) -> None:
        """Paint post and arm."""
        top = self.base + [0, 0, self.height]
        depth = self.key(camera)
        if depth < 1.0:
            return
        fade = float(light.fade(depth))
        colour = self.albedo * (light.sky * 0.7 + light.sun * 0.35) * (1 - fade) + light.haze * fade
        ends = camera.to_pixels(camera.to_camera(np.stack([self.base, top])))
        half = np.array([max(self.radius * camera.focal_xy[0] / depth, 0.5), 0.0])
        post = np.stack(
            [ends[0] - half, ends[0] + half, ends[1] + half * 0.7, ends[1] - half * 0.7]
        )
        canvas.polygon(post, np.clip(colour, 0, 255), SCENERY)
        lit = post.copy()
        lit[[1, 2]] = (post[[0, 3]] + 2 * post[[1, 2]]) / 3
        lit[[0, 3]] = (2 * post[[0, 3]] + post[[1, 2]]) / 3
        canvas.polygon(lit, np.clip(colour * 1.3, 0, 255), SCENERY)
        if np.abs(self.arm).sum() > 0:
            local = camera.to_camera(np.stack([top, top + self.arm]))
            if local[:, 2].min() > 0.8:
                width = 1.3 * self.radius * camera.focal_xy[1] / local[:, 2].mean()
                canvas.line(camera.to_pixels(local), np.clip(colour, 0, 255), SCENERY, width)


def signal(rng: np.random.Generator) -> Solid:
    """Draw a traffic light's housing around the origin's height, facing -x."""
    solid = Solid()
    lamps = int(rng.choice([3, 3, 3, 2]))
    across = rng.random() < 0.12
    high, wide = 0.31 * lamps + 0.06, 0.34
    shell = np.array([[26.0, 27, 28], [196, 160, 40], [60, 75, 66]])[
        rng.choice(3, p=[0.7, 0.2, 0.1])
    ]
    w, h = (high, wide) if across else (wide, high)
    for face in box(np.array([-0.1, -w / 2, 0.0]), np.array([0.12, w / 2, h])):
        solid.add(face, shell)
    lit = int(rng.integers(lamps))
    bright = (
        [(255, 60, 40), (255, 190, 60), (70, 255, 170)]
        if lamps == 3
        else [(255, 60, 40), (70, 255, 170)]
    )
    for i in range(lamps):
        offset = (i + 0.5) * 0.31 + 0.03
        y, z = (offset - w / 2, h / 2) if across else (0.0, h - offset)
        colour = np.array(bright[i], float)
        face = disc(np.array([-0.105, y, z]), 0.115, 0, -1.0, 12)
        solid.add(
            face, colour if i == lit else colour * 0.14 + 14, layer=DETAIL, glow=float(i == lit)
        )
        hood = disc(np.array([-0.11, y, z]), 0.135, 0, -1.0, 8, (0.2, np.pi - 0.2))
        solid.add(np.concatenate([hood, hood + [-0.16, 0, 0]]), shell * 0.7, layer=DETAIL)
    return solid


def stop_sign() -> Solid:
    """Return an octagon of 0.75 m around the origin, facing -x."""
    solid = Solid()
    turn = np.pi / 8
    solid.add(
        disc(np.array([0.0, 0, 0]), 0.4, 0, -1.0, 9, (turn, turn + 2 * np.pi - 1e-3))[:8],
        np.full(3, 225.0),
        layer=DETAIL,
    )
    face = disc(np.array([-0.004, 0, 0]), 0.37, 0, -1.0, 9, (turn, turn + 2 * np.pi - 1e-3))[:8]
    solid.add(face, np.array([185.0, 22, 28]), layer=DETAIL)
    solid.add(
        disc(np.array([0.03, 0, 0]), 0.4, 0, 1.0, 9, (turn, turn + 2 * np.pi - 1e-3))[:8],
        np.full(3, 130.0),
        layer=DETAIL,
    )
    for i in range(4):
        y = 0.2 - i * 0.135
        for dy in (0.0, 0.06):
            low, high = (-0.07, 0.08) if i % 2 == 0 or dy == 0 else (-0.02, 0.08)
            bar = np.array(
                [
                    [-0.008, y - dy, low],
                    [-0.008, y - dy, high],
                    [-0.008, y - dy - 0.022, high],
                    [-0.008, y - dy - 0.022, low],
                ]
            )
            solid.add(bar[::-1], np.full(3, 232.0), layer=DETAIL)
    return solid


def sign(rng: np.random.Generator) -> Solid:
    """Draw a round, triangular or rectangular sign around the origin, facing -x."""
    solid = Solid()
    kind = int(rng.integers(4))
    size = float(rng.uniform(0.3, 0.42))
    centre = np.array([0.0, 0, 0])
    red, white, blue = np.array([190.0, 25, 30]), np.full(3, 230.0), np.array([25.0, 70, 160])
    yellow, ink = np.array([230.0, 180, 40]), np.full(3, 25.0)
    if kind == 0:
        rims, corners, start = (red, white), 20, 0.0
    elif kind == 1:
        rims, corners, start = (red, white), 3, np.pi / 2
    elif kind == 2:
        rims, corners, start = (blue, blue * 1.1), 4, np.pi / 4
    else:
        rims, corners, start = (yellow, yellow * 1.05), 4, 0.0
    back = disc(centre + [0.03, 0, 0], size, 0, 1.0, corners + 1, (start, start + 2 * np.pi - 1e-3))
    solid.add(back[:-1] if corners < 20 else back, np.full(3, 120.0), layer=DETAIL)
    for i, (colour, scale) in enumerate(zip(rims, (1.0, 0.78), strict=True)):
        face = disc(
            centre - [0.004 * i, 0, 0],
            size * scale,
            0,
            -1.0,
            corners + 1,
            (start, start + 2 * np.pi - 1e-3),
        )
        solid.add(face[:-1] if corners < 20 else face, colour, layer=DETAIL)
    pale = white if kind == 2 else ink
    for _ in range(int(rng.integers(1, 4))):
        y, z = rng.uniform(-0.4, 0.2, 2) * size
        h, w = rng.uniform(0.15, 0.6) * size, rng.uniform(0.1, 0.3) * size
        mark = np.array(
            [[-0.01, y, z], [-0.01, y, z + h], [-0.01, y + w, z + h], [-0.01, y + w, z]]
        )
        solid.add(mark, pale, layer=DETAIL)
    return solid


def hydrant(rng: np.random.Generator) -> Solid:
    """Draw a fire hydrant."""
    solid = Solid()
    paint = np.array([[190.0, 40, 30], [215, 180, 50], [200, 200, 200]])[rng.integers(3)]
    for low, high, radius in (
        (0.0, 0.08, 0.16),
        (0.08, 0.55, 0.1),
        (0.5, 0.62, 0.13),
        (0.62, 0.75, 0.07),
    ):
        ring = disc(np.zeros(3), radius, 1, 1.0, 10)[:, [0, 2, 1]]
        solid.add(
            np.concatenate([ring + [0, 0, low], ring * [0.9, 0.9, 1] + [0, 0, high]]),
            paint,
            layer=BEHIND,
        )
    for axis in ((0.18, 0, 0), (0, 0.18, 0), (0, -0.18, 0)):
        ball = np.concatenate([np.eye(3), -np.eye(3)]) * 0.07
        at = np.array([0, 0, 0.42])
        solid.add(np.concatenate([ball + at, ball + at + axis]), paint * 0.9, layer=BEHIND)
    return solid


def clutter(rng: np.random.Generator) -> Solid:
    """Draw something without a class: bin, cabinet, bollard, cone, planter, crate."""
    solid = Solid()
    kind = int(rng.integers(5))
    colour = np.array([[50.0, 60, 55], [120, 120, 122], [150, 60, 40], [40, 70, 110], [95, 80, 60]])
    albedo = colour[rng.integers(5)] * rng.uniform(0.6, 1.5)
    if kind == 0:
        ring = disc(np.zeros(3), 0.27, 1, 1.0, 12)[:, [0, 2, 1]]
        solid.add(np.concatenate([ring * 0.85, ring + [0, 0, 0.95]]), albedo, layer=BEHIND)
        solid.add(
            np.concatenate([ring + [0, 0, 0.95], ring * 0.6 + [0, 0, 1.1]]),
            albedo * 0.7,
            layer=BEHIND,
        )
    elif kind == 1:
        ring = disc(np.zeros(3), 0.2, 1, 1.0, 12)[:, [0, 2, 1]]
        solid.add(
            np.concatenate([ring, ring * 0.12 + [0, 0, 0.72]]),
            np.array([225.0, 90, 35]),
            layer=BEHIND,
        )
        band = [ring * 0.62 + [0, 0, 0.3], ring * 0.45 + [0, 0, 0.44]]
        solid.add(np.concatenate(band), np.full(3, 225.0), layer=BEHIND)
    elif kind == 2:
        ring = disc(np.zeros(3), 0.09, 1, 1.0, 10)[:, [0, 2, 1]]
        solid.add(np.concatenate([ring, ring + [0, 0, 0.95]]), albedo, layer=BEHIND)
    else:
        size = rng.uniform([0.3, 0.3, 0.4], [0.9, 1.4, 1.7])
        for face in box(
            np.array([-size[0] / 2, -size[1] / 2, 0]), np.array([size[0] / 2, size[1] / 2, size[2]])
        ):
            solid.add(face, albedo)
    return solid
