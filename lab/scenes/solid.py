"""Solids made of flat parts, placed in the world and painted far to near."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt

from lab.scenes.camera import NEAR_M, Camera
from lab.scenes.canvas import Canvas, to_fixed
from lab.scenes.light import Light

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
BEHIND, SHELL, DETAIL = 0, 1, 2


@dataclass
class Solid:
    """Parts of one object in its own axes: x forward, y left, z up, ground at z = 0.

    A part is a flat polygon. Layers: BEHIND parts are painted first, as the convex hull of their
    points and from any side (wheels, limbs); SHELL parts far to near, those that face the eye;
    DETAIL parts last, in order, where they face the eye (lamps, doors). This is exact for the
    nearly convex shells of vehicles and needs no depth buffer. Hoops (centre, radius around y) are
    spoked wheels: what is seen through them belongs to the object, as annotators draw it.
    """

    parts: list[Array] = field(default_factory=list)
    albedo: list[Array] = field(default_factory=list)
    gloss: list[float] = field(default_factory=list)
    layer: list[int] = field(default_factory=list)
    glow: list[float] = field(default_factory=list)
    body: list[float] = field(default_factory=list)
    hoops: list[tuple[Array, float]] = field(default_factory=list)
    packed: Packed | None = None

    def add(
        self, points: Array, albedo: Array, *, gloss: float = 0.0, layer: int = SHELL,
        glow: float = 0.0, body: float = 0.0,
    ) -> None:  # fmt: skip
        """Add a part.

        Args:
            points: (N, 3) anticlockwise seen from outside.
            albedo: (3,) 0-255.
            gloss: 0 matt to 1 mirror.
            layer: BEHIND, SHELL or DETAIL.
            glow: shown as it is, times this, whatever the light.
            body: above 0: `painted` replaces the albedo by the paint times this.

        """
        self.parts.append(np.asarray(points, float))
        self.albedo.append(np.asarray(albedo, float))
        self.gloss.append(gloss)
        self.layer.append(layer)
        self.glow.append(glow)
        self.body.append(body)
        self.packed = None

    def painted(self, paint: Array) -> Solid:
        """Return the same shape in another paint, sharing everything else."""
        packed = self.pack()
        body = np.array(self.body)[:, None]
        albedo = np.where(body > 0, np.clip(paint * body, 0, 255), packed.albedo)
        return replace(self, packed=replace(packed, albedo=albedo))

    def pack(self) -> Packed:
        """Return the parts as flat arrays, made once."""
        if self.packed is None:
            counts = np.array([len(p) for p in self.parts])
            extent = np.array([float(np.ptp(p, axis=0).max()) for p in self.parts])
            points = np.concatenate(self.parts)
            self.packed = Packed(
                points, np.concatenate([[0], np.cumsum(counts)]),
                np.stack(self.albedo), np.array(self.gloss), np.array(self.layer),
                np.array(self.glow), extent, points.min(0), points.max(0),
            )  # fmt: skip
        return self.packed

    def bounds(self) -> tuple[Array, Array]:
        """Lowest and highest corner."""
        packed = self.pack()
        return packed.low, packed.high


@dataclass(frozen=True, eq=False)
class Packed:
    """`Solid` as arrays; part i owns points[starts[i]:starts[i + 1]]."""

    points: Array
    starts: npt.NDArray[np.int64]
    albedo: Array
    gloss: Array
    layer: npt.NDArray[np.int64]
    glow: Array
    extent: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Pose:
    """Where a solid stands: metres, heading in radians anticlockwise from x, size multiplier."""

    x: float
    y: float
    heading: float
    z: float = 0.0
    scale: float = 1.0

    def apply(self, points: Array) -> Array:
        """Points (..., 3) of the object in the world."""
        c, s = np.cos(self.heading), np.sin(self.heading)
        turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1.0]]) * self.scale
        result: Array = points @ turn + np.array([self.x, self.y, self.z])
        return result


def paint_solid(
    canvas: Canvas, camera: Camera, light: Light, solid: Solid, pose: Pose, owner: int
) -> Array | None:
    """Paint a solid and return the pixel bounds (x0, y0, x1, y1) of what was painted."""
    packed = solid.pack()
    world = pose.apply(packed.points)
    local = camera.to_camera(world)
    starts = packed.starts[:-1]
    nearest = np.minimum.reduceat(local[:, 2], starts)
    counts = np.diff(packed.starts)
    normals, to_eye, faces = _facing(camera, world, starts, counts)
    behind = packed.layer == BEHIND
    normals[behind & ~faces] *= -1
    farthest = np.maximum.reduceat(local[:, 2], starts)
    # What is smaller than a pixel is not worth its call.
    shown = packed.extent * pose.scale * camera.focal_xy[1] > 1.2 * nearest
    visible = (farthest > NEAR_M) & (faces | behind) & shown
    if not visible.any():
        return None
    depth = np.add.reduceat(local[:, 2], starts) / counts
    colours = _colours(light, packed, normals, to_eye, depth)
    distance = np.where(packed.layer == DETAIL, np.arange(len(depth)), -depth)
    order = np.lexsort((distance, packed.layer))
    pixels = camera.to_pixels(local)
    cut = nearest <= NEAR_M
    chosen = order[visible[order] & ~cut[order]]
    low, high = _extent(pixels, starts, chosen)
    fixed, layers, ends = to_fixed(pixels), packed.layer.tolist(), packed.starts.tolist()
    for centre, radius in solid.hoops:
        ring = pose.apply(disc(centre, radius, 1, 1.0, 24))
        rim = _paint_hoop(canvas, camera, light, ring, pose.apply(centre), owner)
        low, high = (low, high) if rim is None else _union(low, high, rim)
    for i in order[visible[order]].tolist():
        shape = fixed[ends[i] : ends[i + 1]]
        if cut[i]:
            piece = camera.polygon(world[ends[i] : ends[i + 1]])
            if piece is None:
                continue
            low, high = _union(low, high, piece)
            shape = to_fixed(piece)
        shape = cv2.convexHull(shape) if layers[i] == BEHIND else shape
        canvas.fixed_polygon(shape, colours[i], owner)
    return np.concatenate([low, high]) if np.isfinite(low).all() else None


def _facing(
    camera: Camera, world: Array, starts: Indices, counts: Indices
) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Every part's unit normal, unit vector to the eye, and whether it faces the eye."""
    first = world[starts]
    diagonal_a = world[starts + counts // 2] - first
    diagonal_b = world[starts + (3 * counts) // 4] - world[starts + counts // 4]
    ax, ay, az = diagonal_a.T
    bx, by, bz = diagonal_b.T
    normals = np.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], 1)
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    centres = np.add.reduceat(world, starts) / counts[:, None]
    to_eye = camera.position - centres
    to_eye /= np.maximum(np.linalg.norm(to_eye, axis=1, keepdims=True), 1e-9)
    faces = (normals * to_eye).sum(1) > 0
    return normals, to_eye, faces


