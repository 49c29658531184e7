"""Wide randomisation: any shape, any surface, on any background, in any order.

A mask model that has seen this has to follow outlines: no class, no place, no size and no contrast
can be relied on. Street objects from every side are among the shapes.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.camera import Camera
from lab.scenes.canvas import SCENERY, Canvas
from lab.scenes.furniture import clutter, hydrant, sign, signal, stop_sign
from lab.scenes.light import choose_light
from lab.scenes.people import choose_person, dress, riding, walking
from lab.scenes.places import MODELS, model
from lab.scenes.shapes import silhouette
from lab.scenes.solid import Pose, Solid, paint_solid
from lab.scenes.textures import CLOUDS, NOISES, SURFACES, clouds, noise, surface
from lab.scenes.truth import Painted
from lab.scenes.types import RANDOM_LABEL
from lab.scenes.vehicles import choose_paint

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
MAX_OBJECTS = 18


def scatter(canvas: Canvas, painted: list[Painted], rng: np.random.Generator) -> None:
    """Fill the canvas with a background unless it has one, and strew objects over it.

    Args:
        canvas: a street, or blank when `painted` is empty.
        painted: gets a record for every object added.
        rng: decides everything.

    """
    street = bool(painted)
    if not street:
        _background(canvas, rng)
    first = max((p.track_id for p in painted), default=0) + 1
    room = 250 - len(painted)
    for i in range(min(int(rng.integers(1, 7) if street else rng.integers(3, MAX_OBJECTS)), room)):
        owner = len(painted) + 1
        kind = rng.random()
        size = _size(canvas, rng)
        if kind < 0.16:
            _add_shape(canvas, rng, size, SCENERY)
            continue
        if kind < 0.52:
            label, bounds = _add_solid(canvas, rng, size, owner)
        else:
            label, bounds = RANDOM_LABEL, _add_shape(canvas, rng, size, owner)
        area = None if bounds is None else canvas.roi(bounds.reshape(2, 2))
        if area is None or bounds is None:
            continue
        whole = int(np.count_nonzero(canvas.owner[area] == owner))
        painted.append(Painted(label, first + i, float(1000 - i), owner, bounds, whole))


def _size(canvas: Canvas, rng: np.random.Generator) -> float:
    """Longer side in pixels: 12 to more than the whole, even on a log scale."""
    short = min(canvas.size_hw)
    low = np.log(min(12, short / 4))
    return float(np.exp(low + (np.log(short * 1.15) - low) * rng.random() ** 1.25))


def _background(canvas: Canvas, rng: np.random.Generator) -> None:
    height, width = canvas.size_hw
    whole = (slice(0, height), slice(0, width))
    canvas.pixels[..., :3] = _fabric(canvas, whole, rng)
    for _ in range(int(rng.integers(0, 7))):
        _add_shape(canvas, rng, _size(canvas, rng) * 1.3, SCENERY)


def _fabric(canvas: Canvas, area: tuple[slice, slice], rng: np.random.Generator) -> Bytes:
    """Colours (h, w, 3) for an area: a pattern, a gradient, or what is elsewhere on the canvas."""
    height, width = area[0].stop - area[0].start, area[1].stop - area[1].start
    kind = rng.random()
    if kind < 0.12 and height * 2 < canvas.size_hw[0] and width * 2 < canvas.size_hw[1]:
        y = int(rng.integers(canvas.size_hw[0] - height))
        x = int(rng.integers(canvas.size_hw[1] - width))
        patch = canvas.pixels[y : y + height, x : x + width, :3]
        return cv2.convertScaleAbs(patch, alpha=float(rng.uniform(0.75, 1.3)))
    if kind < 0.4:
        colour = rng.uniform(10, 245) + rng.normal(0, 30 * rng.random(), 3)
        patch = np.empty((height, width, 3), np.uint8)
        patch[:] = np.clip(colour, 0, 255)
    elif kind < 0.5:
        matrix = rng.uniform(-0.3, 1.2, (3, 1)), rng.uniform(0, 120, (3, 1))
        field = _sample(clouds(int(rng.integers(CLOUDS))), (height, width), rng)
        patch = cv2.transform(field, np.hstack(matrix))
    else:
        patch = _sample(surface(int(rng.integers(SURFACES))), (height, width), rng)
        tint = np.diag(np.clip(rng.normal(1, 0.2, 3), 0.3, 1.8))
        dull = np.full((3, 3), 1 / 3) * (keep := float(rng.uniform(0, 0.9))) + np.eye(3) * (
            1 - keep
        )
        contrast = float(rng.uniform(0.15, 1.0))
        mean = np.array(cv2.mean(patch)[:3])
        offset = (mean * (1 - contrast))[:, None]
        patch = cv2.transform(patch, np.hstack([tint @ dull * contrast, tint @ offset]))
    return _light_over(patch, rng)


def _light_over(patch: Bytes, rng: np.random.Generator) -> Bytes:
    """Apply a gradient and broad noise, as light on a surface gives."""
    height, width = patch.shape[:2]
    slope = rng.normal(0, 0.35, 2) * (rng.random() < 0.7)
    x = np.linspace(-0.5, 0.5, width, dtype=np.float32)[None] * np.float32(slope[0])
    y = np.linspace(-0.5, 0.5, height, dtype=np.float32)[:, None] * np.float32(slope[1])
    grain = _sample(noise(int(rng.integers(NOISES))), (height, width), rng).astype(np.float32)
    gain = 128 * (1 + x + y) + (grain - 128) * np.float32(rng.uniform(0, 0.8))
    return cv2.multiply(patch, cv2.merge([cv2.convertScaleAbs(gain)] * 3), scale=1 / 128)


def _sample(texture: Bytes, size_hw: tuple[int, int], rng: np.random.Generator) -> Bytes:
    """Cut a turned and scaled piece out of a texture."""
    scale, angle = float(np.exp(rng.uniform(-1.2, 0.9))), float(rng.uniform(0, 2 * np.pi))
    angle = angle if rng.random() < 0.6 else 0.0
    c, s = np.cos(angle) * scale, np.sin(angle) * scale
    move = np.array([[c, -s, rng.uniform(0, 256)], [s, c, rng.uniform(0, 256)]])
    return cv2.warpAffine(
        texture, move, size_hw[::-1], flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REFLECT,
    )  # fmt: skip


def _add_shape(canvas: Canvas, rng: np.random.Generator, size: float, owner: int) -> Array | None:
    """Paint a random silhouette somewhere; returns its pixel bounds."""
    mask = silhouette(rng, size)
    height, width = mask.shape
    x = int(rng.uniform(-0.35 * width, canvas.size_hw[1] - 0.65 * width))
    y = int(rng.uniform(-0.35 * height, canvas.size_hw[0] - 0.65 * height))
    area = canvas.roi(np.array([[x + 0.5, y + 0.5], [x + width - 0.5, y + height - 0.5]]), 0)
    if area is None:
        return None
    rows, columns = area
    rows = slice(rows.start, min(rows.stop, y + height))
    columns = slice(columns.start, min(columns.stop, x + width))
    if rows.stop <= rows.start or columns.stop <= columns.start:
        return None
    area = (rows, columns)
    cut = np.ascontiguousarray(
        mask[rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
    )
    if rng.random() < 0.4:
        _drop_shadow(canvas, cut, area, rng)
    patch = _fabric(canvas, area, rng)
    for _ in range(int(rng.choice([0, 1, 2, 4], p=[0.4, 0.25, 0.2, 0.15]))):
        part = silhouette(rng, max(4.0, size * float(rng.uniform(0.2, 0.9))))
        _inlay(patch, part, _fabric(canvas, area, rng), rng)
    canvas.paste(patch, cut, area, owner)
    return np.array([x, y, x + width, y + height], float)


def _inlay(patch: Bytes, part: Bytes, other: Bytes, rng: np.random.Generator) -> None:
    """Give a piece of an object another surface: windows, trousers, print."""
    height, width = patch.shape[:2]
    y, x = (
        int(rng.integers(-part.shape[0] // 2, height)),
        int(rng.integers(-part.shape[1] // 2, width)),
    )
    y0, x0 = max(0, y), max(0, x)
    y1, x1 = min(height, y + part.shape[0]), min(width, x + part.shape[1])
    if y1 > y0 and x1 > x0:
        where = np.ascontiguousarray(part[y0 - y : y1 - y, x0 - x : x1 - x])
        cv2.copyTo(other[y0:y1, x0:x1], where, patch[y0:y1, x0:x1])


def _drop_shadow(
    canvas: Canvas, cut: Bytes, area: tuple[slice, slice], rng: np.random.Generator
) -> None:
    """Darken the background beside an object; never part of its mask."""
    size = max(cut.shape)
    move = np.array([[1, 0, rng.normal(0, 0.08) * size], [0, 1, rng.normal(0, 0.08) * size]])
    soft = cv2.warpAffine(cut, move, cut.shape[::-1])
    soft = cv2.GaussianBlur(soft, (0, 0), max(0.6, size * float(rng.uniform(0.005, 0.05))))
    keep = 255 - cv2.convertScaleAbs(soft, alpha=float(rng.uniform(0.2, 0.7)))
    view = canvas.pixels[area]
    view[..., :3] = cv2.multiply(
        cv2.cvtColor(view, cv2.COLOR_BGRA2BGR), cv2.merge([keep] * 3), scale=1 / 255
    )


def _any_solid(rng: np.random.Generator) -> tuple[str, Solid]:
    kind = str(
        rng.choice(
            ["car", "truck", "bus", "motorcycle", "bicycle", "person", "thing"],
            p=[0.3, 0.08, 0.06, 0.08, 0.08, 0.3, 0.1],
        )
    )
    if kind == "person":
        person, phase = choose_person(rng), float(rng.uniform(0, 6.3))
        seat = float(rng.choice([0.45, 0.9]))
        pose = (
            walking(person, phase)
            if rng.random() < 0.8
            else riding(person, phase, seat, pedals=True)
        )
        return kind, dress(person, pose)
    if kind == "thing":
        which = int(rng.integers(5))
        labels = ("traffic light", "stop sign", "traffic sign", "fire hydrant", RANDOM_LABEL)
        makers = (signal, lambda _r: stop_sign(), sign, hydrant, clutter)
        return labels[which], makers[which](rng)
    return kind, model(kind, int(rng.integers(MODELS[kind]))).painted(choose_paint(rng))


def _add_solid(
    canvas: Canvas, rng: np.random.Generator, size: float, owner: int
) -> tuple[str, Array | None]:
    """Paint a street object, seen from any side, somewhere; returns its label and pixel bounds."""
    label, solid = _any_solid(rng)
    low, high = solid.bounds()
    reach = float(np.linalg.norm(high - low))
    height, width = canvas.size_hw
    fov = float(rng.uniform(0.15, 1.0))
    focal = width / 2 / np.tan(fov / 2)
    distance = max(0.75 * reach, focal * float(max(high - low)) / max(size, 4.0))
    pitch = float(rng.normal(-0.1, 0.18))
    middle = (low + high) / 2
    camera = Camera.create(
        np.zeros(3), (0.0, pitch, float(rng.normal(0, 0.12))), fov, canvas.size_hw, width / height
    )
    position = middle - camera.rotation[2] * distance
    centre = (float(rng.uniform(0, width)), float(rng.uniform(0, height)))
    camera = Camera(camera.rotation, position, camera.focal_xy, centre, canvas.size_hw)
    pose = Pose(
        0.0,
        0.0,
        float(rng.uniform(0, 2 * np.pi)) if label != "stop sign" else float(rng.normal(0, 0.5)),
    )
    light = choose_light(rng)
    bounds = paint_solid(canvas, camera, light, solid, pose, owner)
    area = None if bounds is None else canvas.roi(bounds.reshape(2, 2))
    if bounds is None or area is None:
        return label, None
    view = canvas.pixels[area]
    mask = cv2.inRange(view[..., 3], owner, owner)
    patch = np.ascontiguousarray(view[..., :3])
    mean = float(cv2.mean(patch, mask)[0])
    aim = float(rng.uniform(35, 190))
    mix = np.eye(3) * (1 - (dull := float(rng.uniform(0, 0.5)))) + dull / 3
    patch = cv2.transform(patch, mix * float(np.clip(aim / max(mean, 8), 0.5, 3.5)))
    canvas.paste(_light_over(patch, rng), mask, area, owner)
    return label, bounds
