"""Measure all of the product on a host with one GPU or two, in about twenty minutes.

    python lab/tools/gpu_product_everything.py --clip VIDEO --street PICTURE --boxes TEXT
        --out OUT [--meta CHECKOUT]

What is not timed goes first, in two tracks beside each other, each with half of the cores and,
where there are two, a GPU of its own. What is timed follows alone, on all cores and GPUs. Each step
is a command of its own with a limit: one that fails costs only itself. What they print lies in
OUT/TRACK.log, what they measured in OUT/TRACK/product.jsonl (`gpu_product.py` says what that is).
OUT/TRACK.done is written when a track ends.

    first   base_plus's size on PyTorch for the first time, parity, and with --meta the comparison
            with Meta's own predictor
    second  tests/gpu; a poisoned device and ESTALE
    alone   base_plus's size warm, the first frame, `label` and the first frame on both backends,
            24 sequences five times on two workers, with and without PyTorch, a device without
            memory, `bench --pipeline`, and 360 sequences on one worker and, on two GPUs, on two
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = sys.executable
BACKENDS = ("--backends", "onnxruntime-cuda,torch")
TIDIED_WITHIN_S = 60.0


def steps(given: argparse.Namespace, gpus: int) -> dict[str, list[tuple[float, list[str]]]]:
    """Return each track's commands and their limits in seconds."""

    def product(track: str, *words: str) -> list[str]:
        return [
            PYTHON, str(HERE / "gpu_product.py"), "--clip", str(given.clip), "--street",
            str(given.street), "--boxes", str(given.boxes), "--out", str(given.out / track), *words,
        ]  # fmt: skip

    long, short = ("--sequences", "360"), ("--repeats", "5", "--workers", "2")
    meta = [
        PYTHON, str(HERE / "compare_with_meta.py"), str(given.meta), str(given.street),
        str(given.boxes), "--engine", "onnxruntime-cuda:fp32", "--engine", "torch:fp32",
    ]  # fmt: skip
    return {
        "first": [
            (420, product("first", "compilation")),
            (240, product("first", *BACKENDS, "parity")),
            *([(200, meta)] if given.meta else []),
        ],
        "second": [
            (700, [PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "gpu",
                   str(HERE.parents[1] / "tests" / "gpu")]),
            (600, product("second", *BACKENDS, "poison", "stale")),
        ],
        "alone": [
            (240, product("first", "large")),  # what `first` has compiled lies there
            (300, product("alone", *BACKENDS, "first", "label")),
            (300, product("alone", *short, "fleet")),
            (300, product("alone", *short, "--without-torch", "fleet")),
            (180, product("alone", "memory")),
            (180, product("alone", "sustained")),
            (400, product("one", *long, "--workers", "1", "fleet")),
            *([(400, product("two", *long, "--workers", "2", "fleet"))] if gpus > 1 else []),
        ],
    }  # fmt: skip


def run(track: str, commands: list[tuple[float, list[str]]], out: Path, gpus: str,
        cores: set[int]) -> None:  # fmt: skip
    """Run a track's commands one after another on these GPUs and cores."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with (out / f"{track}.log").open("a") as log:
        for limit_s, command in commands:
            started = time.perf_counter()
            process = subprocess.Popen(
                command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=HERE.parents[1]
            )
            os.sched_setaffinity(process.pid, cores)
            done = ended(process, limit_s)
            took_s = time.perf_counter() - started
            for where in (sys.stdout, log):
                words = " ".join(command[-4:])
                print(f"[{track}: {words}: {done}, {took_s:.0f} s]", file=where, flush=True)
    (out / f"{track}.done").touch()


def ended(process: subprocess.Popen[bytes], limit_s: float) -> int | str:
    """Wait for a command; one that takes too long may end what it has started: the next needs it.

    Workers of `up` would hold the port and the GPUs.
    """
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(TIDIED_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return "its time was up"


def gpu_count() -> int:
    """Count the GPUs that the driver lists."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return listed.stdout.count("UUID: GPU-")


def measure(tracks: dict[str, list[tuple[float, list[str]]]], out: Path, gpus: int) -> None:
    """Run `first` and `second` beside each other, then `alone`."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    beside = [
        threading.Thread(target=run, args=(track, tracks[track], out, gpu, set(some)))
        for track, gpu, some in (
            ("first", "0", cores[:half]), ("second", str(gpus - 1), cores[half:])
        )
    ]  # fmt: skip
    for one in beside:
        one.start()
    for one in beside:
        one.join()
    run("alone", tracks["alone"], out, "0,1" if gpus > 1 else "0", set(cores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("clip", "street", "boxes", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--meta", type=Path, help="a checkout of facebookresearch/sam2")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    gpus = gpu_count()
    measure(steps(given, gpus), given.out, min(gpus, 2))


if __name__ == "__main__":
    main()
