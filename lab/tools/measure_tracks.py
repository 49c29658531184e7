"""Tracks of rendered drives against their truth: `python -m lab.tools.measure_tracks CACHE`.

Labels drives that nothing was fitted on with the bundled models (kept in CACHE), tracks them by the
boxes alone and with the masks as second cue, and prints TrackEval's numbers and the milliseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.risk_drives import Drive, Models, labeled_drives
from lab.tools.track_metrics import track_metrics, true_frames
from tasks.boxes.detectors import load_detector
from tasks.masks.model import choose_model, load_segmenter
from tasks.tracks import linking

FIRST_SEED = 76_000_000


def drives(cache: Path, count: int, frames: int) -> Iterator[tuple[Drive, Path]]:
    """Yield each drive, once for each way of prompting, and its truth."""
    choice = choose_model("compact")
    models = Models(
        load_segmenter(choice), load_detector("compact"), choice.stamp.code_version[:12]
    )
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    for pair in labeled_drives(models, cache, seeds, frames):
        for drive in pair:
            yield drive, Path(drive.frames[0].frame.uri).parents[1] / "truth.json"


def main() -> None:
    """Print a line for each drive and way, and the means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=Path)
    parser.add_argument("--drives", type=int, default=6)
    parser.add_argument("--frames", type=int, default=40)
    given = parser.parse_args()
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    for drive, truth in drives(given.cache, given.drives, given.frames):
        true = true_frames(truth)
        for way in ("boxes", "boxes and masks"):
            least, reach = linking.LEAST_AGREEMENT, linking.REACH_FRAMES
            if way == "boxes":
                linking.LEAST_AGREEMENT, linking.REACH_FRAMES = -1.0, 0
            started = time.process_time()
            tracked = linking.track(drive.frames)
            spent = time.process_time() - started
            linking.LEAST_AGREEMENT, linking.REACH_FRAMES = least, reach
            found = track_metrics(true, drive.frames, tracked.frames)
            found["ms_per_frame"] = 1000 * spent / len(drive.frames)
            rows.setdefault((drive.prompt, way), []).append(found)
    for (prompt, way), several in rows.items():
        means = {
            name: round(float(np.mean([one[name] for one in several])), 2) for name in several[0]
        }
        print(f"{prompt:11} {way:16} {means}")


if __name__ == "__main__":
    main()
