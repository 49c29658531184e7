"""The frame that is measured: a rendered street."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sam2_core.types import AutolabelError, Boxes, FloatArray, ImageArray
from tasks.frames.images import decode_image

DEFAULT_SIZE_HW = (1280, 1920)
_QUALITY = 92


@dataclass(frozen=True, eq=False)
class BenchFrame:
    """One encoded image and its boxes.

    Attributes:
        data: the image file's bytes.
        decode: bytes to uint8 (H, W, 3) RGB, as the product reads frames.
        boxes: in the image's pixels.
        source: what a reader of the results is told.

    """

    data: bytes
    decode: Callable[[bytes], ImageArray]
    boxes: Boxes
    source: str

    def read(self) -> ImageArray:
        """Decode the image."""
        return self.decode(self.data)


def crowded(xyxy_px: FloatArray, count: int, size_hw: tuple[int, int], seed: int = 0) -> FloatArray:
    """Return `count` boxes: the first ones as given, then jittered copies of them.

    A copy is shifted by up to half its size and scaled by 0.8 to 1.25: a crowded frame whose boxes
    have the sizes that boxes have.

    Args:
        xyxy_px: float32 (N, 4), N at least 1.
        count: how many to return.
        size_hw: (height, width) of the image, which copies are moved into.
        seed: of the jitter.

    Returns:
        float32 (count, 4).

    """
    given = np.asarray(xyxy_px, np.float32).reshape(-1, 4)
    if len(given) == 0:
        raise ValueError("no box to make copies of")
    generator = np.random.default_rng(seed)
    copies = given[np.arange(max(count - len(given), 0)) % len(given)]
    centre = (copies[:, :2] + copies[:, 2:]) / 2
    size = copies[:, 2:] - copies[:, :2]
    centre = centre + generator.uniform(-0.5, 0.5, centre.shape) * size
    half = size * generator.uniform(0.8, 1.25, size.shape) / 2
    limits = np.array([size_hw[1], size_hw[0]], np.float32)
    centre = np.clip(centre, half, np.maximum(limits - half, half))
    moved = np.concatenate([centre - half, centre + half], 1).astype(np.float32)
    return np.concatenate([given, moved])[:count]


def _jpeg(image: ImageArray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def rendered_frame(
    num_boxes: int, size_hw: tuple[int, int] = DEFAULT_SIZE_HW, seed: int = 3
) -> BenchFrame:
    """Render a street frame as JPEG, its objects' boxes and jittered copies of them.

    Args:
        num_boxes: how many boxes in all.
        size_hw: (height, width) of the frame.
        seed: of the scene; seeds after it are tried until a scene has enough objects.

    """
    from lab.scenes.render import render_scene

    scenes = (render_scene(seed + offset, size_hw) for offset in range(20))
    scene = next((s for s in scenes if len(s.instances) >= 5), None)
    if scene is None:
        raise AutolabelError(f"no rendered scene of seeds {seed} to {seed + 19} has 5 objects")
    boxes = np.array([instance.box_xyxy_px for instance in scene.instances], np.float32)
    source = f"rendered street {size_hw[1]}x{size_hw[0]}, {len(boxes)} objects"
    chosen = crowded(boxes, num_boxes, size_hw)
    ones = np.ones(len(chosen), np.float32)
    found = Boxes(chosen, ones, ("object",) * len(chosen), source="bench")
    return BenchFrame(_jpeg(scene.image), decode_image, found, source)
