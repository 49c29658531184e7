"""Grain, shadows and haze on the ground."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.camera import Camera
from lab.scenes.canvas import Canvas
from lab.scenes.light import Light
from lab.scenes.road import Road
from lab.scenes.solid import Pose, Solid
from lab.scenes.textures import noise

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
FINE_M, COARSE_M = 1.5, 23.0  # metres that one period of the noise covers


class Shade:
    """Darkness on the ground at half the canvas' resolution, 0-255."""

    def __init__(self, camera: Camera, light: Light) -> None:
        self.camera, self.light = camera, light
        height, width = camera.size_hw
        self.dark: Bytes = np.zeros(((height + 1) // 2, (width + 1) // 2), np.uint8)

    def polygon(self, ground: Array, strength: float) -> None:
        """Darken the hull of ground points (N, 2 or 3)."""
        hull = ground[:, :2]
        if len(hull) > 4:
            hull = cv2.convexHull(hull.astype(np.float32))[:, 0].astype(float)
        outline = self.camera.polygon(np.column_stack([hull, np.zeros(len(hull))]))
        if outline is None:
            return
        fixed = np.rint(np.clip(outline / 2, -8000, 8000) * 16).astype(np.int32)
        height, width = self.dark.shape
        x, y, w, h = cv2.boundingRect(fixed)
        x0, y0 = max(0, x // 16 - 1), max(0, y // 16 - 1)
        x1, y1 = min(width, (x + w) // 16 + 2), min(height, (y + h) // 16 + 2)
        if x1 <= x0 or y1 <= y0:
            return
        patch = np.zeros((y1 - y0, x1 - x0), np.uint8)
        cv2.fillConvexPoly(patch, fixed - [x0 * 16, y0 * 16], int(255 * strength), cv2.LINE_8, 4)
        view = self.dark[y0:y1, x0:x1]
        np.maximum(view, patch, out=view)

    def cast(self, points: Array) -> None:
        """Darken where the sun is hidden by a convex thing with these world points (N, 3)."""
        direction = self.light.sun_direction
        if self.light.sun.max() < 0.1:
            return
        length = np.minimum(points[:, 2:3] / max(direction[2], 0.08), 40.0)
        self.polygon(points[:, :2] - direction[:2] * length, self.light.shadow)

    def contact(self, solid: Solid, pose: Pose) -> None:
        """Darken the ground below an object."""
        low, high = solid.bounds()
        far = pose.x - self.camera.position[0], pose.y - self.camera.position[1]
        near = far[0] ** 2 + far[1] ** 2 < 25**2
        rings = ((1.06, 0.35), (0.98, 0.62), (0.86, 0.85)) if near else ((0.97, 0.7),)
        for grow, strength in rings:
            x0, x1, y0, y1 = low[0] * grow, high[0] * grow, low[1] * grow, high[1] * grow
            corners = np.array([[x0, y0, 0], [x1, y0, 0], [x1, y1, 0], [x0, y1, 0]])
            self.polygon(pose.apply(corners), strength)


def finish_ground(canvas: Canvas, camera: Camera, light: Light, road: Road, shade: Shade) -> None:
    """Apply grain, shadows and haze below the horizon; call before anything stands there."""
    height, width = canvas.size_hw
    rows = camera.horizon_rows()
    top = int(np.clip(np.floor(rows.min()), 0, height))
    if top >= height:
        return
    below = np.maximum(np.arange(top, height) + 0.5 - float(rows.mean()), 0.5)
    distance = camera.focal_xy[1] * camera.position[2] / below
    gain = np.full((height - top, width), 128, np.float32)
    for index, metres, reach in ((road.grain[0], FINE_M, 9.0), (road.grain[1], COARSE_M, 90.0)):
        weight = 0.75 * np.clip(1.2 - distance / reach, 0, 1).astype(np.float32)
        first = int(np.argmax(weight > 0)) if (weight > 0).any() else len(weight)
        if first == len(weight):
            continue
        gain[first:] += _grain(camera, index, metres, top + first) * weight[first:, None]
    dark = cv2.GaussianBlur(shade.dark, (0, 0), max(0.8, 0.0025 * width))
    dark = cv2.resize(dark, (width, height), interpolation=cv2.INTER_LINEAR)[top:]
    gain *= 1 - dark.astype(np.float32) * np.float32(1 / 255)
    level = cv2.convertScaleAbs(gain)
    view = canvas.pixels[top:]
    rgb = cv2.multiply(
        cv2.cvtColor(view, cv2.COLOR_BGRA2BGR), cv2.merge([level] * 3), scale=1 / 128
    )
    fade = light.fade(distance)[:, None]
    far = int(np.count_nonzero(fade[:, 0] > 0.02))
    mixed = rgb[:far] * (1 - fade[:far, None]) + (light.haze * fade[:far])[:, None]
    rgb[:far] = np.clip(mixed, 0, 255).astype(np.uint8)
    above = np.arange(top, height)[:, None] < rows[None]
    mixed_rows = int(np.count_nonzero(above.any(1)))
    keep = above[:mixed_rows, :, None]
    rgb[:mixed_rows] = np.where(keep, view[:mixed_rows, :, :3], rgb[:mixed_rows])
    view[..., :3] = rgb


def _grain(camera: Camera, index: int, metres: float, top: int) -> npt.NDArray[np.float32]:
    height, width = camera.size_hw
    step = metres / 256
    axes = np.array([[step, 0, 0], [0, step, 0.0]])
    to_pixels = camera.plane_homography(np.zeros(3), axes[0], axes[1])
    move = np.array([[1, 0, 0], [0, 1, -top], [0, 0, 1.0]])
    patch = cv2.warpPerspective(
        noise(index), move @ to_pixels, (width, height - top), flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_WRAP,
    )  # fmt: skip
    result: npt.NDArray[np.float32] = patch.astype(np.float32) - np.float32(128)
    return result
