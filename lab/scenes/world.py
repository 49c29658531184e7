"""What stands and moves in a street: drawn once from a seed, then only looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lab.scenes.camera import Camera
from lab.scenes.canvas import Canvas
from lab.scenes.lens import Lens
from lab.scenes.light import Light
from lab.scenes.road import Road
from lab.scenes.sky import Skyline
from lab.scenes.solid import Pose, Solid

Array = npt.NDArray[np.float64]


class Scenery(Protocol):
    """Something that is painted but not labeled."""

    def key(self, camera: Camera) -> float:
        """Paint order: larger is farther."""

    def paint(self, canvas: Canvas, camera: Camera, light: Light) -> None:
        """Paint it."""


@dataclass(frozen=True, eq=False)
class Actor:
    """An object: its solid and where it is at a time in seconds.

    Attributes:
        label: one of `LABELS`, or "" for clutter that is not labeled.
        track_id: unique in the world.
        solid: its shape at a time.
        pose: its place at a time.
        nearer: metres added to its nearness in the paint order (riders before their bicycles).
        cloth: index of the noise texture on its surface, and its strength.
        dim: light that reaches it, below 1 in the shade.
        slope: how the light changes across its width and height.
        dapple: index of the pattern of shade across it, -1 for none.
        lamps: points (N, 3) in its own axes that glow at night, and their colours.
        rides: track id of what a rider sits on, -1 for everybody else.

    """

    label: str
    track_id: int
    solid: Callable[[float], Solid]
    pose: Callable[[float], Pose]
    nearer: float = 0.0
    cloth: tuple[int, float] = (0, 0.5)
    dim: float = 1.0
    slope: tuple[float, float] = (0.0, 0.0)
    dapple: int = -1
    lamps: tuple[tuple[Array, Array], ...] = ()
    rides: int = -1


@dataclass(frozen=True, eq=False)
class Rig:
    """The cameras' mount: metres and radians."""

    height: float
    pitch: float
    roll: float
    fov: float
    shift_y: float


@dataclass(frozen=True, eq=False)
class World:
    """A street with everything in it."""

    road: Road
    light: Light
    skyline: Skyline
    scenery: tuple[Scenery, ...]
    actors: tuple[Actor, ...]
    shadows: tuple[Array, ...]
    ego_d: float
    ego_speed: float
    rig: Rig
    lens: Lens

    def ego(self, time_s: float) -> tuple[float, float]:
        """Road coordinates of the car with the cameras."""
        return self.ego_speed * time_s, self.ego_d
