"""Rendered drives: frames of several cameras in time, and their truth as COCO json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.scenes.render import CAMERA_YAW_DEG, check_size, render_world
from lab.scenes.street import choose_world
from lab.scenes.types import LABELS, Frame
from sam2_core.types import AutolabelError, ImageArray

START_NS = 1_700_000_000_000_000_000


def render_sequence(
    seed: int, num_frames: int, size_hw: tuple[int, int] = (720, 1280), *,
    cameras: Sequence[str] = ("front",), fps: float = 10.0,
) -> Iterator[Frame]:  # fmt: skip
    """Yield the frames of a drive, all cameras of one moment after another.

    Track ids are the same in every frame and camera. The frames depend on the arguments only.

    Args:
        seed: any integer >= 0.
        num_frames: moments; the iterator yields num_frames * len(cameras) frames.
        size_hw: of every image.
        cameras: names out of `CAMERA_YAW_DEG`.
        fps: moments per second.

    Raises:
        AutolabelError: an unknown camera, a bad size, frame count or rate.

    """
    check_size(size_hw)
    unknown = [c for c in cameras if c not in CAMERA_YAW_DEG]
    if unknown:
        raise AutolabelError(f"unknown camera {unknown[0]!r}; known: {', '.join(CAMERA_YAW_DEG)}")
    if num_frames < 0 or fps <= 0:
        raise AutolabelError(f"{num_frames} frames at {fps} per second: not a sequence")
    return _frames(seed, num_frames, size_hw, cameras, fps)


def _frames(
    seed: int, num_frames: int, size_hw: tuple[int, int], cameras: Sequence[str], fps: float
) -> Iterator[Frame]:
    world = choose_world(np.random.default_rng([seed, 2]))
    for index in range(num_frames):
        for camera in cameras:
            noise = np.random.default_rng([seed, 3, index, list(CAMERA_YAW_DEG).index(camera)])
            scene = render_world(
                world, index / fps, camera, size_hw, size_hw[1] / size_hw[0], noise
            )
            yield Frame(camera, index, START_NS + round(index * 1e9 / fps), scene)


def jpeg(image: ImageArray) -> bytes:
    """Return a picture as JPEG, with hardly a loss."""
    import simplejpeg

    return bytes(simplejpeg.encode_jpeg(image, quality=92))


def write_sequence(
    folder: Path, seed: int, num_frames: int, size_hw: tuple[int, int] = (720, 1280), *,
    cameras: Sequence[str] = ("front",), fps: float = 10.0,
    encode: Callable[[ImageArray], bytes] = jpeg,
) -> Path:  # fmt: skip
    """Write JPEGs `<camera>/<timestamp_ns>.jpg` (no camera folder when there is one) and the truth.

    Returns the COCO instances json, written beside the pictures' folder as `truth.json`; its
    `file_name`s are relative to `folder / "images"`. Instances too small or too
    hidden to be asked for are in it with `iscrowd` 1: regions that count neither way.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for frame in render_sequence(seed, num_frames, size_hw, cameras=cameras, fps=fps):
        name = f"{frame.timestamp_ns}.jpg"
        name = name if len(cameras) == 1 else f"{frame.camera}/{name}"
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(frame.scene.image))
        add_to_coco(images, annotations, name, frame)
    truth = folder / "truth.json"
    truth.write_text(json.dumps(coco(images, annotations)))
    return truth


def add_to_coco(
    images: list[dict[str, Any]], annotations: list[dict[str, Any]], file_name: str, frame: Frame
) -> None:
    """Append a frame's image and annotation records."""
    height, width = frame.scene.size_hw
    image_id = len(images) + 1
    images.append(
        {
            "id": image_id, "file_name": file_name, "height": height, "width": width,
            "camera": frame.camera, "frame_index": frame.index, "timestamp_ns": frame.timestamp_ns,
        }
    )  # fmt: skip
    rows = [(instance, 0) for instance in frame.scene.instances]
    rows += [(instance, 1) for instance in frame.scene.dropped if instance.label in LABELS]
    for instance, crowd in rows:
        x0, y0, x1, y1 = (float(v) for v in instance.box_xyxy_px)
        annotations.append(
            {
                "id": len(annotations) + 1, "image_id": image_id,
                "category_id": LABELS.index(instance.label) + 1,
                "segmentation": instance.rle(frame.scene.size_hw),
                "bbox": [x0, y0, x1 - x0, y1 - y0], "area": instance.area_px, "iscrowd": crowd,
                "track_id": instance.track_id, "depth_m": round(instance.depth_m, 3),
                "visible_fraction": round(instance.visible_fraction, 4),
            }
        )  # fmt: skip


def coco(images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the whole COCO instances object."""
    return {
        "info": {"description": "procedurally rendered street scenes with exact masks"},
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i + 1, "name": name} for i, name in enumerate(LABELS)],
    }
