"""Time `autolabel label --follow` for each frame, whole command, beside the same without.

    python -m lab.tools.follow_times OUT [--models random:base_plus,compact] [--frames N]
        [--boxes N] [--missing SHARE] [--every N]

The frames are a scene that drifts, 1280x720 as JPEG, with N discs on it that move along; of their
boxes a share is missing at random, or all but those of every Nth frame of a chunk. Random weights
draw outlines (`outlined_product`). A command on two chunks comes first: it compiles and captures.

What a frame takes is read off the times at which chunks of labels were written: steady, from the
first quarter of them to the last eighth; from the first to the last; and from the first to the
command's end, tracks included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from lab.tools.outlined_product import outlined_product

AUTOLABEL = (sys.executable, "-c", "from flows.cli.main import main; main()")
HEIGHT, WIDTH, CHUNK, DRAWN = 720, 1280, 64, 512


def write_frames(folder: Path, boxes_folder: Path, given: argparse.Namespace) -> None:
    """Write JPEGs, of which many repeat from DRAWN frames on, and a text file of boxes for each."""
    import cv2

    folder.mkdir(parents=True)
    boxes_folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    coarse = random.integers(0, 255, (24, 24, 3), np.uint8)
    scene = cv2.resize(coarse, (2 * WIDTH, 2 * HEIGHT), interpolation=cv2.INTER_CUBIC)
    side = random.integers(60, 200, (given.boxes, 2))
    colors = random.integers(0, 255, (given.boxes, 3)).tolist()
    corner = random.uniform(0, 1, (given.boxes, 2)) * ([WIDTH, HEIGHT] - side)
    for frame in range(given.frames):
        drawn, file = frame % DRAWN, folder / f"{frame:06d}.jpg"
        at = corner + 40 * np.sin(drawn / 20 + np.arange(given.boxes))[:, None]
        if drawn != frame:
            file.hardlink_to(folder / f"{drawn:06d}.jpg")
        else:
            phase = np.sin(frame / 40)
            x, y = int((phase + 1) * WIDTH / 2.1), int((phase + 1) * HEIGHT / 2.1)
            picture = scene[y : y + HEIGHT, x : x + WIDTH].copy()
            for (left, top), (wide, high), color in zip(at.astype(int), side, colors, strict=True):
                around = (int(left + wide // 2), int(top + high // 2)), (int(wide), int(high)), 0
                cv2.ellipse(picture, around, color, -1)
                cv2.ellipse(picture, around, (20, 20, 20), 3)
            cv2.imwrite(str(file), picture)
        xyxy = np.concatenate([at, at + side], 1).clip(0, [WIDTH, HEIGHT] * 2)
        there = random.random(given.boxes) >= given.missing
        rows = xyxy[there & (frame % CHUNK % given.every == 0)]
        lines = [f"car 0.9 {' '.join(f'{value:.1f}' for value in row)}\n" for row in rows]
        (boxes_folder / f"{frame:06d}.txt").write_text("".join(lines))


def label(given: argparse.Namespace, model: str, out: Path, frames: int, *more: str) -> str:
    """Run the command, and say what a frame took."""
    command = [
        *AUTOLABEL, "label", str(given.out / "frames"), "--boxes", str(given.out / "boxes"),
        "--out", str(out), "--frames", f"0:{frames}", "--model", model, "--backend", "torch",
        "--no-dataset", "--allow-uncertified", "--json", *more,
    ]  # fmt: skip
    environment = os.environ | {"PREFECT_LOGGING_LEVEL": "ERROR"}
    if model.startswith("random:"):
        path = [str(outlined_product(given.out / "outlined")), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = ":".join(path)
    started = time.time()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=environment, check=False, cwd=given.out
    )
    ended = time.time()
    if done.returncode:
        raise SystemExit(f"label ended with {done.returncode}")
    found = json.loads(done.stdout)
    written = sorted(file.stat().st_mtime for file in out.rglob("*.frames.parquet"))
    first, last = len(written) // 4, len(written) - len(written) // 8 - 1
    steady = (written[last] - written[first]) / (CHUNK * max(last - first, 1))
    between = (written[-1] - written[0]) / (CHUNK * max(len(written) - 1, 1))
    to_end = (ended - written[0]) / max(frames - CHUNK, 1)
    return (
        f"{1000 * steady:.1f} ms a frame steady, {1000 * between:.1f} from the first chunk to the "
        f"last, {1000 * to_end:.1f} to the end; first chunk after {written[0] - started:.0f} s, "
        f"{ended - started:.0f} s in all, {found['instances']} labels"
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default="random:base_plus,compact")
    parser.add_argument("--frames", type=int, default=1664)
    parser.add_argument("--boxes", type=int, default=16)
    parser.add_argument("--missing", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    given.out = given.out.absolute()
    write_frames(given.out / "frames", given.out / "boxes", given)
    for model in given.models.split(","):
        for follow in (["--follow"], []):
            for frames in (2 * CHUNK, given.frames):
                out = given.out / f"{model}{''.join(follow)}-{frames}".replace(":", "-")
                told = label(given, model, out, frames, *follow)
                print(f"{model} {' '.join(follow)}: {told}", flush=True)


if __name__ == "__main__":
    main()
