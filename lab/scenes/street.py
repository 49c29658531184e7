"""Draw a street from a random generator: what lines it and who is in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.scenes.close_traffic import CloseCast
from lab.scenes.facades import FACADES, facade
from lab.scenes.furniture import Pole
from lab.scenes.lens import choose_lens
from lab.scenes.light import choose_light
from lab.scenes.road import Road, choose_road
from lab.scenes.scenery import Building, Screen, Tree
from lab.scenes.sky import choose_skyline
from lab.scenes.textures import FOLIAGES, SURFACES
from lab.scenes.traffic import Cast
from lab.scenes.world import Rig, Scenery, World

Array = npt.NDArray[np.float64]
STYLES = ("city", "suburb", "park", "highway")
# Horizontal fields of view in degrees: from and to, of each kind of lens.
LENSES = ([42, 60, 85], [62, 85, 105])
LONG_LENS = ([26, 34, 50], [34, 50, 75])


def choose_world(rng: np.random.Generator, *, close: bool = False) -> World:
    """Draw a street with its light, its traffic and the camera that looks at it.

    Args:
        rng: decides everything.
        close: somebody right before the camera, a longer lens, harder light.

    """
    road, light = choose_road(rng), choose_light(rng, hard=close)
    style = str(rng.choice(STYLES, p=[0.5, 0.26, 0.16, 0.08]))
    side = 1.0 if road.drive_left else -1.0
    ego_d = float(side * road.lane_width * (rng.integers(road.lanes[0]) + 0.5))
    speed = float(rng.uniform(0, 14))
    scenery: list[Scenery] = []
    shadows: list[Array] = []
    for flank in (1.0, -1.0):
        _line(scenery, shadows, road, flank, style, rng)
    cast = (CloseCast if close else Cast)(road, ego_d, speed, style, rng)
    cast.fill()
    scenery += cast.poles
    rig = Rig(
        float(rng.uniform(1.15, 1.75) if rng.random() < 0.8 else rng.uniform(1.8, 2.9)),
        float(rng.normal(0, 0.025)), float(rng.normal(0, 0.012)),
        float(np.radians(rng.choice(rng.uniform(*(LONG_LENS if close else LENSES))))),
        float(rng.uniform(-0.06, 0.1)),
    )  # fmt: skip
    return World(
        road, light, choose_skyline(rng, 0.25 if style == "city" else 0.08), tuple(scenery),
        tuple(cast.actors), tuple(shadows), ego_d, speed, rig, choose_lens(rng, light),
    )  # fmt: skip


def _line(
    scenery: list[Scenery], shadows: list[Array], road: Road, flank: float, style: str,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Fill one side of the street from behind the camera to far ahead."""
    edge = road.half_width + road.pavement
    s = -45.0
    while s < 150:
        if road.near_crossing(s + 2, 9):
            s += 6
            continue
        built = rng.random() < {"city": 0.92, "suburb": 0.6, "park": 0.12, "highway": 0.05}[style]
        if built:
            length = _building(scenery, shadows, road, flank, (s, edge, style), rng)
        else:
            length = float(rng.uniform(6, 14))
            _garden(scenery, road, flank, (s, edge, length), rng)
        s += length + (0.0 if style == "city" and built else float(rng.uniform(0, 5)))
    _pavement(scenery, shadows, road, flank, style, rng)


def _building(
    scenery: list[Scenery], shadows: list[Array], road: Road, flank: float,
    place: tuple[float, float, str], rng: np.random.Generator,
) -> float:  # fmt: skip
    s, edge, style = place
    back = float(rng.uniform(0, 0.6) if style == "city" else rng.uniform(2, 9))
    front = int(rng.integers(FACADES))
    while style == "suburb" and facade(front).height_m > 8:
        front = (front + 1) % FACADES
    length = float(np.clip(facade(front).width_m * rng.uniform(0.8, 1.6), 6, 24))
    if any(s < c + 9 and s + length > c - 9 for c in road.crossings):
        nearest = min((c for c in road.crossings if c + 9 > s), default=s + length)
        length = max(3.0, min(length, nearest - 9 - s))
    d = flank * (edge + back)
    corner, end = road.world(s, d), road.world(s + length, d)
    along = end - corner
    inward = np.array([-along[1], along[0], 0.0]) * flank / np.linalg.norm(along)
    tone = float(rng.uniform(0.75, 1.1))
    gable = style == "suburb" or rng.random() < 0.1
    scenery.append(
        Building(
            corner, along, inward, float(rng.uniform(8, 13)), front, int(rng.integers(FACADES)),
            gable, tone,
        )
    )  # fmt: skip
    height = np.array([0, 0, facade(front).height_m])
    deep = inward * 8
    feet = [corner, end, corner + deep, end + deep]
    shadows.append(np.stack([*feet, *(f + height for f in feet)]))
    if back > 2 and rng.random() < 0.6:
        _garden(scenery, road, flank, (s, edge, length), rng, front_only=True)
    return length


