"""What makes painted surfaces look real: grain on objects, glows, wet asphalt, the bonnet."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.camera import Camera
from lab.scenes.canvas import SCENERY, Canvas
from lab.scenes.light import Light
from lab.scenes.textures import clouds, noise
from lab.scenes.world import Actor

Array = npt.NDArray[np.float64]
_GLOW = np.exp(-((np.mgrid[-32:33, -32:33] / 11.0) ** 2).sum(0)).astype(np.float32)


def texture_object(canvas: Canvas, bounds: Array, owner: int, actor: Actor) -> int:
    """Give an object's pixels grain, folds or reflections; returns how many it owns."""
    area = canvas.roi(bounds.reshape(2, 2))
    if area is None:
        return 0
    view = canvas.pixels[area]
    mask = cv2.inRange(view[..., 3], owner, owner)
    count = cv2.countNonZero(mask)
    height, width = mask.shape
    index, strength = actor.cloth
    if count < 30:
        return int(count)
    person = actor.label == "person"
    scale = max(height / (60 if person else 110), 0.25)
    shift = -float((actor.track_id * 37) % 101)
    move = np.array([[scale * (1 if person else 2.2), 0, shift * scale], [0, scale, shift * scale]])
    grain = cv2.warpAffine(
        noise(index), move, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP
    )
    weight = strength * (1.3 if person else 0.9) * actor.dim
    base = actor.dim * 128 - weight * 128
    slope = np.linspace(-0.5, 0.5, width, dtype=np.float32) * np.float32(actor.slope[0] * 128)
    fall = np.linspace(-0.5, 0.5, height, dtype=np.float32) * np.float32(actor.slope[1] * 128)
    gain = grain * np.float32(weight) + (fall[:, None] + (slope[None] + np.float32(base)))
    if actor.dapple >= 0:
        _dapple(gain, actor, scale)
    gain = cv2.convertScaleAbs(np.maximum(gain, 8))
    shaded = cv2.multiply(
        cv2.cvtColor(view, cv2.COLOR_BGRA2BGR), cv2.merge([gain] * 3), scale=1 / 128
    )
    canvas.paste(shaded, mask, area, owner)
    return int(count)


def _dapple(gain: npt.NDArray[np.float32], actor: Actor, scale: float) -> None:
    """Shade of leaves or of a house falling across an object."""
    height, width = gain.shape
    shift = float((actor.track_id * 53) % 211)
    zoom = scale * (0.35 if actor.dapple % 2 else 1.2)
    move = np.array([[zoom, 0, -shift * zoom], [0, zoom, -shift * zoom]])
    cover = cv2.warpAffine(
        clouds(actor.dapple), move, (width, height), flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )  # fmt: skip
    gain *= np.where(cover > 128, np.float32(0.5), np.float32(1.08))


def glow(canvas: Canvas, camera: Camera, point: Array, colour: Array, size_m: float) -> None:
    """Add a lamp's halo at a world point."""
    local = camera.to_camera(point)
    if local[2] < 1.0 or local[2] > 150:
        return
    centre = camera.to_pixels(local)
    radius = float(np.clip(size_m * camera.focal_xy[1] / local[2], 2.0, canvas.size_hw[0] / 3))
    area = canvas.roi(np.stack([centre - radius, centre + radius]))
    if area is None:
        return
    move = np.array([[radius / 32, 0, centre[0] - radius], [0, radius / 32, centre[1] - radius]])
    move[:, 2] -= (area[1].start, area[0].start)
    size = (area[1].stop - area[1].start, area[0].stop - area[0].start)
    halo = cv2.warpAffine(_GLOW, move, size)[..., None] * colour.astype(np.float32)
    rgb = canvas.rgb[area]
    rgb[:] = np.minimum(rgb + halo, 255).astype(np.uint8)


def wet_road(canvas: Canvas, camera: Camera, light: Light) -> None:
    """Mirror what stands above the horizon in the wet ground."""
    horizon = int(camera.horizon_rows().mean())
    height = canvas.size_hw[0]
    rows = min(height - horizon, horizon)
    if horizon <= 8 or rows <= 8:
        return
    mirror = cv2.blur(canvas.pixels[horizon - rows : horizon][::-1], (5, 31))[..., :3]
    view = canvas.pixels[horizon : horizon + rows]
    weight = 0.45 * light.wet * np.linspace(1, 0.45, rows, dtype=np.float32)[:, None, None]
    weight = weight * (view[..., 3:] == SCENERY)
    mixed = view[..., :3] * (1 - weight) + mirror * weight
    view[..., :3] = mixed.astype(np.uint8)


def headlights(canvas: Canvas, camera: Camera) -> None:
    """Brighten what lies before the car at night."""
    height, width = canvas.size_hw
    horizon = float(camera.horizon_rows().mean())
    y = (np.arange(height, dtype=np.float32)[:, None] - horizon) / height
    x = (np.arange(width, dtype=np.float32)[None] - width / 2) / width
    lift = np.where(y > 0, np.exp(-(((y - 0.12) / 0.22) ** 2)), np.exp(-((y / 0.06) ** 2)) * 0.75)
    beam = 1 + 2.2 * lift * np.exp(-((x / 0.33) ** 2))
    rgb = canvas.rgb
    rgb[:] = np.minimum(rgb * beam[..., None], 255).astype(np.uint8)


def bonnet(canvas: Canvas, kind: int) -> None:
    """Cover the lower edge with the own car's bonnet or dashboard."""
    height, width = canvas.size_hw
    top = height * (0.99 - 0.018 * kind)
    x = np.linspace(-0.02, 1.02, 15)
    y = top + height * 0.05 * (2 * x - 1) ** 2 * (1 if kind % 2 else 0.3)
    shape = np.column_stack([x * width, y])
    base = np.array([[1.02 * width, height + 9.0], [-0.02 * width, height + 9.0]])
    tone = np.array([22.0, 23.0, 25.0]) * (1 + (kind % 3) * 1.4)
    canvas.polygon(np.concatenate([shape, base]), tone, SCENERY, convex=False)
