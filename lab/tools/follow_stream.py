"""Follow objects through a long stream: memory and time of a frame, a line for every 1,000 frames.

    python -m lab.tools.follow_stream [--frames N] [--objects N] [--model micro|tiny|...]

Random weights; boxes jump about and are missing now and then, so that objects come, are conditioned
again, and end; at most N are followed at once. Time is the process's, on one thread.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lab.tools.follow_with_meta import video, weights
from sam2_core.backends.torch_follow import TorchFollowBackend
from sam2_core.follow import Follower
from sam2_core.presets import preset_named
from tasks.masks.follow import RULES

LINE = 1000  # frames


def resident_mib() -> float:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="micro")
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--objects", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    preset = preset_named(given.model)
    rules = replace(RULES, objects=given.objects)
    follower = Follower(TorchFollowBackend(*weights(preset)), rules)
    scene, random = video(preset, 40).numpy(), np.random.default_rng(0)
    corners = random.uniform(0.05, 0.5, (given.objects, 2))
    began, seconds, tracks = 0, [], []
    for frame in range(given.frames):
        if frame % 50 == 0:
            corners = random.uniform(0.05, 0.5, (given.objects, 2))
        boxes = np.concatenate([corners, corners + 0.35], 1) * preset.image_size
        seen = boxes[random.random(given.objects) < 0.7].astype(np.float32)
        started = time.process_time()
        shown = follower.step(scene[frame % 40], seen)
        seconds.append(time.process_time() - started)
        tracks.append(len(shown.tracks))
        began = max(began, *shown.tracks.tolist(), 0)
        if (frame + 1) % LINE == 0:
            last = slice(-LINE, None)
            print(
                f"{frame + 1} frames: {resident_mib():.0f} MiB, "
                f"{1000 * np.median(seconds[last]):.1f} ms a frame (median), "
                f"{np.mean(tracks[last]):.1f} objects at once, {began + 1} in all",
                flush=True,
            )


if __name__ == "__main__":
    main()
