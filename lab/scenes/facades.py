"""Textures of building fronts: windows in a wall, shops below, balconies, signs, stains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.textures import Levels, octaves, pyramid, to_bytes

Array = npt.NDArray[np.float64]
FACADES = 36
PX_PER_M = 32
FLOOR_M = 3.2


@dataclass(frozen=True, eq=False)
class Facade:
    """A front: texture levels (h, w, 3), metres (height, width); its width may be repeated."""

    levels: Levels
    lamps: Levels
    height_m: float
    width_m: float
    wall: Array


@cache
def facade(index: int) -> Facade:
    """Paint the front with this index."""
    rng = np.random.default_rng([75, index])
    floors = int(rng.choice([1, 2, 2, 3, 3, 4, 5, 6, 8]))
    bays = int(rng.integers(3, 6))
    bay, storey = int(rng.uniform(2.2, 3.6) * PX_PER_M), int(FLOOR_M * PX_PER_M)
    height, width = floors * storey + int(0.6 * PX_PER_M), bays * bay
    wall = _wall_colour(rng)
    texture = np.empty((height, width, 3), np.float32)
    texture[:] = wall
    _masonry(texture, wall, rng)
    lamps = np.zeros((height, width, 3), np.float32)
    curtain_wall = rng.random() < 0.18
    style = _WindowStyle.choose(rng, bay, storey, curtain_wall)
    for floor in range(floors):
        bottom = height - floor * storey
        if floor == 0 and rng.random() < 0.6:
            _shop(texture, lamps, bottom, storey, rng)
            continue
        for b in range(bays):
            style.paint(texture, lamps, b * bay, bottom, rng)
        if style.balcony and floor:
            _railing(texture, bottom, rng)
    _stains(texture, rng)
    texture[: int(0.35 * PX_PER_M)] *= rng.uniform(0.6, 1.15)
    return Facade(
        pyramid(to_bytes(texture)), pyramid(to_bytes(lamps)),
        height / PX_PER_M, width / PX_PER_M, wall,
    )  # fmt: skip


def _wall_colour(rng: np.random.Generator) -> Array:
    palette = (
        (150, 90, 70), (178, 160, 135), (200, 195, 185), (120, 115, 110), (165, 150, 120),
        (185, 175, 165), (95, 70, 60), (210, 190, 150), (140, 150, 155), (225, 220, 212),
        (170, 120, 95), (90, 95, 100),
    )  # fmt: skip
    return np.clip(
        np.array(palette[rng.integers(len(palette))])
        * rng.uniform(0.75, 1.1)
        * rng.uniform(0.95, 1.05, 3),
        20,
        240,
    )


def _masonry(texture: npt.NDArray[np.float32], wall: Array, rng: np.random.Generator) -> None:
    height, width = texture.shape[:2]
    yy, xx = np.mgrid[0:height, 0:width]
    if rng.random() < 0.45:
        row, brick = int(rng.integers(4, 9)), int(rng.integers(9, 26))
        joint = (yy % row == 0) | ((xx + (yy // row % 2) * brick // 2) % brick == 0)
        tone = rng.uniform(0.85, 1.15, (height // row + 2, width // brick + 2))
        texture *= tone[yy // row, xx // brick][..., None].astype(np.float32)
        texture[joint] = wall * 0.8 + 25
    grain = octaves(rng, 512, 3, 8, 0.85)
    tiled = np.tile(grain, (height // 512 + 1, width // 512 + 1))[:height, :width]
    texture += (tiled * rng.uniform(2, 7))[..., None].astype(np.float32)


def _stains(texture: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
    height, width = texture.shape[:2]
    field = octaves(rng, 256, 1, 6, 0.7, 0.2)
    field = cv2.resize(field.astype(np.float32), (width, height))
    texture *= (1 + 0.05 * field)[..., None]


@dataclass(frozen=True, eq=False)
class _WindowStyle:
    bay: int
    storey: int
    width: int
    height: int
    sill: int
    frame: Array
    panes: int
    arch: bool
    balcony: bool
    glass: float

    @staticmethod
    def choose(rng: np.random.Generator, bay: int, storey: int, curtain: bool) -> _WindowStyle:
        wide = 0.94 if curtain else rng.uniform(0.35, 0.7)
        high = 0.9 if curtain else rng.uniform(0.42, 0.68)
        frame = np.array([[235, 234, 230], [60, 58, 56], [110, 85, 65]][rng.integers(3)], float)
        return _WindowStyle(
            bay, storey, int(bay * wide), int(storey * high),
            int(storey * (0.05 if curtain else rng.uniform(0.2, 0.3))), frame,
            int(rng.integers(1, 4)), bool(rng.random() < 0.1),
            bool(rng.random() < 0.22 and not curtain),
            float(rng.uniform(0.3, 1.0)),
        )  # fmt: skip

    def paint(
        self, texture: npt.NDArray[np.float32], lamps: npt.NDArray[np.float32], left: int,
        bottom: int, rng: np.random.Generator,
    ) -> None:  # fmt: skip
        x0 = left + (self.bay - self.width) // 2
        y1 = bottom - self.sill
        x1, y0 = x0 + self.width, y1 - self.height
        texture[y0 - 2 : y1 + 3, x0 - 2 : x1 + 2] = self.frame
        ramp = np.linspace(1.15, 0.6, y1 - y0)[:, None, None]
        tone = rng.uniform(25, 55) + self.glass * rng.uniform(0, 95)
        texture[y0:y1, x0:x1] = np.array([0.92, 1.0, 1.08]) * tone * ramp
        if rng.random() < 0.4:
            cut = int(self.width * rng.uniform(0.15, 0.5))
            cloth = rng.uniform(120, 215)
            texture[y0:y1, x0 : x0 + cut] = cloth
            if rng.random() < 0.5:
                texture[y0:y1, x1 - cut : x1] = cloth
        elif rng.random() < 0.25:
            texture[y0 : y0 + int((y1 - y0) * rng.uniform(0.2, 0.9)), x0:x1] = rng.uniform(130, 210)
        if rng.random() < 0.35:
            lamps[y0:y1, x0:x1] = np.array([255, 205, 130]) * rng.uniform(0.3, 1.0)
        for pane in range(1, self.panes):
            x = x0 + pane * self.width // self.panes
            texture[y0:y1, x - 1 : x + 1] = self.frame
        texture[y1 + 2 : y1 + 5, x0 - 4 : x1 + 4] = self.frame * 0.8
        texture[y0 : y0 + 3, x0:x1] *= 0.55
        if rng.random() < 0.08:
            texture[y1 + 4 : y1 + 20, x0 : x0 + 26] = rng.uniform(170, 215)
            texture[y1 + 7 : y1 + 17, x0 + 4 : x0 + 16] = rng.uniform(60, 110)


def _shop(
    texture: npt.NDArray[np.float32], lamps: npt.NDArray[np.float32], bottom: int, storey: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    width = texture.shape[1]
    top = bottom - storey
    sign = int(0.75 * PX_PER_M)
    board = np.clip(rng.uniform(20, 230) + rng.normal(0, 40, 3), 10, 245)
    texture[top : top + sign] = board
    ink = 255 - board if rng.random() < 0.5 else np.full(3, 240.0)
    x = int(rng.integers(8, 40))
    while x < width - 20:
        stroke = int(rng.integers(3, 14))
        if rng.random() < 0.8:
            y = top + int(rng.integers(4, 8))
            texture[y : y + int(rng.integers(8, 15)), x : x + stroke] = ink
        x += stroke + int(rng.integers(2, 9))
    x = 0
    while x < width:
        pane = int(rng.uniform(0.9, 2.6) * PX_PER_M)
        end = min(width, x + pane)
        tone = rng.uniform(25, 120)
        texture[top + sign : bottom - 6, x + 3 : end - 2] = np.array([0.95, 1.0, 1.03]) * tone
        for _ in range(int(rng.integers(0, 9))):
            a = int(rng.integers(x, max(x + 1, end - 6)))
            b = int(rng.integers(top + sign, bottom - 12))
            h, w = rng.integers(5, 45), rng.integers(4, 30)
            ware = rng.uniform(15, 230)
            texture[b : min(b + h, bottom - 8), a : min(a + w, end - 3)] = ware + rng.normal(
                0, 22, 3
            )
        if rng.random() < 0.6:
            lamps[top + sign : bottom - 6, x + 3 : end - 2] = np.array(
                [255, 235, 200]
            ) * rng.uniform(0.3, 0.9)
        x = end
    if rng.random() < 0.4:
        stripes = (np.arange(width) // int(rng.integers(6, 20)) % 2)[None, :, None]
        cloth = rng.uniform(60, 220, 3) * (1 - stripes) + 225 * stripes
        texture[top + sign : top + sign + 22] = cloth
        texture[top + sign + 22 : top + sign + 30] *= 0.5
    lamps[top : top + sign] = board * float(rng.random() < 0.6) * 0.8


def _railing(texture: npt.NDArray[np.float32], bottom: int, rng: np.random.Generator) -> None:
    tone, high = rng.uniform(30, 210), int(0.95 * PX_PER_M)
    if rng.random() < 0.5:
        texture[bottom - high : bottom, ::6] = tone
        texture[bottom - high : bottom, 1::6] = tone
        texture[bottom - high : bottom - high + 3] = tone
    else:
        texture[bottom - high : bottom] = tone
    texture[bottom : bottom + 6] = rng.uniform(90, 200)
    texture[bottom + 6 : bottom + 16] *= 0.6
