"""A pinhole camera in a world of metres: x along the road, y to the left, z up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
NEAR_M = 0.25


@dataclass(frozen=True, eq=False)
class Camera:
    """Where the camera is and how it projects.

    Attributes:
        rotation: (3, 3), rows are the camera's right, down and forward axes in the world.
        position: (3,) metres.
        focal_xy: pixels; they differ when the picture is squeezed.
        centre_xy: principal point, pixels with pixel centres at +0.5.
        size_hw: of the canvas.

    """

    rotation: Array
    position: Array
    focal_xy: tuple[float, float]
    centre_xy: tuple[float, float]
    size_hw: tuple[int, int]

    @staticmethod
    def create(
        position: Array,
        angles_rad: tuple[float, float, float],
        fov_rad: float,
        size_hw: tuple[int, int],
        aspect: float,
        shift_y: float = 0.0,
    ) -> Camera:
        """Build one from yaw (left), pitch (up), roll and the horizontal field of view.

        Args:
            position: metres.
            angles_rad: yaw, pitch, roll.
            fov_rad: horizontal field of view.
            size_hw: canvas pixels.
            aspect: width over height of the picture before it was squeezed into the canvas.
            shift_y: principal point off the middle, as a fraction of the height.

        """
        yaw, pitch, roll = angles_rad
        cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
        forward = np.array([cy * cp, sy * cp, sp])
        right = np.array([sy, -cy, 0.0])
        down = np.cross(forward, right)
        cr, sr = np.cos(roll), np.sin(roll)
        rotation = np.stack([cr * right + sr * down, cr * down - sr * right, forward])
        height, width = size_hw
        focal_x = width / 2 / np.tan(fov_rad / 2)
        focal_y = focal_x * (height / width) * aspect
        centre = (width / 2, height * (0.5 + shift_y))
        return Camera(rotation, np.asarray(position, float), (focal_x, focal_y), centre, size_hw)

    def to_camera(self, points: Array) -> Array:
        """World points (..., 3) in the camera's axes: right, down, forward."""
        result: Array = (points - self.position) @ self.rotation.T
        return result

    def to_pixels(self, points_camera: Array) -> Array:
        """Camera points (..., 3) in front of the near plane to pixels (..., 2)."""
        depth = np.maximum(points_camera[..., 2:3], 1e-6)
        scale = np.array(self.focal_xy)
        result: Array = points_camera[..., :2] / depth * scale + np.array(self.centre_xy)
        return result

    def polygon(self, points: Array) -> Array | None:
        """Project a world polygon (N, 3), clipped at the near plane; None when nothing is left."""
        local = self.to_camera(points)
        front = local[:, 2] > NEAR_M
        if front.all():
            return self.to_pixels(local)
        if not front.any():
            return None
        kept = []
        for i, here in enumerate(local):
            there = local[i - 1]
            if front[i] != front[i - 1]:
                t = (NEAR_M - there[2]) / (here[2] - there[2])
                kept.append(there + t * (here - there))
            if front[i]:
                kept.append(here)
        return self.to_pixels(np.array(kept)) if len(kept) > 2 else None

    def plane_homography(self, origin: Array, u_axis: Array, v_axis: Array) -> Array:
        """(3, 3) from plane coordinates (u, v, 1) at origin + u u_axis + v v_axis to pixels."""
        axes = np.stack([u_axis, v_axis, origin - self.position], axis=1)
        local = self.rotation @ axes
        fx, fy = self.focal_xy
        cx, cy = self.centre_xy
        intrinsics = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
        result: Array = intrinsics @ local
        return result

    def pixels_per_metre(self, depth_m: float) -> float:
        """Vertical scale at a depth."""
        return float(self.focal_xy[1] / max(depth_m, NEAR_M))

    def horizon_rows(self) -> Array:
        """Row of the horizon at every column, float (W,)."""
        up = self.rotation[:, 2]  # the world's z in camera axes
        x = (np.arange(self.size_hw[1]) + 0.5 - self.centre_xy[0]) / self.focal_xy[0]
        down = up[1] if abs(up[1]) > 1e-6 else -1e-6
        rows: Array = -(up[0] * x + up[2]) / down * self.focal_xy[1] + self.centre_xy[1]
        return rows
