"""From a seed to a picture with its truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.scenes.camera import NEAR_M, Camera
from lab.scenes.canvas import MAX_OWNERS, SCENERY, Canvas
from lab.scenes.close_traffic import move
from lab.scenes.furniture import Pole
from lab.scenes.ground import Shade, finish_ground
from lab.scenes.lens import choose_lens, finish
from lab.scenes.light import Light, choose_light
from lab.scenes.random_domain import scatter
from lab.scenes.road import paint_ground
from lab.scenes.sky import paint_sky
from lab.scenes.solid import Pose, Solid, paint_solid
from lab.scenes.street import choose_world
from lab.scenes.surface import bonnet, glow, headlights, texture_object, wet_road
from lab.scenes.truth import Painted, collect
from lab.scenes.types import Scene
from lab.scenes.world import Actor, Scenery, World
from sam2_core.types import AutolabelError

Array = npt.NDArray[np.float64]
DOMAINS = ("street", "random", "close")
STREET_SHARE = 0.3  # of the "random" domain: shapes scattered over a street
CAMERA_YAW_DEG = {
    "front": 0.0, "front_left": 55.0, "front_right": -55.0, "left": 100.0, "right": -100.0,
    "rear": 180.0,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Placed:
    """An actor at the moment of the picture."""

    actor: Actor
    solid: Solid
    pose: Pose
    depth: float


def render_scene(
    seed: int, size_hw: tuple[int, int] = (720, 1280), *, domain: str = "street",
    aspect: float | None = None,
) -> Scene:  # fmt: skip
    """Render one picture; the same arguments give the same bytes in every process.

    Args:
        seed: any integer >= 0.
        size_hw: of the image.
        domain: "street"; "random" (wide randomisation, for training); or "close" (a street with
            somebody right before the camera, moving, in harder light; for training).
        aspect: width over height of the picture before it was squeezed into `size_hw`
            (a 16:9 frame in a square model input: 16 / 9); default: not squeezed.

    Raises:
        AutolabelError: an unknown domain, a size below 16 px.

    """
    check_size(size_hw)
    if domain not in DOMAINS:
        raise AutolabelError(f"unknown scene domain {domain!r}; choose one of {', '.join(DOMAINS)}")
    rng = np.random.default_rng([seed, DOMAINS.index(domain)])
    ratio = aspect or size_hw[1] / size_hw[0]
    if domain != "random" or rng.random() < STREET_SHARE:
        world = choose_world(rng, close=domain == "close")
        canvas, painted = paint_world(world, 0.0, "front", size_hw, ratio)
        lens = world.lens
    else:
        canvas, painted, lens = Canvas(size_hw), [], choose_lens(rng, choose_light(rng))
    if domain == "random":
        scatter(canvas, painted, rng)
    if domain == "close":
        move(canvas, painted, rng)
    return collect(finish(canvas.pixels, lens, rng), canvas, painted)


def check_size(size_hw: tuple[int, int]) -> None:
    """Refuse pictures too small to hold anything."""
    if min(size_hw) < 16:
        raise AutolabelError(f"a scene of {size_hw[1]}x{size_hw[0]} px: at least 16x16 is needed")


def render_world(
    world: World, time_s: float, camera_name: str, size_hw: tuple[int, int], aspect: float,
    rng: np.random.Generator,
) -> Scene:  # fmt: skip
    """Picture of a world at a time through one of the cameras; `rng` drives the sensor's noise."""
    canvas, painted = paint_world(world, time_s, camera_name, size_hw, aspect)
    return collect(finish(canvas.pixels, world.lens, rng), canvas, painted)


