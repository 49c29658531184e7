"""From a seed to a picture with its truth."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from sam2_core.types import AutolabelError
from tasks.scenes.camera import Camera
from tasks.scenes.canvas import MAX_OWNERS, Canvas
from tasks.scenes.lens import finish
from tasks.scenes.light import Light
from tasks.scenes.road import paint_ground
from tasks.scenes.solid import Pose, Solid, paint_solid
from tasks.scenes.types import Instance, Scene
from tasks.scenes.world import Actor, World, choose_world

Array = npt.NDArray[np.float64]
DOMAINS = ("street", "random")
# Visible pixels that an instance needs, for a picture of 1280 x 720; scales with the area.
MIN_AREA_PX = 150
CAMERA_YAW_DEG = {
    "front": 0.0, "front_left": 55.0, "front_right": -55.0, "left": 100.0, "right": -100.0,
    "rear": 180.0,
}  # fmt: skip


def render_scene(
    seed: int, size_hw: tuple[int, int] = (720, 1280), *, domain: str = "street",
    aspect: float | None = None,
) -> Scene:  # fmt: skip
    """Render one picture; the same arguments give the same bytes in every process.

    Args:
        seed: any integer >= 0.
        size_hw: of the image.
        domain: "street", or "random" (wide randomisation, for training).
        aspect: width over height of the picture before it was squeezed into `size_hw`
            (a 16:9 frame in a square model input: 16 / 9); default: not squeezed.

    Raises:
        AutolabelError: an unknown domain, a size below 16 px.

    """
    check_size(size_hw)
    if domain not in DOMAINS:
        raise AutolabelError(f"unknown scene domain {domain!r}; choose one of {', '.join(DOMAINS)}")
    rng = np.random.default_rng([seed, DOMAINS.index(domain)])
    world = choose_world(rng)
    ratio = aspect or size_hw[1] / size_hw[0]
    return render_world(world, 0.0, "front", size_hw, ratio, rng)


def check_size(size_hw: tuple[int, int]) -> None:
    """Refuse pictures too small to hold anything."""
    if min(size_hw) < 16:
        raise AutolabelError(f"a scene of {size_hw[1]}x{size_hw[0]} px: at least 16x16 is needed")


def render_world(
    world: World, time_s: float, camera_name: str, size_hw: tuple[int, int], aspect: float,
    rng: np.random.Generator,
) -> Scene:  # fmt: skip
    """Paint a world at a time through one of the cameras; `rng` drives the sensor's noise."""
    s, d = world.ego(time_s)
    position = world.road.world(s, d, world.camera_height)
    yaw = world.road.heading(s) + np.radians(CAMERA_YAW_DEG[camera_name])
    camera = Camera.create(position, (float(yaw), 0.0, 0.0), np.radians(70), size_hw, aspect, 0.05)
    canvas = Canvas(size_hw)
    _sky(canvas, camera, world.light)
    paint_ground(canvas, camera, world.light, world.road, s)
    placed = [(a.pose(time_s), a) for a in world.actors]
    placed = [p for p in placed if _depth(camera, p[0]) > 0.5]
    placed.sort(key=lambda p: -_depth(camera, p[0]))
    _shadows(canvas, camera, world.light, [(p, a.solid(time_s)) for p, a in placed])
    painted: list[tuple[Actor, int, Array, float, int]] = []
    for pose, actor in placed[-MAX_OWNERS:]:
        owner = len(painted) + 1
        bounds = paint_solid(canvas, camera, world.light, actor.solid(time_s), pose, owner)
        if bounds is None:
            continue
        whole = _owned(canvas, bounds, owner)
        painted.append((actor, owner, bounds, _depth(camera, pose), whole))
    image = finish(canvas.rgb, world.light, rng)
    return collect(image, canvas, painted)


def _depth(camera: Camera, pose: Pose) -> float:
    return float(camera.to_camera(np.array([pose.x, pose.y, pose.z + 0.5]))[2])


def _sky(canvas: Canvas, camera: Camera, light: Light) -> None:
    height = canvas.size_hw[0]
    horizon = float(camera.horizon_rows().mean())
    t = np.clip(1 - np.arange(height) / max(horizon, 1.0), 0, 1)[:, None] ** 0.7
    canvas.rgb[:] = (light.horizon * (1 - t) + light.zenith * t).astype(np.uint8)[:, None]


def _shadows(
    canvas: Canvas, camera: Camera, light: Light, placed: list[tuple[Pose, Solid]]
) -> None:
    dark = np.zeros(canvas.size_hw, np.uint8)
    for pose, solid in placed:
        low, high = solid.bounds()
        corners = np.array(
            [[low[0], low[1], 0], [high[0], low[1], 0], [high[0], high[1], 0], [low[0], high[1], 0]]
        )
        outline = camera.polygon(pose.apply(corners * [1, 1, 0]))
        if outline is not None:
            cv2.fillConvexPoly(dark, np.rint(np.clip(outline, -9999, 9999)).astype(np.int32), 150)
    dark = cv2.GaussianBlur(dark, (0, 0), 2.0)
    keep = cv2.merge([255 - dark] * 3)
    canvas.rgb[:] = cv2.multiply(np.ascontiguousarray(canvas.rgb), keep, scale=1 / 255)


def _owned(canvas: Canvas, bounds: Array, owner: int) -> int:
    area = canvas.roi(bounds.reshape(2, 2))
    return 0 if area is None else int(np.count_nonzero(canvas.owner[area] == owner))


def collect(
    image: npt.NDArray[np.uint8], canvas: Canvas,
    painted: list[tuple[Actor, int, Array, float, int]],
) -> Scene:  # fmt: skip
    """Read every owner's pixels off the canvas."""
    least = MIN_AREA_PX * image.shape[0] * image.shape[1] / (720 * 1280)
    instances: list[Instance] = []
    dropped: list[Instance] = []
    for actor, owner, bounds, depth, whole in painted:
        area = canvas.roi(bounds.reshape(2, 2), 2)
        if not actor.label or area is None:
            continue
        mask = canvas.owner[area] == owner
        ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if not len(ys):
            continue
        crop = mask[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1].copy()
        x, y = int(xs[0]) + area[1].start, int(ys[0]) + area[0].start
        box = np.array([x, y, x + crop.shape[1], y + crop.shape[0]], np.float32)
        visible = int(np.count_nonzero(crop))
        fraction = visible / max(whole, 1) * _inside(bounds, canvas.size_hw)
        instance = Instance(
            crop,
            (x, y),
            box,
            actor.label,
            actor.track_id,
            depth,
            float(min(fraction, 1.0)),
            visible,
        )
        (instances if visible >= max(least, 4) else dropped).append(instance)
    return Scene(image, tuple(instances), tuple(dropped))


def _inside(bounds: Array, size_hw: tuple[int, int]) -> float:
    """Share of the bounds that lies inside the picture."""
    limit = np.array([size_hw[1], size_hw[0]])
    low, high = np.clip(bounds[:2], 0, limit), np.clip(bounds[2:], 0, limit)
    whole = float(np.prod(np.maximum(bounds[2:] - bounds[:2], 1e-6)))
    return float(np.prod(high - low)) / whole
