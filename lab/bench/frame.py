"""The frame that is measured: a file with boxes, or a rendered street."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sam2_core.types import AutolabelError, Boxes, FloatArray, ImageArray
from tasks.boxes.import_files import import_boxes
from tasks.frames.images import decode_image
from tasks.types import FrameFailure, FrameRef

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


def _frame(
    data: bytes, xyxy_px: FloatArray, size_hw: tuple[int, int], count: int, source: str
) -> BenchFrame:
    chosen = crowded(xyxy_px, count, size_hw) if count else xyxy_px
    boxes = Boxes(
        chosen, np.ones(len(chosen), np.float32), ("object",) * len(chosen), source="bench"
    )
    return BenchFrame(data, decode_image, boxes, source)


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
    return _frame(_jpeg(scene.image), boxes, size_hw, num_boxes, source)


def frame_from_files(
    image_path: Path, boxes_path: Path, num_boxes: int, size_hw: tuple[int, int] | None = None
) -> BenchFrame:
    """Read an image and its boxes.

    Args:
        image_path: any image file.
        boxes_path: what labeling imports: text named like the image, `label score x1 y1 x2 y2` a
            line, or COCO json.
        num_boxes: how many boxes to use: jittered copies are added; 0 takes them as they are.
        size_hw: resize the image (and boxes) to this; as it is when None.

    """
    try:
        data = image_path.read_bytes()
    except OSError as error:
        raise AutolabelError(f"cannot read the image {image_path}: {error.strerror}") from error
    image = decode_image(data)
    frame = FrameRef("bench", "", 0, None, str(image_path), local_path=str(image_path))
    found = import_boxes(str(boxes_path)).of(frame)
    if isinstance(found, FrameFailure) or not len(found):
        reason = found.reason if isinstance(found, FrameFailure) else "it holds none for this image"
        raise AutolabelError(f"no boxes for {image_path.name} in {boxes_path}: {reason}")
    boxes = found.xyxy_px
    height, width = image.shape[:2]
    if size_hw is not None and size_hw != (height, width):
        from PIL import Image

        resized = Image.fromarray(image).resize((size_hw[1], size_hw[0]), Image.Resampling.LANCZOS)
        data = _jpeg(np.asarray(resized))
        boxes = boxes * np.array([size_hw[1] / width, size_hw[0] / height] * 2, np.float32)
        height, width = size_hw
    source = f"{image_path.name} {width}x{height}, {len(boxes)} boxes from {boxes_path.name}"
    return _frame(data, boxes, (height, width), num_boxes, source)
