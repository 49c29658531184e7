"""What the light of a scene is: sun, sky, haze, lamps; and how a surface looks in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Light:
    """Colours are multiples of an albedo in 0-255; directions point to where light comes from."""

    sun_direction: Array
    sun: Array
    sky: Array
    bounce: Array
    zenith: Array
    horizon: Array
    haze: Array
    haze_m: float
    clouds: float
    shadow: float
    night: bool
    wet: float
    dusk: bool

    def fade(self, depth_m: Array | float) -> Array:
        """How much of a surface is lost in haze at a depth, 0-1."""
        result: Array = 1 - np.exp(-np.maximum(np.asarray(depth_m, float), 0) / self.haze_m)
        return result

    def shade(self, albedo: Array, normals: Array, to_eye: Array, gloss: Array) -> Array:
        """Colours (N, 3) in 0-255 of surfaces with unit normals (N, 3) seen from to_eye (N, 3)."""
        up = normals[:, 2:3] * 0.5 + 0.5
        sun = np.clip(normals @ self.sun_direction, 0, None)[:, None]
        diffuse = self.sky * (0.25 + 0.75 * up) + self.bounce * (1 - up) + self.sun * sun
        facing = np.clip((normals * to_eye).sum(1, keepdims=True), 0, 1)
        mirror = 2 * facing * normals - to_eye
        lobe = np.clip(mirror @ self.sun_direction, 0, 1)[:, None] ** 40
        above = 1 / (1 + np.exp(-12 * (mirror[:, 2:3] + 0.02)))
        reflected = self.horizon * above * (1.05 - 0.35 * np.clip(mirror[:, 2:3], 0, 1))
        reflected = reflected + self.bounce * 70 * (1 - above)
        fresnel = gloss[:, None] * (0.25 + 0.75 * (1 - facing) ** 3)
        result: Array = albedo * diffuse * (1 - fresnel * 0.6) + reflected * fresnel
        result += gloss[:, None] * lobe * self.sun * 160
        return result


# How often each light comes, and rain with all but the sun: usually, and where it is to be hard.
_USUAL, _HARD = (0.34, 0.22, 0.18, 0.11, 0.1, 0.05), (0.24, 0.14, 0.15, 0.16, 0.25, 0.06)
_RAIN = {_USUAL: 0.3, _HARD: 0.6}


def choose_light(rng: np.random.Generator, *, hard: bool = False) -> Light:
    """Draw a time of day and a weather; `hard` means more nights, low suns and wet roads."""
    shares = _HARD if hard else _USUAL
    kind = rng.choice(["sunny", "cloudy", "overcast", "dusk", "night", "fog"], p=shares)
    azimuth = rng.uniform(0, 2 * np.pi)
    height = np.radians(rng.uniform(4, 14) if kind == "dusk" else rng.uniform(18, 65))
    direction = np.array(
        [np.cos(height) * np.cos(azimuth), np.cos(height) * np.sin(azimuth), np.sin(height)]
    )
    warm = rng.uniform(0.0, 1.0)
    tint = np.array([1.0 + 0.05 * warm, 1.0, 1.0 - 0.08 * warm])
    cold = np.array([0.93, 0.98, 1.07])
    table = {
        # sun, sky, shadow strength, clouds, haze distance
        "sunny": (rng.uniform(0.45, 0.75), rng.uniform(0.3, 0.45), rng.uniform(0.45, 0.7), 0.35),
        "cloudy": (rng.uniform(0.2, 0.4), rng.uniform(0.45, 0.6), rng.uniform(0.25, 0.45), 0.75),
        "overcast": (0.03, rng.uniform(0.6, 0.8), rng.uniform(0.15, 0.3), 1.0),
        "dusk": (rng.uniform(0.2, 0.5), rng.uniform(0.2, 0.36), rng.uniform(0.3, 0.5), 0.6),
        "night": (0.0, rng.uniform(0.1, 0.2), rng.uniform(0.15, 0.3), 0.2),
        "fog": (0.02, rng.uniform(0.6, 0.75), 0.15, 1.0),
    }
    sun, sky, shadow, clouds = table[str(kind)]
    zenith, horizon = _sky_colours(str(kind), rng)
    haze_m = rng.uniform(25, 70) if kind == "fog" else rng.uniform(180, 900)
    sun_tint = np.array([1.25, 0.95, 0.65]) if kind == "dusk" else tint
    sky_tint = cold if kind in ("sunny", "dusk", "night") else tint
    wet = float(rng.uniform(0.4, 1.0)) if kind != "sunny" and rng.random() < _RAIN[shares] else 0.0
    return Light(
        direction, sun * sun_tint, sky * sky_tint, sky * 0.45 * tint, zenith, horizon,
        horizon * rng.uniform(0.85, 1.0), haze_m, clouds, shadow, kind == "night", wet,
        kind == "dusk",
    )  # fmt: skip


def _sky_colours(kind: str, rng: np.random.Generator) -> tuple[Array, Array]:
    grey = rng.uniform(0.75, 1.0)
    table = {
        "sunny": ([70, 120, 200], [190, 210, 232]),
        "cloudy": ([120, 150, 195], [215, 222, 230]),
        "overcast": ([185, 190, 196], [225, 227, 230]),
        "dusk": ([90, 100, 150], [235, 180, 130]),
        "night": ([10, 12, 24], [45, 42, 50]),
        "fog": ([190, 193, 196], [200, 203, 206]),
    }
    zenith, horizon = table[kind]
    jitter = rng.uniform(0.9, 1.1, 3)
    return np.array(zenith) * jitter * grey, np.array(horizon) * (0.5 + 0.5 * jitter) * grey
