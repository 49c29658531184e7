"""What stands and moves in a street: drawn once from a seed, then only looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.scenes.light import Light, choose_light
from tasks.scenes.people import Person, choose_person, dress, walking
from tasks.scenes.road import Road, choose_road
from tasks.scenes.solid import Pose, Solid
from tasks.scenes.vehicles import car

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Actor:
    """An object: its solid and where it is at a time in seconds. label "" is scenery."""

    label: str
    track_id: int
    solid: Callable[[float], Solid]
    pose: Callable[[float], Pose]
    lit: bool = False


@dataclass(frozen=True, eq=False)
class World:
    """A street with everything in it."""

    road: Road
    light: Light
    actors: tuple[Actor, ...]
    ego_d: float
    ego_speed: float
    camera_height: float

    def ego(self, time_s: float) -> tuple[float, float]:
        """Road coordinates of the car with the cameras."""
        return self.ego_speed * time_s, self.ego_d


def choose_world(rng: np.random.Generator) -> World:
    """Draw a street."""
    road, light = choose_road(rng), choose_light(rng)
    side = 1.0 if road.drive_left else -1.0
    own = side * road.lane_width * (rng.integers(road.lanes[0]) + 0.5)
    speed = float(rng.uniform(0, 14))
    actors: list[Actor] = []
    for _ in range(int(rng.integers(6, 14))):
        solid = car(rng)
        lane = int(rng.integers(-road.lanes[0], road.lanes[1]))
        d = (lane + 0.5) * road.lane_width
        same = d * side > 0
        s = float(rng.uniform(7, 90))
        if rng.random() < 0.4 and road.verge > 1:
            d, v = np.sign(d) * (road.half_width - 1.1), 0.0
        else:
            v = speed * float(rng.uniform(0.8, 1.1)) if same else -float(rng.uniform(4, 14))
        actors.append(_moving(road, "car", len(actors) + 1, _still(solid), s, d, v, same))
    for _ in range(int(rng.integers(3, 9))):
        person, phase = choose_person(rng), rng.uniform(0, 6.3)
        v = float(rng.choice([-1.3, 1.3]))
        d = float(rng.choice([-1, 1]) * (road.half_width + rng.uniform(0.4, road.pavement)))
        solid_at = _walker(person, phase, v)
        actors.append(
            _moving(
                road, "person", len(actors) + 1, solid_at, float(rng.uniform(6, 60)), d, v, v > 0
            )
        )
    return World(road, light, tuple(actors), float(own), speed, float(rng.uniform(1.2, 1.9)))


def _still(solid: Solid) -> Callable[[float], Solid]:
    return lambda _time_s: solid


def _walker(person: Person, phase: float, v: float) -> Callable[[float], Solid]:
    return lambda t: dress(person, walking(person, phase + 5.5 * t))


def _moving(
    road: Road, label: str, track_id: int, solid: Callable[[float], Solid], s: float, d: float,
    v: float, ahead: bool,
) -> Actor:  # fmt: skip
    def pose(time_s: float) -> Pose:
        at = s + v * time_s
        x, y, _ = road.world(at, d)
        return Pose(float(x), float(y), road.heading(at) + (0.0 if ahead else np.pi))

    return Actor(label, track_id, solid, pose)
