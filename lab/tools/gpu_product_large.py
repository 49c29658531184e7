"""Section `large` of `gpu_product.py`: base_plus's size on crowded frames."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from gpu_product_run import Run, told
from outlined_product import outlined_product

WIDTH, HEIGHT, BOXES, FRAMES, SEQUENCES = 1920, 1280, 135, 124, 16


def frames_of(run: Run, street: Path, boxes: Path) -> tuple[Path, Path]:
    """Write sequences of one street with its boxes, and jittered copies of them, as text files."""
    import cv2

    frames, texts = run.out / "street" / "frames", run.out / "street" / "boxes"
    if frames.exists():
        return frames, texts
    picture = cv2.imread(str(street))
    scale = np.array([WIDTH / picture.shape[1], HEIGHT / picture.shape[0]] * 2)
    picture = cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
    rows = [line.split() for line in boxes.read_text().splitlines() if line.strip()]
    known = np.array([row[2:6] for row in rows], float) * scale
    generator = np.random.default_rng(0)
    more = known[generator.integers(0, len(known), BOXES - len(known))]
    more = more + generator.uniform(-12, 12, (len(more), 1)) * np.ones(4)
    every = np.vstack([known, more]).clip(0, [WIDTH, HEIGHT] * 2).round(1)
    text = "\n".join(" ".join(["object", "0.9", *map(str, row)]) for row in every.tolist()) + "\n"
    for sequence in range(SEQUENCES):
        for folder in (frames, texts):
            (folder / f"drive-{sequence:02d}").mkdir(parents=True)
        for index in range(FRAMES):
            name = f"drive-{sequence:02d}/{index:06d}"
            file, first = frames / f"{name}.jpg", frames / f"drive-00/{index:06d}.jpg"
            file.hardlink_to(first) if sequence else file.write_bytes(data)
            (texts / f"{name}.txt").write_text(text)
    return frames, texts


def setup(run: Run, given: argparse.Namespace) -> tuple[Path, Path, dict[str, str]]:
    """Return the frames, their boxes and the environment of runs."""
    frames, texts = frames_of(run, given.street, given.boxes)
    path = f"{outlined_product(run.out / 'outlined')}:{os.environ.get('PYTHONPATH', '')}"
    return frames, texts, {"PYTHONPATH": path}


OPTIONS = ("--model", "random:base_plus", "--backend", "torch")


def compilation(run: Run, given: argparse.Namespace) -> None:
    """The first run on a machine, of one sequence: it compiles."""
    frames, texts, env = setup(run, given)
    found = run.label(
        "large-cold", *OPTIONS, "--allow-uncertified", "--boxes", str(texts), "--no-dataset",
        source=frames / "drive-00", env=env, limit_s=900.0,
    )  # fmt: skip
    run.record("large", what="cold", **told(found))


def large(run: Run, given: argparse.Namespace) -> None:
    """`bench --pipeline` over all sequences, warm."""
    frames, texts, env = setup(run, given)
    for number, count in enumerate(given.processes.split(",")):
        chosen = {"AUTOLABEL_DEVICE_PROCESSES": count} if count else {}
        words = ("bench", "--pipeline", str(frames), *OPTIONS, "--boxes", str(texts),
                 "--dataset", f"large-{number}")  # fmt: skip
        found = run.command(f"large-{count or 'default'}", *words, env=env | chosen)
        run.record("large", what="warm", processes=count, **found)
