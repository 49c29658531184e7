"""Time `autolabel label --follow` for each frame, whole command, beside the same without.

    python -m lab.tools.follow_times OUT [--models random:base_plus,compact] [--backend torch]
        [--frames N] [--boxes N] [--missing SHARE]

The frames are a scene that drifts, 1280x720 as JPEG, with N discs on it that move along; of their
boxes a share is missing at random, 0.3 unless told. A command on 64 frames comes first: it compiles
and captures. What a frame takes is the difference of two further commands, on 64 and on all frames,
so that starting counts for neither.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

AUTOLABEL = (sys.executable, "-c", "from flows.cli.main import main; main()")
HEIGHT, WIDTH, FEW = 720, 1280, 64


def write_frames(folder: Path, boxes_folder: Path, frames: int, boxes: int, missing: float) -> None:
    """Write JPEGs, and a text file of boxes for each."""
    import cv2

    folder.mkdir(parents=True)
    boxes_folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    coarse = random.integers(0, 255, (24, 24, 3), np.uint8)
    scene = cv2.resize(coarse, (2 * WIDTH, 2 * HEIGHT), interpolation=cv2.INTER_CUBIC)
    side = random.integers(60, 200, (boxes, 2))
    colors = random.integers(0, 255, (boxes, 3)).tolist()
    corner = random.uniform(0, 1, (boxes, 2)) * ([WIDTH, HEIGHT] - side)
    for frame in range(frames):
        phase = np.sin(frame / 40)
        x, y = int((phase + 1) * WIDTH / 2.1), int((phase + 1) * HEIGHT / 2.1)
        picture = scene[y : y + HEIGHT, x : x + WIDTH].copy()
        at = corner + 40 * np.sin(frame / 20 + np.arange(boxes))[:, None]
        for (left, top), (wide, high), color in zip(at.astype(int), side, colors, strict=True):
            around = (int(left + wide // 2), int(top + high // 2)), (int(wide), int(high)), 0
            cv2.ellipse(picture, around, color, -1)
            cv2.ellipse(picture, around, (20, 20, 20), 3)
        cv2.imwrite(str(folder / f"{frame:06d}.jpg"), picture)
        xyxy = np.concatenate([at, at + side], 1).clip(0, [WIDTH, HEIGHT] * 2)
        rows = xyxy[random.random(boxes) >= missing]
        lines = [f"car 0.9 {' '.join(f'{value:.1f}' for value in row)}" for row in rows]
        (boxes_folder / f"{frame:06d}.txt").write_text("\n".join(lines) + "\n")


def label(source: Path, boxes: Path, out: Path, *more: str) -> dict[str, Any]:
    """Run the command; its JSON, and the seconds that it took as `wall`."""
    command = [
        *AUTOLABEL, "label", str(source), "--boxes", str(boxes), "--out", str(out),
        "--no-dataset", "--allow-uncertified", "--json", *more,
    ]  # fmt: skip
    environment = os.environ | {"PREFECT_LOGGING_LEVEL": "ERROR"}
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"label ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"wall": time.perf_counter() - started}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default="random:base_plus,compact")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--frames", type=int, default=832)
    parser.add_argument("--boxes", type=int, default=16)
    parser.add_argument("--missing", type=float, default=0.3)
    options = parser.parse_args()
    source, boxes = options.out / "frames", options.out / "boxes"
    write_frames(source, boxes, options.frames, options.boxes, options.missing)
    for model in options.models.split(","):
        for follow in (True, False):
            what = ["--model", model, "--backend", options.backend]
            what += ["--follow"] if follow else []
            walls, found = [], {}
            for turn, frames in enumerate((FEW, FEW, options.frames)):
                out = options.out / f"{model}-{follow}-{turn}"
                found = label(source, boxes, out, "--frames", f"0:{frames}", *what)
                walls.append(found["wall"])
            per_frame_ms = 1000 * (walls[2] - walls[1]) / (options.frames - FEW)
            print(
                f"{model}, {options.backend}, {found['model']['precision']}, "
                f"{'--follow' if follow else 'without'}: {per_frame_ms:.1f} ms a frame "
                f"({options.boxes} boxes, {options.missing:.0%} missing; {found['instances']} "
                "labels); commands " + ", ".join(f"{wall:.1f} s" for wall in walls),
                flush=True,
            )


if __name__ == "__main__":
    main()
