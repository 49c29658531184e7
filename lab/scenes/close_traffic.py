"""Riders and vehicles right before the camera, and the blur of their motion."""

from __future__ import annotations

import numpy as np

from lab.scenes.canvas import Canvas
from lab.scenes.motion import followed, passing
from lab.scenes.places import lamps, still
from lab.scenes.traffic import Cast
from lab.scenes.truth import Painted

# How often somebody is followed by the camera, or passes before it.
FOLLOWED, PASSING = 0.35, 0.2
KINDS = ("motorcycle", "bicycle", "car", "truck", "bus")


class CloseCast(Cast):
    """A street whose nearest road users fill much of the picture."""

    def fill(self) -> None:
        """Draw those who are near, then everybody else."""
        for _ in range(int(self.rng.integers(1, 4))):
            self._near()
        super().fill()

    def _near(self) -> None:
        rng = self.rng
        kind = str(rng.choice(KINDS, p=[0.42, 0.22, 0.24, 0.07, 0.05]))
        cycle = kind in ("motorcycle", "bicycle")
        solid = self.make(kind)
        low, high = solid.bounds()
        long = float(high[0] - low[0])
        s = long / 2 + float(rng.uniform(4.6, 10 if cycle else 14))
        d = self.ego_d + float(rng.normal(0, 1.6 + 0.15 * s))
        if not self.free(s, d, long):
            return
        across = rng.random() < 0.45
        turn = float(rng.choice([-1, 1]) * np.pi / 2 if across else rng.choice([0.0, np.pi]))
        turn += float(rng.normal(0, 0.35))
        self.add(kind, still(solid), self.along(s, d, 0.0, turn), lamps=lamps(solid))
        if cycle and rng.random() < 0.9:
            self._mount(s, d, 0.0, turn, pedals=kind == "bicycle")


def move(canvas: Canvas, painted: list[Painted], rng: np.random.Generator) -> None:
    """Let the camera follow who is largest in the picture, or not follow him, or neither."""
    kind, length = rng.random(), float(rng.uniform(6, 42)) * canvas.size_hw[0] / 720
    if kind > FOLLOWED + PASSING or length < 2:
        return
    area = np.bincount(canvas.owner.ravel(), minlength=256)
    movers = [one for one in painted if one.label in (*KINDS, "person")]
    first = max(movers, key=lambda one: int(area[one.owner]), default=None)
    if first is None:
        return
    mates = {first.track_id, first.rides} - {-1}
    owners = [one.owner for one in painted if one.track_id in mates or one.rides in mates]
    (followed if kind < FOLLOWED else passing)(canvas, owners, length)
