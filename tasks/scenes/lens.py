"""What a camera does to the picture: blur, exposure, noise, JPEG."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from tasks.scenes.light import Light

Bytes = npt.NDArray[np.uint8]


def finish(rgb: Bytes, light: Light, rng: np.random.Generator) -> Bytes:
    """Return the sensor's picture uint8 (H, W, 3) of the painted one."""
    image = cv2.GaussianBlur(np.ascontiguousarray(rgb), (0, 0), float(rng.uniform(0.5, 0.9)))
    noise = np.empty(image.shape, np.int8)
    cv2.setRNGSeed(int(rng.integers(1 << 31)))
    cv2.randn(noise, 0, float(rng.uniform(1, 5) * (2 if light.night else 1)))
    result: Bytes = cv2.add(image, noise, dtype=cv2.CV_8U)
    return result
