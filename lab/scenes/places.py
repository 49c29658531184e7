"""Places in a street and ways through it; the catalogue of vehicles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from lab.scenes.buses import bus
from lab.scenes.cycles import bicycle, motorcycle
from lab.scenes.furniture import Pole
from lab.scenes.people import Person, dress, walking
from lab.scenes.road import Road
from lab.scenes.solid import Pose, Solid
from lab.scenes.textures import CLOUDS
from lab.scenes.trucks import truck
from lab.scenes.vehicles import car, choose_paint
from lab.scenes.world import Actor

Array = npt.NDArray[np.float64]
HEADLAMP, TAILLAMP = np.array([255.0, 244.0, 220.0]), np.array([200.0, 20.0, 14.0])
# How many shapes of a kind there are.
MODELS = {"car": 72, "truck": 40, "bus": 16, "motorcycle": 20, "bicycle": 20}


@cache
def model(kind: str, index: int) -> Solid:
    """Build a shape of the catalogue; a pure function of its arguments."""
    make = {"car": car, "truck": truck, "bus": bus, "motorcycle": motorcycle, "bicycle": bicycle}
    return make[kind](np.random.default_rng([77, len(kind), index]))


class Places:
    """Collects actors and keeps them from standing inside each other."""

    def __init__(
        self, road: Road, ego_d: float, ego_speed: float, style: str, rng: np.random.Generator
    ) -> None:
        self.road, self.rng, self.style = road, rng, style
        self.ego_d, self.ego_speed = ego_d, ego_speed
        self.side = 1.0 if road.drive_left else -1.0
        self.actors: list[Actor] = []
        self.poles: list[Pole] = []
        self.taken: list[tuple[float, float, float]] = []

    def free(self, s: float, d: float, length: float) -> bool:
        """Claim a place along the road unless somebody has it; lanes 1.8 m apart do not collide."""
        own_lane = abs(d - self.ego_d) < 2.2
        if own_lane and abs(s) < length / 2 + 4.5:
            return False
        for other_s, other_d, other_length in self.taken:
            if abs(d - other_d) < 1.8 and abs(s - other_s) < (length + other_length) / 2 + 0.8:
                return False
        self.taken.append((s, d, length))
        return True

    def distance(self, far: float) -> float:
        """Draw a distance ahead, near ones more often; now and then behind (for side cameras)."""
        rng = self.rng
        if rng.random() < 0.14:
            return float(-rng.uniform(4, 40))
        return float(5 + (far - 5) * rng.random() ** 1.6)

    def add(
        self, label: str, solid: Callable[[float], Solid], pose: Callable[[float], Pose], *,
        nearer: float = 0.0, lamps: tuple[tuple[Array, Array], ...] = (), rides: int = -1,
    ) -> None:  # fmt: skip
        """Add an actor with a surface and a light of its own."""
        rng = self.rng
        soft = label in ("person", "")
        strength = rng.uniform(0.2, 0.9) if soft else rng.uniform(0.05, 0.45)
        cloth = (int(rng.integers(12)) if soft else int(rng.integers(6)) * 2 + 1, float(strength))
        dim = float(rng.uniform(0.55, 0.9) if rng.random() < 0.35 else rng.uniform(0.9, 1.1))
        self.actors.append(
            Actor(
                label,
                len(self.actors) + 1,
                solid,
                pose,
                nearer,
                cloth,
                dim,
                (float(rng.normal(0, 0.22)), float(rng.normal(-0.05, 0.25))),
                int(rng.integers(CLOUDS)) if rng.random() < 0.2 else -1,
                lamps,
                rides,
            )
        )

    def along(
        self, s: float, d: float, v: float, turn: float, z: float = 0.0
    ) -> Callable[[float], Pose]:
        """Return a way along the road from s at a speed of v, turned against its direction."""
        road = self.road

        def pose(time_s: float) -> Pose:
            at = s + v * time_s
            x, y, _ = road.world(at, d)
            return Pose(float(x), float(y), road.heading(at) + turn, z)

        return pose

    def make(self, kind: str) -> Solid:
        """Take a shape of a kind out of the catalogue, in a paint of its own."""
        return model(kind, int(self.rng.integers(MODELS[kind]))).painted(choose_paint(self.rng))


def still(solid: Solid) -> Callable[[float], Solid]:
    """Return a shape that does not change."""
    return lambda _time_s: solid


def walker(person: Person, phase: float, *, moving: bool) -> Callable[[float], Solid]:
    """Return a person who walks or stands."""
    return lambda t: dress(person, walking(person, phase + (5.5 * t if moving else 0.0), moving))


def line(
    base: Array, along: Array, start: float, v: float, heading: float
) -> Callable[[float], Pose]:
    """Return a straight way on the ground."""

    def pose(time_s: float) -> Pose:
        at = base + along * (start + v * time_s)
        return Pose(float(at[0]), float(at[1]), heading)

    return pose


def lamps(solid: Solid) -> tuple[tuple[Array, Array], ...]:
    """Return where a vehicle glows at night: places and colours."""
    low, high = solid.bounds()
    y, z = float(high[1]) * 0.7, min(0.75, float(high[2]) * 0.5)
    front = [np.array([high[0], sign_ * y, z]) for sign_ in (-1.0, 1.0)]
    rear = [np.array([low[0], sign_ * y, z + 0.1]) for sign_ in (-1.0, 1.0)]
    return tuple([(p, HEADLAMP) for p in front] + [(p, TAILLAMP) for p in rear])
