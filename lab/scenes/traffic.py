"""Who is in a street: drivers, walkers, riders, signals and signs."""

from __future__ import annotations

import numpy as np

from lab.scenes.furniture import Pole, clutter, hydrant, sign, signal, stop_sign
from lab.scenes.people import choose_person, dress, riding
from lab.scenes.places import Places, lamps, line, still, walker
from lab.scenes.solid import Solid


class Cast(Places):
    """The people, vehicles and street furniture of a street."""

    def fill(self) -> None:
        """Draw everybody."""
        rng = self.rng
        busy = float(rng.choice([0.5, 0.9, 1.4], p=[0.2, 0.5, 0.3]))
        for _ in range(round(rng.integers(4, 12) * busy)):
            self._driver()
        if self.road.verge > 1:
            self._parked()
        walkers = 0 if self.style == "highway" else round(rng.integers(3, 14) * busy)
        for _ in range(walkers):
            self._walker()
        for _ in range(int(rng.integers(0, 6))):
            self._rider()
        for c in self.road.crossings:
            self._crossing(c)
        self._signs()

    # Vehicles

    def _vehicle(self) -> tuple[str, Solid]:
        rng = self.rng
        kind = str(rng.choice(["car", "truck", "bus", "motorcycle"], p=[0.7, 0.13, 0.08, 0.09]))
        return kind, self.make(kind)

    def _driver(self) -> None:
        rng, road = self.rng, self.road
        label, solid = self._vehicle()
        lane = int(rng.integers(-road.lanes[0], road.lanes[1]))
        d = (lane + 0.5) * road.lane_width + float(rng.normal(0, 0.15))
        low, high = solid.bounds()
        s = self.distance(95)
        if not self.free(s, d, float(high[0] - low[0])):
            return
        same = d * self.side > 0
        v = self.ego_speed * float(rng.uniform(0.85, 1.1)) if same else -float(rng.uniform(4, 14))
        turn = (0.0 if same else np.pi) + float(rng.normal(0, 0.03))
        if rng.random() < 0.07:
            turn += float(rng.uniform(-0.7, 0.7))
        self.add(label, still(solid), self.along(s, d, v, turn), lamps=lamps(solid))
        if label == "motorcycle":
            self._mount(s, d, v, turn, pedals=False)

    def _parked(self) -> None:
        rng, road = self.rng, self.road
        askew = rng.random() < 0.12
        for flank in (1.0, -1.0):
            s = float(rng.uniform(-25, -15))
            share = float(rng.uniform(0.2, 1.0))
            while s < 75:
                if rng.random() < share and not road.near_crossing(s, 9):
                    solid = self.make("car" if rng.random() < 0.9 else "truck")
                    low, high = solid.bounds()
                    long = float(high[0] - low[0])
                    d = flank * (road.half_width - 1.05) + float(rng.normal(0, 0.08))
                    turn = (0.0 if flank * self.side > 0 else np.pi) + (
                        0.5 * flank if askew else 0.0
                    )
                    if long < 7 and self.free(s + long / 2, d, long * (0.7 if askew else 1)):
                        label = "car" if high[2] < 2.15 else "truck"
                        self.add(label, still(solid), self.along(s + long / 2, d, 0.0, turn))
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
                self.add(
                    label, still(solid), line(base, left, start, v, heading), lamps=lamps(solid)
                )

    # People

    def _walker(self) -> None:
        rng, road = self.rng, self.road
        person, phase = choose_person(rng), float(rng.uniform(0, 6.3))
        s = self.distance(60)
        stands = rng.random() < 0.25
        v = 0.0 if stands else float(rng.choice([-1, 1]) * rng.uniform(0.9, 1.6))
        flank = float(rng.choice([-1.0, 1.0]))
        d = flank * (road.half_width + float(rng.uniform(0.3, road.pavement)))
        solid = walker(person, phase, moving=not stands)
        if rng.random() < 0.22:
            zebra = [z for z in road.zebras if z > 4]
            at = float(rng.choice(zebra)) + 1.5 if zebra else max(s, 8.0)
            x, y, _ = road.world(at + rng.uniform(-1, 1), 0.0)
            ahead = road.heading(at)
            left = np.array([-np.sin(ahead), np.cos(ahead)])
            base = np.array([float(x), float(y)])
            start, v = float(rng.uniform(-1, 1) * road.half_width), v or 1.2
            heading = ahead + np.pi / 2 * np.sign(v)
            self.add("person", solid, line(base, left, start, v, float(heading)))
            return
        turn = float(rng.uniform(0, 6.3)) if stands else (0.0 if v > 0 else np.pi)
        for k in range(int(rng.choice([1, 1, 1, 2, 3]))):
            if k:
                person = choose_person(rng)
                solid = walker(person, float(rng.uniform(0, 6.3)), moving=not stands)
            shift = d + flank * 0.62 * k
            self.add("person", solid, self.along(s + float(rng.uniform(-0.3, 0.3)), shift, v, turn))

    def _rider(self) -> None:
        rng, road = self.rng, self.road
        solid, s = self.make("bicycle"), self.distance(45)
        flank = float(rng.choice([-1.0, 1.0]))
        if rng.random() < 0.45:
            d = flank * (road.half_width + float(rng.uniform(0.4, 1.4)))
            turn = float(rng.choice([0, np.pi, rng.uniform(0, 6.3)]))
            self.add("bicycle", still(solid), self.along(s, d, 0.0, turn))
            return
        d = flank * (road.half_width - float(rng.uniform(0.5, 1.2)))
        if not self.free(s, d, 1.8):
            return
        ahead = flank * self.side > 0
        v, turn = (4.5 if ahead else -4.5), (0.0 if ahead else float(np.pi))
        self.add("bicycle", still(solid), self.along(s, d, v, turn))
        self._mount(s, d, v, turn, pedals=True)

    def _mount(self, s: float, d: float, v: float, turn: float, *, pedals: bool) -> None:
        """Put a rider on what was added last."""
        person, phase = choose_person(self.rng), float(self.rng.uniform(0, 6.3))
        seat = 0.97 if pedals else 0.82

        def rider(time_s: float) -> Solid:
            return dress(person, riding(person, phase + 6 * time_s, seat, pedals=pedals))

        self.add("person", rider, self.along(s, d, v, turn), nearer=0.4, rides=len(self.actors))

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
            self._sign(sign(rng), "traffic sign", self.distance(55))
        for _ in range(int(rng.integers(0, 7))):
            d = float(rng.choice([-1, 1])) * (
                road.half_width + float(rng.uniform(0.3, road.pavement))
            )
            label, solid = (
                ("", clutter(rng)) if rng.random() < 0.8 else ("fire hydrant", hydrant(rng))
            )
            self.add(
                label,
                still(solid),
                self.along(self.distance(45), d, 0.0, float(rng.uniform(0, 6))),
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
            self.add("traffic light", still(solid), self.along(s, d - reach, 0.0, 0.0, high))
            if over and rng.random() < 0.6:
                self.add("traffic light", still(signal(rng)), self.along(s, d, 0.0, 0.0, 2.6))

    def _sign(self, solid: Solid, label: str, s: float) -> None:
        rng, road = self.rng, self.road
        d = float(rng.choice([-1.0, 1.0])) * (road.half_width + float(rng.uniform(0.3, 0.8)))
        high = float(rng.uniform(2.0, 2.7))
        self.poles.append(Pole(road.world(s + 0.1, d), high, 0.035, np.zeros(3), np.full(3, 120.0)))
        turn = float(rng.normal(0, 0.15)) + (np.pi if rng.random() < 0.2 else 0.0)
        self.add(label, still(solid), self.along(s, d, 0.0, turn, high))
