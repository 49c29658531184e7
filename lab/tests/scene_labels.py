"""Labels of rendered scenes with known mistakes, as a model makes them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from lab.scenes import render_sequence
from lab.scenes.types import Frame
from sam2_core.types import Boxes, Masks
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef

MISTAKES = ("good", "good", "good", "good", "spill", "erode", "half", "blob", "specks", "empty")


def spoil(mask: np.ndarray, box: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """One mask with one kind of mistake; bool (H, W)."""
    x0, y0, x1, y1 = (int(v) for v in box)
    width, height = max(x1 - x0, 1), max(y1 - y0, 1)
    result = mask.astype(np.uint8)
    size = max(1, int(0.25 * min(width, height)))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * size + 1, 2 * size + 1))
    if kind == "good":
        small = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))
        result = cv2.dilate(result, small) if rng.random() < 0.3 else result
    elif kind == "spill":
        result = cv2.dilate(result, kernel)
    elif kind == "erode":
        result = cv2.erode(result, kernel)
    elif kind == "half":
        result[y0 + height // 3 :, :] = 0
    elif kind == "blob":
        result[:] = 0
        cv2.ellipse(result, (x0 + width, y0), (width // 2 + 1, height // 2 + 1), 0, 0, 360, 1, -1)
    elif kind == "specks":
        result[rng.random(result.shape) < 0.55] = 0
    else:
        result[:] = 0
    return result.astype(bool)


def iou(first: np.ndarray, second: np.ndarray) -> float:
    """IoU of two bool masks."""
    union = (first | second).sum()
    return float((first & second).sum() / union) if union else 1.0


def label_scene(
    frame: Frame, ref: FrameRef, seed: int, mistakes: tuple[str, ...] = MISTAKES
) -> tuple[LabeledFrame, np.ndarray]:
    """Labels of one rendered frame and their true IoU (N,)."""
    rng = np.random.default_rng([seed, frame.index])
    size = frame.scene.size_hw
    rle, ious, guesses, areas = [], [], [], []
    for instance in frame.scene.instances:
        # A mistake stays with an object for some frames and then goes: it flickers.
        kind = np.random.default_rng([seed, instance.track_id, frame.index // 3]).choice(mistakes)
        truth = instance.full_mask(size)
        mask = spoil(truth, instance.box_xyxy_px, kind, rng)
        ious.append(iou(truth, mask))
        guesses.append(np.clip(0.35 + 0.6 * ious[-1] + rng.normal(0, 0.08), 0, 1))
        rle.append(coco_mask.encode(np.asfortranarray(mask, np.uint8))["counts"])
        areas.append(int(mask.sum()))
    count = len(rle)
    tracks = np.array([one.track_id for one in frame.scene.instances], np.int64)
    boxes = np.array([one.box_xyxy_px for one in frame.scene.instances], np.float32)
    labels = tuple(one.label for one in frame.scene.instances)
    stability = np.clip(np.array(guesses) + rng.normal(0, 0.05, count), 0, 1)
    masks = Masks(tuple(rle), size, guesses, stability, rng.normal(6, 2, count), areas,
                  tuple("" if area else "empty_mask" for area in areas))  # fmt: skip
    scores = rng.uniform(0.4, 1, count)
    return LabeledFrame(ref, Boxes(boxes, scores, labels, tracks, "scene"), masks), np.array(ious)


def scene_sequence(
    folder: Path, seed: int, frames: int, size_hw: tuple[int, int] = (288, 512)
) -> tuple[list[LabeledFrame], list[np.ndarray]]:
    """Write a drive's images and return its labels with their true IoUs."""
    folder.mkdir(parents=True, exist_ok=True)
    labeled, truth = [], []
    for frame in render_sequence(seed, frames, size_hw):
        path = folder / f"{frame.timestamp_ns}.jpg"
        cv2.imwrite(str(path), frame.scene.image[:, :, ::-1])
        ref = FrameRef(
            f"drive{seed}", "", frame.index, frame.timestamp_ns, str(path), size_hw,
            "1", path.stat().st_size, str(path),
        )  # fmt: skip
        one, ious = label_scene(frame, ref, seed)
        labeled.append(one)
        truth.append(ious)
    return labeled, truth