def _colours(
    light: Light, packed: Packed, normals: Array, to_eye: Array, depth: Array
) -> list[list[float]]:
    """Colour of every part, 0-255: lit or glowing, then faded by haze."""
    colours = light.shade(packed.albedo, normals, to_eye, packed.gloss)
    colours = np.where(packed.glow[:, None] > 0, packed.albedo * packed.glow[:, None], colours)
    fade = light.fade(depth)[:, None]
    result: list[list[float]] = np.clip(colours * (1 - fade) + light.haze * fade, 0, 255).tolist()
    return result


def _union(low: Array, high: Array, points: Array) -> tuple[Array, Array]:
    """Bounds that hold the points too."""
    return np.minimum(low, points.min(0)), np.maximum(high, points.max(0))


def _extent(pixels: Array, starts: Indices, chosen: Indices) -> tuple[Array, Array]:
    """Pixel bounds of the chosen parts."""
    if not len(chosen):
        return np.full(2, np.inf), np.full(2, -np.inf)
    low = np.minimum.reduceat(pixels, starts)[chosen].min(0)
    high = np.maximum.reduceat(pixels, starts)[chosen].max(0)
    return low, high


def _paint_hoop(
    canvas: Canvas, camera: Camera, light: Light, ring: Array, hub: Array, owner: int
) -> Array | None:
    """Tyre, spokes, and ownership of what is between them."""
    local = camera.to_camera(np.concatenate([ring, hub[None]]))
    if local[:, 2].min() < NEAR_M:
        return None
    pixels = camera.to_pixels(local)
    outline, middle = pixels[:-1], pixels[-1]
    canvas.own(outline, owner)
    colour = np.full(3, 30.0) * (light.sky + light.sun * 0.3)
    width = 0.035 * camera.pixels_per_metre(float(local[-1, 2]))
    if width > 0.8:
        for rim in outline[::2]:
            canvas.line(np.stack([middle, rim]), colour * 2.5, owner, 0.2 * width)
    canvas.line(np.concatenate([outline, outline[:1]]), colour, owner, width)
    return outline


def disc(
    centre: Array, radius: float, axis: int, sign: float, points: int = 18,
    arc: tuple[float, float] = (0.0, 2 * np.pi),
) -> Array:  # fmt: skip
    """(points, 3) of a circle (or arc) around an axis (0 x, 1 y), anticlockwise seen from +sign."""
    t = np.linspace(*arc, points, endpoint=arc[1] - arc[0] < 2 * np.pi - 1e-6)
    a, b = np.cos(t) * radius, np.sin(t) * radius
    result = np.zeros((points, 3))
    if axis == 1:
        result[:, 0], result[:, 2] = a, b
        result = result[::-1] if sign > 0 else result
    else:
        result[:, 1], result[:, 2] = a, b
        result = result if sign > 0 else result[::-1]
    return result + centre


def box(low: Array, high: Array) -> list[Array]:
    """Six faces (4, 3) of an upright box, anticlockwise seen from outside."""
    (x0, y0, z0), (x1, y1, z1) = low, high
    v = np.array(
        [
            [x0, y0, z0], [x1, y0, z0], [x1, y1, z0], [x0, y1, z0],
            [x0, y0, z1], [x1, y0, z1], [x1, y1, z1], [x0, y1, z1],
        ]
    )  # fmt: skip
    faces = ((3, 2, 1, 0), (4, 5, 6, 7), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7))
    return [v[list(f)] for f in faces]