def paint_world(
    world: World, time_s: float, camera_name: str, size_hw: tuple[int, int], aspect: float
) -> tuple[Canvas, list[Painted]]:
    """Paint a world before it goes through the lens."""
    s, d = world.ego(time_s)
    rig, light = world.rig, world.light
    yaw = world.road.heading(s) + np.radians(CAMERA_YAW_DEG[camera_name])
    camera = Camera.create(
        world.road.world(s, d, rig.height), (float(yaw), rig.pitch, rig.roll), rig.fov, size_hw,
        aspect, rig.shift_y,
    )  # fmt: skip
    canvas = Canvas(size_hw)
    paint_sky(canvas, camera, light, world.skyline)
    paint_ground(canvas, camera, light, world.road, s)
    placed = _placed(world, camera, time_s)
    shade = Shade(camera, light)
    for points in world.shadows:
        shade.cast(points)
    for place in placed:
        shade.contact(place.solid, place.pose)
        shade.cast(place.pose.apply(place.solid.pack().points[::3]))
    finish_ground(canvas, camera, light, world.road, shade)
    painted = _paint_all(canvas, camera, light, world.scenery, placed)
    _effects(canvas, camera, world, placed)
    if camera_name == "front" and world.lens.bonnet:
        bonnet(canvas, world.lens.bonnet)
    return canvas, painted


def _placed(world: World, camera: Camera, time_s: float) -> list[Placed]:
    """Actors in front of the camera, far to near; at most what the canvas can tell apart."""
    result = []
    for actor in world.actors:
        pose = actor.pose(time_s)
        local = camera.to_camera(np.array([pose.x, pose.y, pose.z + 0.5]))
        depth = float(local[2])
        solid = actor.solid(time_s)
        low, high = solid.bounds()
        half = float(max(-low[0], high[0], 0.3))
        reach = abs(local[0]) * camera.focal_xy[0] - 8 * camera.focal_xy[0]
        if -half + 0.5 < depth < 160 and reach < max(depth, 1.5) * camera.size_hw[1]:
            result.append(Placed(actor, solid, pose, depth))
    result.sort(key=lambda p: p.actor.nearer - p.depth)
    return result[-MAX_OWNERS:]


def _paint_all(
    canvas: Canvas, camera: Camera, light: Light, scenery: tuple[Scenery, ...],
    placed: list[Placed],
) -> list[Painted]:  # fmt: skip
    """Paint scenery and actors far to near."""
    order: list[tuple[float, Scenery | Placed]] = [(p.depth - p.actor.nearer, p) for p in placed]
    keyed = ((item.key(camera), item) for item in scenery)
    order += [entry for entry in keyed if entry[0] > NEAR_M]
    order.sort(key=lambda entry: -entry[0])
    painted: list[Painted] = []
    for _, thing in order:
        if not isinstance(thing, Placed):
            thing.paint(canvas, camera, light)
            continue
        owner = len(painted) + 1
        bounds = paint_solid(canvas, camera, light, thing.solid, thing.pose, owner)
        if bounds is not None:
            whole = texture_object(canvas, bounds, owner, thing.actor)
            who = thing.actor
            painted.append(
                Painted(who.label, who.track_id, thing.depth, owner, bounds, whole, who.rides)
            )
    return painted


def _effects(canvas: Canvas, camera: Camera, world: World, placed: list[Placed]) -> None:
    light = world.light
    if light.wet > 0.1:
        wet_road(canvas, camera, light)
    if light.night:
        headlights(canvas, camera)
    if not (light.night or light.dusk):
        return
    for place in placed:
        towards = camera.position - [place.pose.x, place.pose.y, 0]
        for point, colour in place.actor.lamps:
            at = place.pose.apply(point)
            if (at - [place.pose.x, place.pose.y, 0]) @ towards > 0 and _seen(canvas, camera, at):
                glow(canvas, camera, at, colour, 0.7)
    for thing in world.scenery:
        if isinstance(thing, Pole) and thing.lamp:
            top = thing.base + [0, 0, thing.height] + thing.arm
            glow(canvas, camera, top, np.array([255.0, 210.0, 150.0]), 1.1)


def _seen(canvas: Canvas, camera: Camera, point: Array) -> bool:
    local = camera.to_camera(point)
    if local[2] < 1:
        return False
    x, y = camera.to_pixels(local)
    height, width = canvas.size_hw
    inside = 0 <= x < width and 0 <= y < height
    return bool(inside and canvas.owner[int(y), int(x)] != SCENERY)
