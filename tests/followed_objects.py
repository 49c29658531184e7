"""Objects followed through a random scene: prompts, frames, weights, our masks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from sam2_core.architecture import Memory, Sam2, random_memory, random_weights
from sam2_core.backends.follow_backends import FollowBackend
from sam2_core.follow import Follower
from sam2_core.presets import Preset

Masks = dict[tuple[int, int], np.ndarray]  # logits (G, G) by frame and object


class Prompt(NamedTuple):
    """What is asked on a frame, before or after the other objects are tracked on it."""

    frame: int
    name: int
    points: list[list[float]]  # x, y of 0..1
    labels: list[int]  # none: a mask, of the rectangle between the points
    after: bool = False

    def mask(self, size: int) -> np.ndarray:
        """Return the mask."""
        mask = np.zeros((size, size), np.bool_)
        (left, top), (right, bottom) = (np.array(self.points) * size).astype(int)
        mask[top:bottom, left:right] = True
        return mask


def prompts(frames: int) -> list[Prompt]:
    """Three objects: 1 and 2 from the first frame on, 3 late.

    2 is corrected by a click and 3 by a mask, 1 conditioned again by a box and 2 by a mask.
    """
    quarter = frames // 4
    box = [2, 3]
    return [
        Prompt(0, 1, [[0.1, 0.15], [0.5, 0.6]], box),
        Prompt(0, 2, [[0.45, 0.4], [0.9, 0.85]], box),
        Prompt(quarter, 3, [[0.2, 0.5], [0.45, 0.9]], box),
        Prompt(quarter + 2, 3, [[0.25, 0.5], [0.5, 0.95]], [], after=True),
        Prompt(2 * quarter, 2, [[0.6, 0.6]], [1], after=True),
        Prompt(2 * quarter + 2, 2, [[0.4, 0.35], [0.8, 0.8]], []),
        Prompt(3 * quarter, 1, [[0.3, 0.2], [0.7, 0.7]], box),
    ]


def video(preset: Preset, frames: int, seed: int = 1) -> torch.Tensor:
    """A smooth random scene that drifts, uint8 (T, S, S, 3)."""
    size = preset.image_size
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 24, 24, generator=generator)
    scene = torch.nn.functional.interpolate(coarse, (2 * size, 2 * size), mode="bicubic")[0]
    scene = (scene.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    shown = []
    for frame in range(frames):
        x, y = frame * size // (2 * frames), frame * size // (3 * frames)
        shown.append(scene[y : y + size, x : x + size])
    return torch.stack(shown)


def weights(preset: Preset, score_bias: float = 0.8, seed: int = 0) -> tuple[Sam2, Memory]:
    """Random weights; `score_bias` is added to object scores, so that most objects are there."""
    model = random_weights(preset, seed)
    with torch.no_grad():
        memory = random_memory(preset, seed)
        decoder = memory.tracking_decoder if preset.tracking_decoder else model.sam_mask_decoder
        decoder.pred_obj_score_head.layers[2].bias += score_bias
    return model, memory


def our_masks(backend: FollowBackend, frames: torch.Tensor, asked: list[Prompt]) -> Masks:
    """Ours, as `metas_masks`."""
    follower = Follower(backend)
    size = frames.shape[1]
    names: dict[int, int] = {}
    result: Masks = {}
    for frame, image in enumerate(frames):
        follower.see(image.numpy())
        for after in (False, True):
            for prompt in asked:
                if (prompt.frame, prompt.after) != (frame, after):
                    continue
                known = [names.get(prompt.name)]
                if prompt.labels:
                    points = np.array([prompt.points], np.float32) * size
                    labels = np.array([prompt.labels], np.int32)
                    (names[prompt.name],) = follower.condition(points, labels, known)
                else:
                    mask = prompt.mask(size)[None]
                    (names[prompt.name],) = follower.condition_on_masks(mask, known)
            if not after:
                follower.track()
        followed = follower.followed()
        logits = dict(zip(followed.tracks.tolist(), followed.masks.logits, strict=True))
        result |= {(frame, name): logits[track] for name, track in names.items()}
    return result


def iou(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Of two logit maps; 1 where both are empty."""
    ours, theirs = ours > 0, theirs > 0
    union = (ours | theirs).sum()
    return float((ours & theirs).sum() / union) if union else 1.0


def compared(ours: Masks, theirs: Masks) -> np.ndarray:
    """IoU of each mask with Meta's."""
    assert ours.keys() == theirs.keys()
    return np.array([iou(ours[key], theirs[key]) for key in ours])
