"""What lines a street and is not labeled: buildings, trees, hedges, fences, walls."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lab.scenes.camera import NEAR_M, Camera
from lab.scenes.canvas import SCENERY, Canvas
from lab.scenes.facades import PX_PER_M, facade
from lab.scenes.light import Light
from lab.scenes.textures import foliage, surface

Array = npt.NDArray[np.float64]
UP = np.array([0.0, 0.0, 1.0])


def sideways(span: Array) -> Array:
    """Return the level unit vector to the right of a level vector."""
    x, y = float(span[0]), float(span[1])
    length = max((x * x + y * y) ** 0.5, 1e-9)
    return np.array([y / length, -x / length, 0.0])


def irradiance(light: Light, normal: Array) -> Array:
    """Return what a matt surface of albedo 1 returns, (3,)."""
    up = 0.5 + 0.5 * normal[2]
    result: Array = light.sky * (0.25 + 0.75 * up) + light.bounce * (1 - up)
    return result + light.sun * max(0.0, float(normal @ light.sun_direction))


@dataclass(frozen=True, eq=False)
class Building:
    """A block with textured fronts; `corner` and `along` span its base line on the street side."""

    corner: Array
    along: Array
    inward: Array
    depth_m: float
    front: int
    side: int
    gable: bool
    tone: float

    def key(self, camera: Camera) -> float:
        """Paint order: the far end of the front, so that what stands before it comes later."""
        ends = np.stack([self.corner, self.corner + self.along])
        return float(camera.to_camera(ends)[:, 2].max())

    def paint(self, canvas: Canvas, camera: Camera, light: Light) -> None:
        """Paint the faces that are turned to the camera."""
        height = facade(self.front).height_m
        far = self.corner + self.inward * self.depth_m
        back = self.inward * self.depth_m
        end = self.corner + self.along
        for origin, span, which in (
            (self.corner, back, self.side), (end, back, self.side),
            (self.corner, self.along, self.front),
        ):  # fmt: skip
            normal = sideways(span)
            if normal @ (origin + span / 2 - (far + end) / 2) < 0:
                normal = -normal
            if normal @ (camera.position - origin) > 0:
                self._face(canvas, camera, light, (origin, span, normal, height), which)
        if self.gable:
            self._roof(canvas, camera, light, height)

    def _face(
        self, canvas: Canvas, camera: Camera, light: Light,
        plane: tuple[Array, Array, Array, float], which: int,
    ) -> None:  # fmt: skip
        origin, span, normal, height = plane
        corners = np.stack(
            [origin, origin + span, origin + span + UP * height, origin + UP * height]
        )
        outline = camera.polygon(corners)
        if outline is None:
            return
        depth = float(np.maximum(camera.to_camera(corners)[:, 2], NEAR_M).mean())
        front = facade(which)
        scale = camera.focal_xy[1] / depth
        level = int(np.clip(np.log2(PX_PER_M / scale) + 0.3, 0, len(front.levels) - 1))
        metres = 2.0**level / PX_PER_M
        unit = span / np.linalg.norm(span)
        to_pixels = camera.plane_homography(origin + UP * height, unit * metres, -UP * metres)
        fade = float(light.fade(depth * 0.8))
        gain = irradiance(light, normal) * self.tone * (1 - fade)
        glow = front.lamps[level] if light.night or light.dusk else None
        canvas.warp(front.levels[level], to_pixels, outline, gain, SCENERY, light.haze * fade, glow)

    def _roof(self, canvas: Canvas, camera: Camera, light: Light, height: float) -> None:
        ridge = self.corner + self.inward * self.depth_m / 2 + UP * (height + self.depth_m * 0.33)
        eave = self.corner - self.inward * 0.4 + UP * (height - 0.1)
        slope = np.stack([eave, eave + self.along, ridge + self.along, ridge])
        tile = np.array([105.0, 62.0, 50.0]) if self.front % 2 else np.array([70.0, 70.0, 75.0])
        colour = tile * irradiance(light, UP * 0.8 - self.inward * 0.6)
        for base in (self.corner, self.corner + self.along):
            end = [base + UP * height, base + self.inward * self.depth_m + UP * height]
            gable = camera.polygon(np.stack([*end, ridge + (base - self.corner)]))
            if gable is not None:
                wall = facade(self.side).wall * self.tone
                canvas.polygon(gable, np.clip(wall * irradiance(light, UP * 0), 0, 255), SCENERY)
        outline = camera.polygon(slope)
        if outline is not None:
            canvas.polygon(outline, np.clip(colour, 0, 255), SCENERY)


@dataclass(frozen=True, eq=False)
class Tree:
    """A trunk and a crown that always faces the camera."""

    base: Array
    height: float
    width: float
    kind: int
    tint: Array

    def key(self, camera: Camera) -> float:
        """Paint order."""
        return float(camera.to_camera(self.base)[2])

    def paint(self, canvas: Canvas, camera: Camera, light: Light) -> None:
        """Paint trunk, then crown."""
        depth = self.key(camera)
        # A billboard right beside the camera would cover everything; a real crown does not.
        if depth < max(1.5, 1.1 * self.width):
            return
        ends = camera.to_pixels(
            camera.to_camera(np.stack([self.base, self.base + UP * self.height]))
        )
        sx, sy = camera.focal_xy[0] / depth, camera.focal_xy[1] / depth
        fade = float(light.fade(depth))
        ambient = light.sky * 0.75 + light.sun * 0.35
        lift = light.haze * fade
        bare, bush = self.kind % 5 == 4, self.height < 2.2
        if not bare and not bush:
            bark = np.array([72.0, 60.0, 50.0]) * ambient * (1 - fade) + lift
            w = 0.022 * self.height * sx
            low, top = ends[0], ends[0] + (ends[1] - ends[0]) * 0.6
            trunk = np.stack([low - [w, 0], low + [w, 0], top + [w * 0.6, 0], top - [w * 0.6, 0]])
            canvas.polygon(trunk, np.clip(bark, 0, 255), SCENERY)
        bottom = 0.0 if bare or bush or self.kind % 5 == 3 else 0.28
        half = self.width / 2 * sx
        x = (ends[0, 0] + ends[1, 0]) / 2
        y1 = ends[0, 1] * (1 - bottom) + ends[1, 1] * bottom
        y0 = y1 - self.height * (1 - bottom) * sy
        corners = np.array([[x - half, y0], [x + half, y1]])
        grey, cover = foliage(self.kind)
        canvas.sprite(grey, cover, corners, self.tint * ambient * (1 - fade), lift, SCENERY)


@dataclass(frozen=True, eq=False)
class Screen:
    """An upright strip along a line on the ground: hedge, wall, fence, guard rail."""

    start: Array
    end: Array
    bottom: float
    height: float
    texture: int
    tint: Array
    rails: bool = field(default=False)

    def key(self, camera: Camera) -> float:
        """Paint order: the far end."""
        return float(camera.to_camera(np.stack([self.start, self.end]))[:, 2].max())

    def paint(self, canvas: Canvas, camera: Camera, light: Light) -> None:
        """Paint the strip, or posts and rails."""
        a, b = self.start + UP * self.bottom, self.end + UP * self.bottom
        outline = camera.polygon(np.stack([a, b, b + UP * self.height, a + UP * self.height]))
        if outline is None:
            return
        span = self.end - self.start
        normal = sideways(span)
        normal = normal if normal @ (camera.position - a) > 0 else -normal
        depth = float(np.maximum(camera.to_camera(np.stack([a, b]))[:, 2], NEAR_M).mean())
        fade = float(light.fade(depth))
        gain = irradiance(light, normal) * (1 - fade)
        lift = light.haze * fade
        if self.rails:
            self._rails(canvas, camera, np.clip(self.tint * gain + lift, 0, 255))
            return
        metres = 3.0 / 256
        unit = span / max(float(np.linalg.norm(span)), 1e-6)
        to_pixels = camera.plane_homography(a + UP * self.height, unit * metres, -UP * metres)
        texture = surface(self.texture)
        mean = float(texture.mean()) / 255
        canvas.warp(
            texture, to_pixels, outline, gain * self.tint / 255 / max(mean, 0.2), SCENERY, lift
        )

    def _rails(self, canvas: Canvas, camera: Camera, colour: Array) -> None:
        span = self.end - self.start
        length = float(np.linalg.norm(span))
        step = 0.25 if self.height > 1.1 else 1.8
        for i in range(int(length / step) + 1):
            foot = self.start + span * min(1.0, i * step / length) + UP * self.bottom
            self._bar(canvas, camera, foot, foot + UP * self.height, colour)
        for level in (0.35, 0.98):
            lift = UP * (self.bottom + self.height * level)
            self._bar(canvas, camera, self.start + lift, self.end + lift, colour)

    @staticmethod
    def _bar(canvas: Canvas, camera: Camera, low: Array, high: Array, colour: Array) -> None:
        local = camera.to_camera(np.stack([low, high]))
        if local[:, 2].max() < 0.8:
            return
        local[:, 2] = np.maximum(local[:, 2], 0.5)
        width = 0.045 * camera.focal_xy[0] / local[:, 2].mean()
        canvas.line(camera.to_pixels(local), colour, SCENERY, width)
