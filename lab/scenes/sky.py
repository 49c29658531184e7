"""Sky, clouds and the skyline where the street ends."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.camera import Camera
from lab.scenes.canvas import SCENERY, Canvas
from lab.scenes.light import Light
from lab.scenes.textures import clouds, to_bytes

Array = npt.NDArray[np.float64]
FAR_M = 900.0


@dataclass(frozen=True, eq=False)
class Skyline:
    """Outlines far away: (N, 3) of left angle, width and height in radians; cloud texture."""

    blocks: Array
    tones: Array
    cloud: int
    drift: float


def choose_skyline(rng: np.random.Generator, tall: float) -> Skyline:
    """Draw towers and tree tops all around."""
    angles, blocks = 0.0, []
    while angles < 2 * np.pi:
        width = rng.uniform(0.008, 0.06)
        blocks.append((angles, width * 1.3, rng.uniform(0.004, 0.03) + tall * rng.random() ** 3))
        angles += width
    tones = rng.uniform(30, 150, (len(blocks), 1)) + rng.uniform(-12, 12, (len(blocks), 3))
    return Skyline(np.array(blocks), tones, int(rng.integers(6)), float(rng.uniform(0, 512)))


def paint_sky(canvas: Canvas, camera: Camera, light: Light, skyline: Skyline) -> None:
    """Fill the canvas with sky, then the skyline."""
    height = canvas.size_hw[0]
    rows = camera.horizon_rows()
    horizon = float(np.clip(rows.mean(), 1, height * 2))
    t = np.clip(1 - (np.arange(height) + 0.5) / horizon, 0, 1)[:, None] ** 0.75
    ramp = light.horizon * (1 - t) + light.zenith * t
    canvas.pixels[..., 3] = SCENERY
    if light.clouds < 0.05:
        canvas.rgb[:] = to_bytes(ramp)[:, None]
    else:
        _clouds(canvas, camera, light, skyline, (ramp, int(min(horizon, height)) + 1))
    _blocks(canvas, camera, light, skyline)


def _clouds(
    canvas: Canvas, camera: Camera, light: Light, skyline: Skyline, sky: tuple[Array, int]
) -> None:
    ramp, last = sky
    width = canvas.size_hw[1]
    # Clouds are soft: a third of the resolution is enough.
    small = (max(1, width // 3), max(1, last // 3))
    forward = camera.rotation[2]
    yaw = float(np.arctan2(forward[1], forward[0]))
    per_px = 512 / np.pi / camera.focal_xy[0]
    left = skyline.drift - yaw * 512 / np.pi - per_px * width / 2
    move = np.array(
        [[per_px * width / small[0], 0, left], [0, per_px * 2.5 * last / small[1], 10.0]]
    )
    cover = cv2.warpAffine(
        clouds(skyline.cloud), move, small,
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REFLECT,
    )  # fmt: skip
    weight = cover.astype(np.float32)[..., None] * np.float32(light.clouds / 255)
    white = (light.horizon * 1.06 + 6).astype(np.float32)
    rows = np.linspace(0, last - 1, small[1]).astype(int)
    base = ramp[rows].astype(np.float32)[:, None]
    mixed = np.minimum(base + weight * (white - base), 255).astype(np.uint8)
    canvas.rgb[:last] = cv2.resize(mixed, (width, last), interpolation=cv2.INTER_LINEAR)
    canvas.rgb[last:] = to_bytes(light.horizon)


def _blocks(canvas: Canvas, camera: Camera, light: Light, skyline: Skyline) -> None:
    forward = camera.rotation[2]
    yaw = float(np.arctan2(forward[1], forward[0]))
    offset = (skyline.blocks[:, 0] - yaw + np.pi) % (2 * np.pi) - np.pi
    reach = np.arctan(canvas.size_hw[1] / 2 / camera.focal_xy[0]) + 0.1
    fade = 0.35 + 0.6 * float(light.fade(FAR_M * 0.6))
    sun = light.sky * 0.7 + light.sun * 0.3
    for i in np.flatnonzero(np.abs(offset) < reach):
        angle, wide, high = skyline.blocks[i]
        ends = np.array([angle, angle + wide])
        at = camera.position + FAR_M * np.stack([np.cos(ends), np.sin(ends), np.zeros(2)], 1)
        at[:, 2] = -3.0
        top = at.copy()
        top[:, 2] = FAR_M * high
        outline = camera.polygon(np.concatenate([at, top[::-1]]))
        if outline is not None:
            colour = skyline.tones[i] * sun * (1 - fade) + light.haze * fade
            canvas.polygon(outline, np.clip(colour, 0, 255), SCENERY)
