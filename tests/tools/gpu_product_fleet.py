"""Section `fleet` of `gpu_product.py`: `up`, backfills on its workers, `down`."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import time

from gpu_product_run import AUTOLABEL, Run


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
            run.record("fleet", what="backfill", number=number, complete=complete, **found)
    finally:
        down = subprocess.run([*AUTOLABEL, "down"], env=env, check=False, capture_output=True,
                              text=True, timeout=120)  # fmt: skip
        run.record("fleet", what="down", exit=down.returncode)
        for log in (run.cache / "services").glob("*.log"):
            text = log.read_text(errors="replace")
            (run.out / f"fleet-{log.name}").write_text(text[-200_000:])
            for line in re.findall(r".*(?:ERROR|CRITICAL|Traceback).*", text)[-5:]:
                print(log.name, line[:300])
