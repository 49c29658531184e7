"""Who is in a street: drivers, walkers, riders, signals and signs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from tasks.scenes.fleet import bicycle, bus, motorcycle, truck
from tasks.scenes.furniture import Pole, clutter, hydrant, sign, signal, stop_sign
from tasks.scenes.people import Person, choose_person, dress, riding, walking
from tasks.scenes.road import Road
from tasks.scenes.solid import Pose, Solid
from tasks.scenes.textures import CLOUDS
from tasks.scenes.vehicles import car, choose_paint
from tasks.scenes.world import Actor

Array = npt.NDArray[np.float64]
HEADLAMP, TAILLAMP = np.array([255.0, 244.0, 220.0]), np.array([200.0, 20.0, 14.0])


# How many shapes of a kind there are.
MODELS = {"car": 72, "truck": 40, "bus": 16, "motorcycle": 20, "bicycle": 20}


@cache
def model(kind: str, index: int) -> Solid:
    """Build a shape of the catalogue; a pure function of its arguments."""
    make = {"car": car, "truck": truck, "bus": bus, "motorcycle": motorcycle, "bicycle": bicycle}
    return make[kind](np.random.default_rng([77, len(kind), index]))


class Cast:
    """Collects actors, each in a place of its own."""

    def __init__(
        self, road: Road, side: float, ego_speed: float, style: str, rng: np.random.Generator
    ) -> None:
        self.road, self.side, self.ego_speed, self.style, self.rng = (
            road,
            side,
            ego_speed,
            style,
            rng,
        )
        self.actors: list[Actor] = []
        self.poles: list[Pole] = []
        self.taken: list[tuple[float, float, float]] = []

    def fill(self) -> None:
        """Draw everybody."""
        rng = self.rng
        busy = float(rng.choice([0.35, 0.8, 1.3], p=[0.2, 0.5, 0.3]))
        for _ in range(round(rng.integers(4, 12) * busy)):
            self._driver()
        if self.road.verge > 1:
            self._parked()
        walkers = 0 if self.style == "highway" else round(rng.integers(2, 12) * busy)
        for _ in range(walkers):
            self._walker()
        for _ in range(int(rng.integers(0, 4))):
            self._rider()
        for c in self.road.crossings:
            self._crossing(c)
        self._signs()

    # Places

    def _free(self, s: float, d: float, length: float) -> bool:
        """Claim a place along the road unless somebody has it; lanes 1.8 m apart do not collide."""
        own_lane = abs(d - self.side * self.road.lane_width * 0.5) < 2.0
        if own_lane and abs(s) < length / 2 + 5 and self.road.lanes[0] == 1:
            return False
        for other_s, other_d, other_length in self.taken:
            if abs(d - other_d) < 1.8 and abs(s - other_s) < (length + other_length) / 2 + 0.8:
                return False
        self.taken.append((s, d, length))
        return True

    def _distance(self, far: float) -> float:
        """Draw a distance ahead, near ones more often; now and then behind (for side cameras)."""
        rng = self.rng
        if rng.random() < 0.14:
            return float(-rng.uniform(4, 40))
        return float(5 + (far - 5) * rng.random() ** 1.6)

    def _add(
        self, label: str, solid: Callable[[float], Solid], pose: Callable[[float], Pose], *,
        nearer: float = 0.0, lamps: tuple[tuple[Array, Array], ...] = (),
    ) -> None:  # fmt: skip
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
            )
        )

    def _along(
        self, s: float, d: float, v: float, turn: float, z: float = 0.0
    ) -> Callable[[float], Pose]:
        road = self.road

        def pose(time_s: float) -> Pose:
            at = s + v * time_s
            x, y, _ = road.world(at, d)
            return Pose(float(x), float(y), road.heading(at) + turn, z)

        return pose

    # Vehicles

    def _vehicle(self) -> tuple[str, Solid]:
        rng = self.rng
        kind = str(rng.choice(["car", "truck", "bus", "motorcycle"], p=[0.77, 0.12, 0.06, 0.05]))
        return kind, self._make(kind)

    def _make(self, kind: str) -> Solid:
        """Take a shape of a kind out of the catalogue, in a paint of its own."""
        return model(kind, int(self.rng.integers(MODELS[kind]))).painted(choose_paint(self.rng))

    def _driver(self) -> None:
        rng, road = self.rng, self.road
        label, solid = self._vehicle()
        lane = int(rng.integers(-road.lanes[0], road.lanes[1]))
        d = (lane + 0.5) * road.lane_width + float(rng.normal(0, 0.15))
        low, high = solid.bounds()
        s = self._distance(95)
        if not self._free(s, d, float(high[0] - low[0])):
            return
        same = d * self.side > 0
        v = self.ego_speed * float(rng.uniform(0.85, 1.1)) if same else -float(rng.uniform(4, 14))
        turn = (0.0 if same else np.pi) + float(rng.normal(0, 0.03))
        if rng.random() < 0.07:
            turn += float(rng.uniform(-0.7, 0.7))
        self._add(label, _still(solid), self._along(s, d, v, turn), lamps=_lamps(solid))
        if label == "motorcycle":
            self._mount(solid, s, d, v, turn, pedals=False)

    def _parked(self) -> None:
        rng, road = self.rng, self.road
        askew = rng.random() < 0.12
        for flank in (1.0, -1.0):
            s = float(rng.uniform(-25, -15))
            share = float(rng.uniform(0.2, 1.0))
            while s < 75:
                if rng.random() < share and not road.near_crossing(s, 9):
                    solid = self._make("car" if rng.random() < 0.9 else "truck")
                    low, high = solid.bounds()
                    long = float(high[0] - low[0])
                    d = flank * (road.half_width - 1.05) + float(rng.normal(0, 0.08))
                    turn = (0.0 if flank * self.side > 0 else np.pi) + (
                        0.5 * flank if askew else 0.0
                    )
                    if long < 7 and self._free(s + long / 2, d, long * (0.7 if askew else 1)):
                        label = "car" if high[2] < 2.15 else "truck"
                        self._add(label, _still(solid), self._along(s + long / 2, d, 0.0, turn))
                    s += long
                s += float(rng.uniform(0.7, 3.0))

    def _crossing(self, c: float) -> None:
        """Traffic of a side street, seen from its side."""
        rng = self.rng
        for lane, sign_ in ((-1.6, 1.0), (1.6, -1.0)):
            if rng.random() < 0.6:
                label, solid = self._vehicle()
                waits = rng.random() < 0.5
                start = -sign_ * (self.road.half_width + float(rng.uniform(3, 14)))
                v = 0.0 if waits else sign_ * float(rng.uniform(2, 8))
                x, y, _ = self.road.world(c + lane, 0.0)
                ahead = self.road.heading(c)
                left = np.array([-np.sin(ahead), np.cos(ahead)])
                base = np.array([float(x), float(y)])
                heading = ahead + np.pi / 2 * sign_
                self._add(
                    label, _still(solid), _line(base, left, start, v, heading), lamps=_lamps(solid)
                )

    # People

    def _walker(self) -> None:
        rng, road = self.rng, self.road
        person, phase = choose_person(rng), float(rng.uniform(0, 6.3))
        s = self._distance(60)
        stands = rng.random() < 0.25
        v = 0.0 if stands else float(rng.choice([-1, 1]) * rng.uniform(0.9, 1.6))
        flank = float(rng.choice([-1.0, 1.0]))
        d = flank * (road.half_width + float(rng.uniform(0.3, road.pavement)))
        solid = _walking(person, phase, moving=not stands)
        if rng.random() < 0.22:
            zebra = [z for z in road.zebras if z > 4]
            at = float(rng.choice(zebra)) + 1.5 if zebra else max(s, 8.0)
            x, y, _ = road.world(at + rng.uniform(-1, 1), 0.0)
            ahead = road.heading(at)
            left = np.array([-np.sin(ahead), np.cos(ahead)])
            base = np.array([float(x), float(y)])
            start, v = float(rng.uniform(-1, 1) * road.half_width), v or 1.2
            heading = ahead + np.pi / 2 * np.sign(v)
            self._add("person", solid, _line(base, left, start, v, float(heading)))
            return
        turn = float(rng.uniform(0, 6.3)) if stands else (0.0 if v > 0 else np.pi)
        for k in range(int(rng.choice([1, 1, 1, 2, 3]))):
            if k:
                person = choose_person(rng)
                solid = _walking(person, float(rng.uniform(0, 6.3)), moving=not stands)
            shift = d + flank * 0.62 * k
            self._add(
                "person", solid, self._along(s + float(rng.uniform(-0.3, 0.3)), shift, v, turn)
            )

    def _rider(self) -> None:
        rng, road = self.rng, self.road
        solid, s = self._make("bicycle"), self._distance(45)
        flank = float(rng.choice([-1.0, 1.0]))
        if rng.random() < 0.45:
            d = flank * (road.half_width + float(rng.uniform(0.4, 1.4)))
            turn = float(rng.choice([0, np.pi, rng.uniform(0, 6.3)]))
            self._add("bicycle", _still(solid), self._along(s, d, 0.0, turn))
            return
        d = flank * (road.half_width - float(rng.uniform(0.5, 1.2)))
        if not self._free(s, d, 1.8):
            return
        ahead = flank * self.side > 0
        v, turn = (4.5 if ahead else -4.5), (0.0 if ahead else float(np.pi))
        self._add("bicycle", _still(solid), self._along(s, d, v, turn))
        self._mount(solid, s, d, v, turn, pedals=True)

    def _mount(
        self, solid: Solid, s: float, d: float, v: float, turn: float, *, pedals: bool
    ) -> None:
        person, phase = choose_person(self.rng), float(self.rng.uniform(0, 6.3))
        seat = 0.97 if pedals else 0.82

        def rider(time_s: float) -> Solid:
            return dress(person, riding(person, phase + 6 * time_s, seat, pedals=pedals))

        self._add("person", rider, self._along(s, d, v, turn), nearer=0.4)

    # Furniture

    def _signs(self) -> None:
        rng, road = self.rng, self.road
        places = [c - 6.5 for c in road.crossings if rng.random() < 0.75]
        for s in places:
            if rng.random() < 0.65:
                self._signal(float(s))
            else:
                self._sign(stop_sign(), "stop sign", float(s))
        for _ in range(int(rng.integers(0, 5))):
            self._sign(sign(rng), "traffic sign", self._distance(55))
        for _ in range(int(rng.integers(0, 7))):
            d = float(rng.choice([-1, 1])) * (
                road.half_width + float(rng.uniform(0.3, road.pavement))
            )
            label, solid = (
                ("", clutter(rng)) if rng.random() < 0.8 else ("fire hydrant", hydrant(rng))
            )
            self._add(
                label,
                _still(solid),
                self._along(self._distance(45), d, 0.0, float(rng.uniform(0, 6))),
            )

    def _signal(self, s: float) -> None:
        rng, road = self.rng, self.road
        grey = np.full(3, float(rng.choice([50.0, 110.0])))
        for flank in (1.0, -1.0):
            if rng.random() < 0.15:
                continue
            d = flank * (road.half_width + 0.5)
            over = rng.random() < 0.5
            high = float(rng.uniform(4.6, 5.6)) if over else float(rng.uniform(2.3, 3.2))
            reach = flank * float(rng.uniform(2, 5)) if over else 0.0
            arm = road.world(s, d - reach) - road.world(s, d)
            self.poles.append(Pole(road.world(s + 0.2, d), high + 0.6, 0.08, arm, grey))
            solid = signal(rng)
            self._add("traffic light", _still(solid), self._along(s, d - reach, 0.0, 0.0, high))
            if over and rng.random() < 0.6:
                self._add("traffic light", _still(signal(rng)), self._along(s, d, 0.0, 0.0, 2.6))

    def _sign(self, solid: Solid, label: str, s: float) -> None:
        rng, road = self.rng, self.road
        d = float(rng.choice([-1.0, 1.0])) * (road.half_width + float(rng.uniform(0.3, 0.8)))
        high = float(rng.uniform(2.0, 2.7))
        self.poles.append(Pole(road.world(s + 0.1, d), high, 0.035, np.zeros(3), np.full(3, 120.0)))
        turn = float(rng.normal(0, 0.15)) + (np.pi if rng.random() < 0.2 else 0.0)
        self._add(label, _still(solid), self._along(s, d, 0.0, turn, high))


def _still(solid: Solid) -> Callable[[float], Solid]:
    return lambda _time_s: solid


def _walking(person: Person, phase: float, *, moving: bool) -> Callable[[float], Solid]:
    return lambda t: dress(person, walking(person, phase + (5.5 * t if moving else 0.0), moving))


def _line(
    base: Array, along: Array, start: float, v: float, heading: float
) -> Callable[[float], Pose]:
    def pose(time_s: float) -> Pose:
        at = base + along * (start + v * time_s)
        return Pose(float(at[0]), float(at[1]), heading)

    return pose


def _lamps(solid: Solid) -> tuple[tuple[Array, Array], ...]:
    low, high = solid.bounds()
    y, z = float(high[1]) * 0.7, min(0.75, float(high[2]) * 0.5)
    front = [np.array([high[0], sign_ * y, z]) for sign_ in (-1.0, 1.0)]
    rear = [np.array([low[0], sign_ * y, z + 0.1]) for sign_ in (-1.0, 1.0)]
    return tuple([(p, HEADLAMP) for p in front] + [(p, TAILLAMP) for p in rear])