def _garden(
    scenery: list[Scenery], road: Road, flank: float, place: tuple[float, float, float],
    rng: np.random.Generator, *, front_only: bool = False,
) -> None:  # fmt: skip
    s, edge, length = place
    kind = rng.random()
    start, end = road.world(s, flank * (edge + 0.3)), road.world(s + length, flank * (edge + 0.3))
    green = np.array([rng.uniform(45, 95), rng.uniform(70, 110), rng.uniform(30, 60)])
    if kind < 0.3:
        scenery.append(
            Screen(
                start, end, 0.0, float(rng.uniform(0.8, 2.0)), 3 + 8 * int(rng.integers(4)), green
            )
        )
    elif kind < 0.5:
        wall = rng.uniform(90, 200) + rng.uniform(-15, 15, 3)
        scenery.append(
            Screen(start, end, 0.0, float(rng.uniform(0.6, 2.2)), int(rng.integers(SURFACES)), wall)
        )
    elif kind < 0.72:
        tone = np.full(3, rng.choice([30.0, 90.0, 200.0]))
        scenery.append(Screen(start, end, 0.0, float(rng.uniform(0.8, 1.8)), 0, tone, rails=True))
    for _ in range(int(rng.integers(0, 2 if front_only else 5))):
        at = road.world(
            s + rng.uniform(0, length), flank * (edge + rng.uniform(1.5, 3 if front_only else 16))
        )
        scenery.append(_tree(at, rng))


def _tree(at: Array, rng: np.random.Generator, *, kerb: bool = False) -> Tree:
    kind = int(rng.integers(FOLIAGES))
    kind = kind - kind % 5 if kind % 5 == 4 and rng.random() < 0.6 else kind
    kind += int(kerb and kind % 5 == 3)
    height = float(
        rng.uniform(0.6, 2.0) if rng.random() < 0.25 and not kerb else rng.uniform(4, 13)
    )
    green = np.array([rng.uniform(50, 105), rng.uniform(75, 115), rng.uniform(35, 65)])
    if rng.random() < 0.12:
        green = np.array([150.0, 105, 45]) * rng.uniform(0.7, 1.1)
    if kind % 5 == 4:
        green = np.array([85.0, 75, 66])
    width = height * float(rng.uniform(0.6, 1.1))
    width = min(width, 4.5) if kerb else width
    return Tree(at, height, width, kind, green * rng.uniform(0.7, 1.2))


def _pavement(
    scenery: list[Scenery], shadows: list[Array], road: Road, flank: float, style: str,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Street trees, lamp posts, wires, rails at the kerb."""
    kerb = flank * (road.half_width + 0.6)
    if rng.random() < 0.55:
        for s in np.arange(rng.uniform(-10, 0), 110, rng.uniform(8, 20)):
            if not road.near_crossing(float(s), 8):
                tree = _tree(road.world(s, kerb + flank * 0.4), rng, kerb=True)
                scenery.append(tree)
                if tree.height > 3:
                    blob = road.world(
                        s + np.array([-2, 2, 2, -2.0]), kerb + np.array([-2, -2, 2, 2.0])
                    )
                    shadows.append(blob + [0, 0, tree.height * 0.65])
    grey = np.full(3, rng.choice([60.0, 110.0, 150.0]))
    step, high = float(rng.uniform(18, 38)), float(rng.uniform(6, 9.5))
    for s in np.arange(rng.uniform(-10, 8), 130, step):
        arm = (road.world(s, kerb - flank * 2.2) - road.world(s, kerb)) + [0, 0, 0.4]
        scenery.append(Pole(road.world(s, kerb), high, 0.085, arm, grey, lamp=True))
    if style == "highway" or rng.random() < 0.12:
        starts = np.arange(-20, 120, 10.0)
        for s in starts:
            a, b = road.world(s, kerb), road.world(s + 10, kerb)
            scenery.append(Screen(a, b, 0.4, 0.32, 0, np.full(3, 150.0)))
    if rng.random() < 0.25 and style != "highway":
        for s in np.arange(0, 60, 9.0):
            a, b = road.world(s, kerb), road.world(s + 7, kerb)
            scenery.append(Screen(a, b, 0.0, 1.0, 0, grey, rails=True))
