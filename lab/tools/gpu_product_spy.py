"""Section `spy` of `gpu_product.py`: what each process of a run holds Python's lock for."""

from __future__ import annotations

import argparse
import collections
import subprocess
import threading
import time
from pathlib import Path

import psutil
from gpu_product_large import OPTIONS, setup
from gpu_product_run import Run

SECONDS, RATE = 8, 200


def spy(run: Run, _: argparse.Namespace) -> None:
    """Sample every process of a run with FiftyOne for some seconds of its middle."""
    sampled(run, "spied", ("bench", "--pipeline", str(run.frames), "--dataset", "spied"), {})


def spy_large(run: Run, given: argparse.Namespace) -> None:
    """Sample a run of base_plus's size, warm, in the same way."""
    frames, texts, env = setup(run, given)
    words = ("bench", "--pipeline", str(frames), *OPTIONS, "--boxes", str(texts),
             "--dataset", "spied-large")  # fmt: skip
    if given.processes:
        env |= {"AUTOLABEL_DEVICE_PROCESSES": given.processes}
    sampled(run, "spied-large", words, env)


def sampled(run: Run, name: str, words: tuple[str, ...], env: dict[str, str]) -> None:
    """Sample every process of a command."""
    working = threading.Thread(target=run.command, args=(name, *words), kwargs={"env": env})
    working.start()
    time.sleep(14)
    found = {}
    for one in psutil.Process().children(recursive=True):
        line = " ".join(one.cmdline())
        if "python" in line and "nvidia-smi" not in line:
            out = run.out / f"{name}-{one.pid}.txt"
            command = ["py-spy", "record", "-p", str(one.pid), "-d", str(SECONDS), "-r", str(RATE),
                       "--gil", "-f", "raw", "-o", str(out)]  # fmt: skip
            found[out] = (line, subprocess.Popen(command, stdout=-3, stderr=-3))
    for out, (line, process) in found.items():
        process.wait()
        if out.exists():
            summarise(run, line, out)
    working.join()


def summarise(run: Run, line: str, out: Path) -> None:
    """Record the share of time with the lock, and the functions that had it most."""
    alone: collections.Counter[str] = collections.Counter()
    within: collections.Counter[str] = collections.Counter()
    total = 0
    for row in out.read_text().splitlines():
        stack, _, count = row.rpartition(" ")
        frames = [one.rpartition(":")[0] for one in stack.split(";")]
        total += int(count)
        alone[frames[-1]] += int(count)
        for one in set(frames):
            within[one] += int(count)
    samples = SECONDS * RATE
    run.record("spy", process=line[-60:], lock=round(total / samples, 3),
               alone={k: round(v / samples, 3) for k, v in alone.most_common(22)},
               within={k: round(v / samples, 3) for k, v in within.most_common(60)})  # fmt: skip
