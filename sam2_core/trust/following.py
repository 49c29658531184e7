"""Certificates of a model's memory: objects followed through a short clip as PyTorch follows them.

The clip is a window that moves over a bundled picture. One object begins with a box, another one
with a mask; on one frame there is nothing, and later one object is corrected. The last frame reads
memories of every age. PyTorch's answers are those of the same modules in float32, which
`lab/tools/follow_with_meta.py` holds against Meta's own predictor.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sam2_core.backends.follow_backends import RECENT_MEMORIES, FollowBackend
from sam2_core.follow import Follower
from sam2_core.postprocess import finish
from sam2_core.prompts import box_prompts
from sam2_core.trust.calibration import (
    MEMORY_ANSWERS,
    Answers,
    Calibration,
    CalibrationImage,
    ImageAnswers,
    answers_of,
    bundled_calibration,
)
from sam2_core.trust.certify import (
    Certificate,
    UncertifiedEngineError,
    beside_reference,
    certificate_of,
    close_boxes,
    proven,
    recorded_or_made,
    versions_of,
    weights_of,
)
from sam2_core.types import ModelStamp

if TYPE_CHECKING:
    from sam2_core.architecture import Memory, Sam2

_FRAMES = RECENT_MEMORIES + 2
_NOTHING_ON, _CORRECTED_ON = 3, 5
_STEP_XY_PX = (16, 8)
_PICTURE, _OBJECTS = 1, (5, 6)  # of the bundled pictures and its boxes: a car and a cyclist


def clip() -> Calibration:
    """Return the frames of the clip, each with the boxes of both objects."""
    picture = bundled_calibration().images[_PICTURE]
    height, width = picture.size_hw
    last_x, last_y = (step * (_FRAMES - 1) for step in _STEP_XY_PX)
    frames = []
    for number in range(_FRAMES):
        x, y = (step * number for step in _STEP_XY_PX)
        pixels = picture.pixels[y : height - last_y + y, x : width - last_x + x].copy()
        if number == _NOTHING_ON:
            pixels[:] = 128
        boxes = picture.boxes_xyxy_px[list(_OBJECTS)] - np.array([x, y, x, y], np.float32)
        digest = hashlib.sha256(pixels.tobytes() + boxes.tobytes()).hexdigest()
        frames.append(CalibrationImage(f"frame {number}", pixels, boxes, digest))
    return Calibration(tuple(frames))


def followed_answers(
    backend: FollowBackend, frames: Sequence[CalibrationImage]
) -> tuple[list[ImageAnswers], float]:
    """Follow the objects of the clip, and return their masks and milliseconds for a frame."""
    follower, found, seconds = Follower(backend), [], []
    for number, frame in enumerate(frames):
        started = time.perf_counter()
        follower.see(frame.pixels)
        prompts, _, _ = box_prompts(frame.boxes_xyxy_px, frame.size_hw, backend.image_size)
        points, labels = prompts.points_model[:1], prompts.labels[:1]
        if number == 0:
            (first,) = follower.condition(points, labels)
            left, top, right, bottom = frame.boxes_xyxy_px[1].astype(int)
            mask = np.zeros((1, *frame.size_hw), np.bool_)
            mask[:, top:bottom, left:right] = True
            follower.condition_on_masks(mask)
        follower.track()
        if number == _CORRECTED_ON:
            follower.condition(points, labels, [first])
        masks = follower.followed().masks
        found.append(answers_of(finish(masks, frame.size_hw).rle, masks))
        seconds.append(time.perf_counter() - started)
    return found, float(np.median(seconds)) * 1e3


def torch_follows(model: Sam2, memory: Memory, checkpoint_sha256: str) -> Answers:
    """Have PyTorch follow the clip's objects in float32 on the CPU; both models are unchanged."""
    import torch

    from sam2_core.backends.torch_follow import TorchFollowBackend

    frames = clip()
    images, _ = followed_answers(TorchFollowBackend(model, memory), frames.images)
    made_by = f"PyTorch {torch.__version__}, float32"
    return Answers(checkpoint_sha256, False, frames.digest, made_by, tuple(images))


def memory_facts(stamp: ModelStamp, backend: FollowBackend) -> dict[str, Any]:
    """Return what makes an engine's memory the one that it is."""
    return {
        **asdict(stamp), "name": f"{stamp.name.partition('/')[0]}/memory", "close_ups": False,
        "memory": backend.memory_sha256,
        "device": backend.device, "machine": platform.machine(),
        "versions": versions_of(stamp.backend),
    }  # fmt: skip


def certify_memory(
    backend: FollowBackend, stamp: ModelStamp, source: str | Path
) -> tuple[Certificate, Answers, list[ImageAnswers]]:
    """Hold an engine's memory against PyTorch's.

    Args:
        backend: as `load_follow_backend` returns it.
        stamp: of the model.
        source: what was loaded.

    Returns:
        The certificate, not written yet; PyTorch's answers and the engine's.

    Raises:
        UncertifiedEngineError: there are no recorded answers, and no PyTorch or no weights.

    """
    frames = clip()
    wanted = (stamp.checkpoint_sha256, False, frames.digest)

    def made() -> Answers:
        weights = weights_of(source, stamp)
        memory = weights.load_memory()
        if memory is None:
            raise UncertifiedEngineError(f"{weights.label} has no memory to hold {source} against")
        return torch_follows(weights.load(), memory, stamp.checkpoint_sha256)

    answers = recorded_or_made(source, MEMORY_ANSWERS, wanted, made)
    found, latency_ms = followed_answers(backend, frames.images)
    follower = Follower(backend)
    follower.see(frames.images[0].pixels)
    follower.condition(*close_boxes(backend.image_size))
    pair = follower.followed().masks
    said = (pair.logits, pair.predicted_iou, pair.object_score)  # of absent ones logits are equal
    certificate = certificate_of(
        memory_facts(stamp, backend), frames, answers,
        beside_reference(frames, found, answers), source=source, latency_ms=latency_ms,
        coordinates_kept=any(not np.array_equal(*both) for both in said),
    )  # fmt: skip
    return certificate, answers, found


def ensure_memory_certified(
    backend: FollowBackend, stamp: ModelStamp, source: str | Path
) -> Certificate:
    """Return the certificate of a memory, which proves itself now where it has none yet.

    Raises:
        UncertifiedEngineError: it fails, or nothing can tell.
        MachineError: the device failed meanwhile.

    """
    return proven(
        memory_facts(stamp, backend),
        lambda: certify_memory(backend, stamp, source)[0],
    )
