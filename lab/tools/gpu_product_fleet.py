"""Section `fleet` of `gpu_product.py`: `up`, backfills on its workers, `down`."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
from gpu_product_run import AUTOLABEL, Run, without_torch


def written(labels: Path) -> dict[str, float]:
    """When labels were written: frames/s of the middle 80%, and the longest time without any."""
    times = np.sort([one.stat().st_mtime for one in labels.glob("labels/**/*.frames.parquet")])
    if len(times) < 10:
        return {}
    low, high = len(times) // 10, len(times) - len(times) // 10
    frames = (high - low) * 62  # 124 frames are two chunks
    return {
        "frames_per_s": round(frames / float(times[high - 1] - times[low]), 1),
        "chunks": len(times),
        "first_to_last_s": round(float(times[-1] - times[0]), 2),
        "longest_pause_s": round(float(np.max(np.diff(times))), 2),
    }


def fleet(run: Run, given: argparse.Namespace) -> None:
    """All sequences by `backfill --wait` on the workers of `up`, each time into a new folder."""
    more = {"AUTOLABEL_DATABASE_DIR": str(run.out / "fleet-db")}
    if given.without_torch:
        more |= without_torch(run)
    env = run.environment(more)
    shards = ["--shard-minutes", str(given.shard_minutes)] if given.shard_minutes else []
    workers = ["--workers", str(given.workers)] if given.workers else []
    started = time.perf_counter()
    up = subprocess.run([*AUTOLABEL, "up", "--port", "4321", *workers], env=env, check=False,
                        capture_output=True, text=True, timeout=200)  # fmt: skip
    run.record("fleet", what="up", exit=up.returncode, s=round(time.perf_counter() - started, 1),
               end=up.stderr[-300:] if up.returncode else "")  # fmt: skip
    try:
        for number in range(given.repeats):
            name = f"fleet-{run.sequences}-{'lone-' * given.without_torch}{number}"
            target = run.out / "labels" / name
            shutil.rmtree(target, ignore_errors=True)
            dataset = [] if given.without_dataset else ["--dataset", name]
            words = ("backfill", str(run.frames), "--out", str(target), *shards, *dataset)
            found = run.command(name, *words, "--wait", env=more)
            complete = len(list(target.glob("manifests/*/*.json")))
            run.record("fleet", what="backfill", number=number, complete=complete,
                       workers=given.workers, torch=not given.without_torch,
                       dataset=bool(dataset), **written(target), **found)  # fmt: skip
        again = run.command("fleet-again", *words, "--dry-run", env=more)
        run.record("fleet", what="planned again", **again)
    finally:
        down = subprocess.run([*AUTOLABEL, "down"], env=env, check=False, capture_output=True,
                              text=True, timeout=120)  # fmt: skip
        run.record("fleet", what="down", exit=down.returncode)
        for log in (run.cache / "services").glob("*.log"):
            text = log.read_text(errors="replace")
            (run.out / f"fleet-{log.name}").write_text(text[-200_000:])
            for line in re.findall(r".*(?:ERROR|CRITICAL|Traceback).*", text)[-5:]:
                print(log.name, line[:300])
