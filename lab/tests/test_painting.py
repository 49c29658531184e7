"""What is in front owns the pixel; nothing to draw and odd placements are no trouble."""

from __future__ import annotations

import numpy as np
import pytest

from lab.scenes import render_scene
from lab.scenes.camera import Camera
from lab.scenes.canvas import Canvas
from lab.scenes.light import Light, choose_light
from lab.scenes.places import MODELS, model
from lab.scenes.random_domain import scatter
from lab.scenes.solid import Pose, Solid, paint_solid
from lab.scenes.truth import MIN_AREA_PX, MIN_VISIBLE, Painted, collect

SIZE = (180, 320)


@pytest.fixture
def camera() -> Camera:
    return Camera.create(np.array([0, 0, 1.5]), (0.0, 0.0, 0.0), np.radians(70), SIZE, 320 / 180)


@pytest.fixture
def light() -> Light:
    return choose_light(np.random.default_rng(1))


def paint(
    canvas: Canvas, camera: Camera, light: Light, solid: Solid, distance: float, owner: int
) -> Painted:
    bounds = paint_solid(canvas, camera, light, solid, Pose(distance, 0.0, 0.0), owner)
    assert bounds is not None
    whole = int(np.count_nonzero(canvas.owner == owner))
    return Painted("car", owner, distance, owner, bounds, whole)


def test_the_nearer_car_hides_the_farther_one(camera: Camera, light: Light) -> None:
    canvas = Canvas(SIZE)
    far = paint(canvas, camera, light, model("car", 0), 30.0, 1)
    alone = canvas.owner == 1
    near = paint(canvas, camera, light, model("bus", 0), 14.0, 2)
    scene = collect(np.zeros((*SIZE, 3), np.uint8), canvas, [far, near])
    shown = {i.track_id: i for i in scene.instances + scene.dropped}
    assert shown[2].visible_fraction > 0.95
    hidden = np.count_nonzero(alone & (canvas.owner == 2))
    assert hidden > 0
    assert shown.get(1) is None or shown[1].area_px == np.count_nonzero(alone) - hidden


def test_ground_shadow_is_not_part_of_the_mask() -> None:
    """Below the middle of a car between its wheels is road: the mask must be open there."""
    open_below = 0
    for index in range(8):
        canvas = Canvas(SIZE)
        camera = Camera.create(
            np.array([0, -8.0, 1.2]), (np.pi / 2, 0.0, 0.0), 0.9, SIZE, 320 / 180
        )
        light = choose_light(np.random.default_rng(2))
        paint(canvas, camera, light, model("car", index), 0.0, 1)
        ys, xs = np.nonzero(canvas.owner == 1)
        bottom, middle = ys.max(), (xs.min() + xs.max()) // 2
        open_below += canvas.owner[bottom - 1, middle] == 0
    assert open_below == 8


def test_every_model_is_a_sensible_silhouette(camera: Camera, light: Light) -> None:
    """Fill ratios of boxes are those of real objects from three quarters."""
    low = {"car": 0.55, "truck": 0.5, "bus": 0.6, "motorcycle": 0.3, "bicycle": 0.3}
    for kind, count in MODELS.items():
        for index in range(0, count, 7):
            canvas = Canvas(SIZE)
            pose = Pose(12.0, 0.5, 2.5)
            assert paint_solid(canvas, camera, light, model(kind, index), pose, 1) is not None
            mask = canvas.owner == 1
            ys, xs = np.nonzero(mask)
            fill = mask.sum() / ((np.ptp(ys) + 1) * (np.ptp(xs) + 1))
            assert low[kind] < fill < 0.97, (kind, index, fill)


def test_an_object_beside_the_camera_is_cut_not_lost(camera: Camera, light: Light) -> None:
    canvas = Canvas(SIZE)
    bounds = paint_solid(canvas, camera, light, model("bus", 1), Pose(2.0, 2.6, 0.0), 1)
    assert bounds is not None
    assert np.count_nonzero(canvas.owner == 1) > 1000
    assert paint_solid(canvas, camera, light, model("car", 1), Pose(-9.0, 0, 0), 2) is None


def test_nothing_painted_is_a_scene_without_instances() -> None:
    canvas = Canvas(SIZE)
    scene = collect(canvas.rgb, canvas, [])
    assert scene.instances == scene.dropped == ()


def test_small_things_are_dropped_and_said_to_be() -> None:
    scenes = [render_scene(seed, (360, 640)) for seed in range(5)]
    least = MIN_AREA_PX / 4
    assert all(i.area_px >= least for s in scenes for i in s.instances)
    assert all(i.visible_fraction >= MIN_VISIBLE for s in scenes for i in s.instances)
    assert any(s.dropped for s in scenes)


def test_random_shapes_reach_from_tiny_to_huge() -> None:
    sizes = []
    for seed in range(25):
        canvas, painted = Canvas((256, 256)), []
        scatter(canvas, painted, np.random.default_rng(seed))
        scene = collect(canvas.rgb, canvas, painted)
        sizes += [float(np.sqrt(i.area_px)) for i in scene.instances]
    assert min(sizes) < 12
    assert max(sizes) > 120
