"""Random silhouettes: blobs, polygons, limbs, thin things, things with holes."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.textures import FOLIAGES, foliage

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
_SIZE = 256
KINDS = (
    "blob", "polygon", "limbs", "thin", "ring", "leaves", "blocks", "capsule", "cart",
)  # fmt: skip
_WEIGHTS = (0.2, 0.13, 0.17, 0.07, 0.08, 0.08, 0.1, 0.09, 0.08)


def silhouette(rng: np.random.Generator, size_px: float) -> Bytes:
    """Mask (h, w) of 0 and 255 whose longer side is about size_px, touching its four edges."""
    mask = np.zeros((_SIZE, _SIZE), np.uint8)
    kind = str(rng.choice(KINDS, p=_WEIGHTS))
    if kind == "leaves":
        mask = foliage(int(rng.integers(FOLIAGES)))[1][0].copy()
    else:
        _DRAW[kind](mask, rng)
    aspect = float(np.exp(rng.normal(0, 0.35)))
    angle = float(rng.uniform(0, 360) if rng.random() < 0.7 else rng.normal(0, 8))
    turn = cv2.getRotationMatrix2D((mask.shape[1] / 2, mask.shape[0] / 2), angle, 1.0)
    turn[:, 2] += 110
    mask = cv2.warpAffine(mask, turn, (mask.shape[1] + 220, mask.shape[0] + 220))
    x, y, w, h = cv2.boundingRect(mask)
    scale = size_px / max(w * aspect, h, 1)
    size = (max(2, round(w * aspect * scale)), max(2, round(h * scale)))
    mask = cv2.resize(mask[y : y + h, x : x + w], size, interpolation=cv2.INTER_AREA)
    return cv2.threshold(mask, 110, 255, cv2.THRESH_BINARY)[1]


def _fill(mask: Bytes, points: Array, value: int = 255) -> None:
    cv2.fillPoly(mask, [np.rint(points).astype(np.int32)], value)


def _segment(mask: Bytes, a: Array, b: Array, width: float) -> None:
    ends = [(int(p[0]), int(p[1])) for p in (a, b)]
    cv2.line(mask, ends[0], ends[1], 255, max(2, int(width)))


def _outline(rng: np.random.Generator, radius: float, rough: float, centre: Array) -> Array:
    t = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    r = np.ones_like(t)
    for k in range(1, int(rng.integers(3, 9))):
        r += rng.normal(0, rough / k) * np.cos(k * t + rng.uniform(0, 6.3))
    r = np.clip(r, 0.25, 2.0) * radius
    return centre + np.stack([np.cos(t) * r, np.sin(t) * r], 1)


def _blob(mask: Bytes, rng: np.random.Generator) -> None:
    centre = np.full(2, _SIZE / 2)
    _fill(mask, _outline(rng, 62, float(rng.uniform(0.03, 0.35)), centre))
    for _ in range(int(rng.integers(0, 3))):
        _fill(
            mask, _outline(rng, float(rng.uniform(20, 50)), 0.15, centre + rng.uniform(-60, 60, 2))
        )


def _polygon(mask: Bytes, rng: np.random.Generator) -> None:
    n = int(rng.integers(3, 10))
    t = np.sort(rng.uniform(0, 2 * np.pi, n))
    r = rng.uniform(40, 120, n)
    points = _SIZE / 2 + np.stack([np.cos(t) * r, np.sin(t) * r], 1)
    if rng.random() < 0.6:
        points = cv2.convexHull(points.astype(np.float32))[:, 0]
    _fill(mask, points)


def _limbs(mask: Bytes, rng: np.random.Generator) -> None:
    trunk = np.array([[_SIZE / 2, 90.0], [_SIZE / 2 + rng.normal(0, 15), 165.0]])
    _segment(mask, trunk[0], trunk[1], float(rng.uniform(16, 50)))
    if rng.random() < 0.8:
        cv2.circle(mask, (int(trunk[0, 0]), 66), int(rng.integers(11, 26)), 255, -1)
    for _ in range(int(rng.integers(2, 6))):
        at = trunk[rng.integers(2)] + rng.normal(0, 6, 2)
        angle, width = rng.uniform(0, 2 * np.pi), float(rng.uniform(6, 20))
        for _ in range(2):
            end = at + rng.uniform(22, 52) * np.array([np.cos(angle), np.sin(angle)])
            _segment(mask, at, end, width)
            at, angle, width = end, angle + rng.normal(0, 0.7), width * 0.75


def _thin(mask: Bytes, rng: np.random.Generator) -> None:
    t = np.linspace(0, 1, 24)[:, None]
    points = rng.uniform(20, _SIZE - 20, (4, 2))
    curve = (
        (1 - t) ** 3 * points[0] + 3 * (1 - t) ** 2 * t * points[1]
        + 3 * (1 - t) * t**2 * points[2] + t**3 * points[3]
    )  # fmt: skip
    curve = points[:1] + (points[3:] - points[:1]) * t if rng.random() < 0.4 else curve
    cv2.polylines(mask, [np.rint(curve).astype(np.int32)], False, 255, int(rng.integers(5, 22)))
    if rng.random() < 0.5:
        _fill(mask, _outline(rng, float(rng.uniform(14, 45)), 0.1, curve[-1]))


def _ring(mask: Bytes, rng: np.random.Generator) -> None:
    centre = np.full(2, _SIZE / 2)
    _fill(mask, _outline(rng, 90, 0.08, centre))
    for _ in range(int(rng.integers(1, 4))):
        _fill(
            mask, _outline(rng, float(rng.uniform(14, 55)), 0.1, centre + rng.normal(0, 22, 2)), 0
        )


def _blocks(mask: Bytes, rng: np.random.Generator) -> None:
    at = np.array([_SIZE / 2, _SIZE / 2])
    for _ in range(int(rng.integers(2, 7))):
        half = rng.uniform(10, 60, 2)
        low, high = at - half, at + half
        corners = tuple(int(v) for v in low), tuple(int(v) for v in high)
        cv2.rectangle(mask, corners[0], corners[1], 255, -1)
        at = np.clip(at + rng.uniform(-1, 1, 2) * half * 1.3, 60, _SIZE - 60)


def _capsule(mask: Bytes, rng: np.random.Generator) -> None:
    half = rng.uniform(25, 110, 2)
    power = float(rng.choice([2.0, 3.0, 6.0]))
    t = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    c, s = np.cos(t), np.sin(t)
    x = np.sign(c) * np.abs(c) ** (2 / power) * half[0]
    y = np.sign(s) * np.abs(s) ** (2 / power) * half[1]
    _fill(mask, _SIZE / 2 + np.stack([x, y], 1))


def _cart(mask: Bytes, rng: np.random.Generator) -> None:
    """Something on wheels, seen from its side."""
    low, radius = 170, int(rng.integers(14, 30))
    left, right = 128 - rng.uniform(60, 110), 128 + rng.uniform(60, 110)
    waist, top = low - rng.uniform(25, 60), low - rng.uniform(60, 120)
    a, b = rng.uniform(left, 120), rng.uniform(136, right)
    shape = [[left, low], [left, waist], [a - 15, waist - 4], [a + 8, top], [b - 8, top],
             [b + 22, waist], [right, waist + 8], [right, low]]  # fmt: skip
    _fill(mask, np.array(shape))
    for x in (left + radius * 1.6, right - radius * 1.6):
        cv2.circle(mask, (int(x), low), radius, 255, -1)


_DRAW = {
    "blob": _blob, "polygon": _polygon, "limbs": _limbs, "thin": _thin, "ring": _ring,
    "blocks": _blocks, "capsule": _capsule, "cart": _cart,
}  # fmt: skip
