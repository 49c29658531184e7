"""What a camera does to the picture: blur, exposure, colour, vignette, rain, noise, JPEG."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.light import Light

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Lens:
    """What stays the same during a drive. Lengths are in pixels of a picture 720 high."""

    blur: float
    defocus: float
    motion: float
    motion_angle: float
    sharpen: float
    gain: float
    contrast: float
    gamma: float
    balance: Array
    saturation: float
    vignette: float
    noise: float
    coarse_noise: float
    quality: int
    rain: float
    bonnet: int
    veil: float
    target: float
    boost: float


def choose_lens(rng: np.random.Generator, light: Light) -> Lens:
    """Draw a camera and its settings."""
    dark = light.night or light.dusk
    moving = rng.random() < (0.3 if dark else 0.12)
    return Lens(
        float(rng.uniform(0.45, 0.95)), float(rng.uniform(1.0, 3.0) * (rng.random() < 0.08)),
        float(rng.uniform(3, 14) if moving else 0),
        float(rng.choice([0.0, 0.0, rng.uniform(0, 180)])),
        float(rng.uniform(0.2, 1.1) * (rng.random() < 0.55)), float(np.exp(rng.normal(0, 0.16))),
        float(rng.uniform(0.85, 1.25)), float(np.exp(rng.normal(0, 0.12))),
        rng.normal(1, 0.035, 3), float(rng.uniform(0.45, 1.2)), float(rng.uniform(0, 0.45)),
        float(rng.uniform(0.8, 5) * (2.2 if dark else 1)), float(rng.uniform(0, 3)),
        int(rng.integers(55, 97)), float(light.wet * rng.uniform(0.2, 1) * (rng.random() < 0.5)),
        int(rng.integers(0, 6) if rng.random() < 0.3 else 0), float(rng.uniform(0, 0.1)),
        float(rng.uniform(38, 80) if light.night else rng.uniform(85, 128)), 1.6 if dark else 2.4,
    )  # fmt: skip


def finish(canvas: Bytes, lens: Lens, rng: np.random.Generator) -> Bytes:
    """Return the camera's picture uint8 (H, W, 3) of a painted canvas (H, W, 4)."""
    scale = canvas.shape[0] / 720
    image = cv2.cvtColor(canvas, cv2.COLOR_RGBA2RGB)
    lens = _expose(image, lens)
    if lens.rain > 0.05:
        image = _rain(image, lens, rng)
    image = cv2.GaussianBlur(
        image, (0, 0), max(lens.blur, (lens.blur + lens.defocus) * min(scale, 1))
    )
    if lens.motion * scale > 2:
        image = cv2.filter2D(image, -1, streak(lens.motion * scale, lens.motion_angle))
    if lens.sharpen:
        soft = cv2.blur(image, (3, 3))
        image = cv2.addWeighted(image, 1 + lens.sharpen, soft, -lens.sharpen, 0)
    image = _tone(image, lens)
    image = cv2.add(image, _noise(image.shape[:2], lens, rng), dtype=cv2.CV_8U)
    if lens.quality < 95:
        options = [cv2.IMWRITE_JPEG_QUALITY, lens.quality]
        coded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)[1]
        image = cv2.cvtColor(cv2.imdecode(coded, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    result: Bytes = image
    return result


def _expose(image: Bytes, lens: Lens) -> Lens:
    """Return the lens with the gain that an automatic exposure would choose."""
    mean = float(image[::8, ::8].mean())
    wanted = lens.target / max(mean, 4.0)
    return replace(lens, gain=lens.gain * float(np.clip(wanted, 0.6, lens.boost)))


def _tone(image: Bytes, lens: Lens) -> Bytes:
    x = np.arange(256) / 255
    curve = np.clip(x * lens.gain, 0, 1) ** lens.gamma
    curve = (
        np.clip((curve - 0.45) * lens.contrast + 0.45, 0, 1) * (1 - lens.veil) + lens.veil * 0.55
    )
    shoulder = np.where(curve > 0.8, 0.8 + 0.2 * np.tanh((curve - 0.8) / 0.2), curve)
    table = np.clip(shoulder[:, None] * lens.balance * 255, 0, 255).astype(np.uint8)
    image = cv2.LUT(image, table[None])
    s = lens.saturation
    grey = np.full((3, 3), (1 - s) / 3)
    image = cv2.transform(image, grey + np.eye(3) * s)
    if lens.vignette > 0.05:
        fall = _vignette(image.shape[:2], round(lens.vignette, 1))
        image = cv2.multiply(image, fall, scale=1 / 255)
    return image


@cache
def _vignette(size_hw: tuple[int, int], strength: float) -> Bytes:
    height, width = size_hw
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    r2 = ((x / width - 0.5) ** 2 + (y / height - 0.5) ** 2) * 2
    fall = (255 * (1 - strength * r2**1.3)).astype(np.uint8)
    return cv2.merge([fall] * 3)


@cache
def _grain_tile(kind: int) -> npt.NDArray[np.int8]:
    """Noise (1024, 1024, 3) of deviation 24; kind 1 has soft colour blotches as well."""
    rng = np.random.default_rng([76, kind])
    tile = rng.standard_normal((1024, 1024, 1)) * 20 + rng.standard_normal((1024, 1024, 3)) * 13
    if kind:
        tile = cv2.GaussianBlur(tile.astype(np.float32), (0, 0), 1.1) * 2.9
    return np.clip(np.rint(tile), -127, 127).astype(np.int8)


def _noise(size_hw: tuple[int, int], lens: Lens, rng: np.random.Generator) -> npt.NDArray[np.int16]:
    height, width = size_hw
    parts = []
    for kind, strength in ((0, lens.noise), (1, lens.coarse_noise)):
        tile = _grain_tile(kind)
        top, left = (int(v) for v in rng.integers(0, 512, 2))
        rows, columns = min(height, 1024 - top), min(width, 1024 - left)
        part = tile[top : top + rows, left : left + columns]
        if rows < height or columns < width:
            part = (
                cv2.copyMakeBorder(part, 0, height - rows, 0, width - columns, cv2.BORDER_REFLECT)
                if height <= 2 * rows and width <= 2 * columns
                else np.resize(part, (height, width, 3))
            )
        parts.append((np.ascontiguousarray(part), strength / 24))
    (a, u), (b, v) = parts
    return cv2.addWeighted(a, u, b, v, 0, dtype=cv2.CV_16S)


def streak(length: float, angle_deg: float) -> Array:
    """Return the kernel of a motion of a length in pixels."""
    size = max(3, round(length) | 1)
    kernel = np.zeros((size, size), np.float32)
    kernel[size // 2] = 1
    turn = cv2.getRotationMatrix2D((size // 2, size // 2), angle_deg, 1)
    kernel = cv2.warpAffine(kernel, turn, (size, size))
    return kernel / kernel.sum()


def _rain(image: Bytes, lens: Lens, rng: np.random.Generator) -> Bytes:
    height, width = image.shape[:2]
    layer = np.zeros((height, width), np.uint8)
    slant = rng.uniform(-0.3, 0.3)
    for _ in range(int(260 * lens.rain)):
        x, y = rng.uniform(0, width), rng.uniform(-0.1, 1) * height
        long = rng.uniform(0.02, 0.08) * height
        ends = [(int(x), int(y)), (int(x + slant * long), int(y + long))]
        cv2.line(layer, ends[0], ends[1], int(rng.integers(20, 70)), 1)
    layer = cv2.blur(layer, (2, 3))
    return cv2.add(image, cv2.merge([layer] * 3))
