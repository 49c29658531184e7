"""The picture being painted: colour and owner of every pixel, far to near.

The owner travels as a fourth channel, so one OpenCV call paints both and they cannot disagree.
Nothing is anti-aliased here: a pixel belongs to exactly one owner. Softness comes from the lens.
"""

from __future__ import annotations

from math import ceil, floor

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Colour = npt.NDArray[np.float64]
Levels = tuple[Bytes, ...]
SHIFT = 4
LIMIT_PX = 60000.0
SCENERY = 0  # the owner of everything that is not an instance
MAX_OWNERS = 255


class Canvas:
    """uint8 (H, W, 4): red, green, blue, owner."""

    def __init__(self, size_hw: tuple[int, int]) -> None:
        self.size_hw = size_hw
        self.pixels: Bytes = np.zeros((*size_hw, 4), np.uint8)

    @property
    def rgb(self) -> Bytes:
        """View of the colours."""
        return self.pixels[..., :3]

    @property
    def owner(self) -> Bytes:
        """View of the owners."""
        return self.pixels[..., 3]

    def polygon(self, points_px: Array, colour: Colour, owner: int, *, convex: bool = True) -> None:
        """Paint a polygon (N, 2) in pixels with a colour in 0-255."""
        fixed = to_fixed(points_px)
        value = (float(colour[0]), float(colour[1]), float(colour[2]), float(owner))
        if convex:
            cv2.fillConvexPoly(self.pixels, fixed, value, cv2.LINE_8, SHIFT)
        else:
            cv2.fillPoly(self.pixels, [fixed], value, cv2.LINE_8, SHIFT)

    def polygons(self, points_px: list[Array], colours: Array, owner: int) -> None:
        """Paint convex polygons in order; colours (N, 3)."""
        for points, colour in zip(points_px, np.clip(colours, 0, 255).tolist(), strict=True):
            self.fixed_polygon(to_fixed(points), colour, owner)

    def fixed_polygon(self, shape: npt.NDArray[np.int32], colour: list[float], owner: int) -> None:
        """Paint a convex polygon given in fixed point (see `to_fixed`)."""
        cv2.fillConvexPoly(self.pixels, shape, (*colour, float(owner)), cv2.LINE_8, SHIFT)

    def own(self, points_px: Array, owner: int) -> None:
        """Give a convex polygon's pixels to an owner without painting them."""
        area = self.roi(points_px)
        if area is None:
            return
        mask = np.zeros((area[0].stop - area[0].start, area[1].stop - area[1].start), np.uint8)
        shifted = points_px - np.array([area[1].start, area[0].start])
        cv2.fillConvexPoly(mask, to_fixed(shifted), 1, cv2.LINE_8, SHIFT)
        self.owner[area][mask > 0] = owner

    def line(self, points_px: Array, colour: Colour, owner: int, width_px: float) -> None:
        """Paint an open polyline (N, 2); at least one pixel wide."""
        value = (float(colour[0]), float(colour[1]), float(colour[2]), float(owner))
        cv2.polylines(
            self.pixels, [to_fixed(points_px)], False, value, max(1, round(width_px)),
            cv2.LINE_8, SHIFT,
        )  # fmt: skip

    def roi(self, points_px: Array, margin: int = 1) -> tuple[slice, slice] | None:
        """Rows and columns around points, inside the canvas; None when outside."""
        height, width = self.size_hw
        (left, top), (right, bottom) = points_px.min(0).tolist(), points_px.max(0).tolist()
        x0, y0 = max(0, floor(max(left, -9)) - margin), max(0, floor(max(top, -9)) - margin)
        x1 = min(width, ceil(min(max(right, -9), width)) + margin + 1)
        y1 = min(height, ceil(min(max(bottom, -9), height)) + margin + 1)
        return (slice(y0, y1), slice(x0, x1)) if x1 > x0 and y1 > y0 else None

    def warp(
        self, texture: Bytes, homography: Array, outline_px: Array, gain: Colour, owner: int,
        lift: Colour | None = None, glow: Bytes | None = None,
    ) -> None:  # fmt: skip
        """Paint a textured polygon.

        Args:
            texture: uint8 (h, w, 3), repeated beyond its edges.
            homography: (3, 3) from texture pixels to canvas pixels.
            outline_px: (N, 2) what of the plane to paint.
            gain: (3,) multiplies the texture.
            owner: of the painted pixels.
            lift: (3,) added after the gain (haze).
            glow: like the texture, added as it is (lit windows).

        """
        area = self.roi(outline_px)
        if area is None:
            return
        rows, columns = area
        size = (columns.stop - columns.start, rows.stop - rows.start)
        move = np.array([[1, 0, -columns.start], [0, 1, -rows.start], [0, 0, 1.0]])

        def sample(source: Bytes) -> Bytes:
            result: Bytes = cv2.warpPerspective(
                source, move @ homography, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP
            )
            return result

        scale = np.zeros((3, 4))
        scale[:, :3] = np.diag(gain)
        scale[:, 3] = 0 if lift is None else lift
        patch = cv2.transform(sample(texture), scale)
        if glow is not None:
            patch = cv2.add(patch, sample(glow))
        mask = np.zeros(size[::-1], np.uint8)
        shifted = outline_px - np.array([columns.start, rows.start])
        cv2.fillConvexPoly(mask, to_fixed(shifted), 255, cv2.LINE_8, SHIFT)
        self.paste(patch, mask, area, owner)

    def sprite(
        self, luminance: Levels, cover: Levels, corners_px: Array, tint: Colour, lift: Colour,
        owner: int,
    ) -> None:  # fmt: skip
        """Paint a grey texture with a cover mask into an upright rectangle.

        Args:
            luminance: levels of uint8 (h, w), 128 gives the tint itself.
            cover: levels of uint8 (h, w), painted where above the half.
            corners_px: (2, 2) top left and bottom right.
            tint: (3,) colour of luminance 128.
            lift: (3,) added.
            owner: of the painted pixels.

        """
        area = self.roi(corners_px)
        if area is None:
            return
        size = np.maximum(corners_px[1] - corners_px[0], 1e-3)
        level = min(len(cover) - 1, int(max(0, np.log2(luminance[0].shape[1] / size[0]))))
        height, width = cover[level].shape
        scale = size / (width, height)
        corner = corners_px[0] - (area[1].start, area[0].start)
        move = np.array([[scale[0], 0, corner[0]], [0, scale[1], corner[1]]])
        target = (area[1].stop - area[1].start, area[0].stop - area[0].start)
        mask = cv2.warpAffine(cover[level], move, target, flags=cv2.INTER_LINEAR)
        mask = cv2.threshold(mask, 127, 255, cv2.THRESH_BINARY)[1]
        grey = cv2.warpAffine(luminance[level], move, target, borderMode=cv2.BORDER_REPLICATE)
        matrix = np.stack([tint / 128.0, lift], 1)
        self.paste(cv2.transform(grey, matrix), mask, area, owner)

    def paste(self, patch: Bytes, mask: Bytes, area: tuple[slice, slice], owner: int) -> None:
        """Copy a patch (h, w, 3) where the mask (h, w) is not zero."""
        filled = cv2.merge([*cv2.split(patch), np.full(mask.shape, owner, np.uint8)])
        cv2.copyTo(filled, mask, self.pixels[area])


def to_fixed(points_px: Array) -> npt.NDArray[np.int32]:
    """Pixels (centres at +0.5) to OpenCV's fixed point (centres at integers)."""
    clipped = np.clip(points_px - 0.5, -LIMIT_PX, LIMIT_PX)
    return np.rint(clipped * (1 << SHIFT)).astype(np.int32)
