"""Section `fleet` of `gpu_product.py`: `up`, backfills on its workers, `down`."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
from gpu_product_run import AUTOLABEL, Run


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
    """24 sequences by `backfill --wait` on the workers of `up`, each time into a new folder."""
    env = run.environment({"AUTOLABEL_DATABASE_DIR": str(run.out / "fleet-db")})
    workers = ["--workers", str(given.workers)] if given.workers else []
    started = time.perf_counter()
    up = subprocess.run([*AUTOLABEL, "up", "--port", "4321", *workers], env=env, check=False,
                        capture_output=True, text=True, timeout=200)  # fmt: skip
    run.record("fleet", what="up", exit=up.returncode, s=round(time.perf_counter() - started, 1),
               end=up.stderr[-300:] if up.returncode else "")  # fmt: skip
    try:
        for number in range(given.repeats):
            target = run.out / "labels" / f"fleet-{number}"
            shutil.rmtree(target, ignore_errors=True)
            found = run.command(
                f"fleet-{number}", "backfill", str(run.frames), "--out", str(target), "--wait",
                "--shard-minutes", "4", "--dataset", f"fleet-{number}",
                env={"AUTOLABEL_DATABASE_DIR": str(run.out / "fleet-db")},
            )  # fmt: skip
            for name in ("plan", "shards"):
                found.pop(name, None)
            complete = len(list(target.glob("manifests/*/*.json")))
            run.record("fleet", what="backfill", number=number, complete=complete,
                       workers=given.workers, **written(target), **found)  # fmt: skip
    finally:
        down = subprocess.run([*AUTOLABEL, "down"], env=env, check=False, capture_output=True,
                              text=True, timeout=120)  # fmt: skip
        run.record("fleet", what="down", exit=down.returncode)
        for log in (run.cache / "services").glob("*.log"):
            text = log.read_text(errors="replace")
            (run.out / f"fleet-{log.name}").write_text(text[-200_000:])
            for line in re.findall(r".*(?:ERROR|CRITICAL|Traceback).*", text)[-5:]:
                print(log.name, line[:300])
