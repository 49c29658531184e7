"""How long nothing is segmented between two shards of one worker, with a real Prefect server.

`python -m lab.tools.between_shards [--shards 3] [--frames 600] [--processes 1]`. On
the CPU with the micro model: what is measured is everything but the models. Each shard is one
sequence; the times are when its tables and its manifest were written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
from datetime import datetime
from pathlib import Path

from tests.integration.cluster import Cluster, ended, wait_for
from tests.integration.runs import MICRO, write_sequence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--processes", default="1")
    parser.add_argument("--poll", default="1")
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--dataset", default="", help="load into FiftyOne, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for number in range(given.shards):
            write_sequence(folder / "in" / f"drive{number}", folder / "boxes", given.frames)
        cluster = stack.enter_context(Cluster(folder))
        done, _ = cluster.home.run(
            "backfill", folder / "in", "--out", folder / "out", "--boxes", folder / "boxes",
            "--backend", given.backend, "--shard-minutes", f"{given.frames / 118:.3f}",
            "--model", MICRO, "--json",
            *(["--dataset", given.dataset] if given.dataset else ["--no-dataset"]),
        )  # fmt: skip
        print(json.dumps({"submitted": done["submitted"]}), flush=True)
        cluster.start_worker(
            PREFECT_WORKER_QUERY_SECONDS=given.poll, AUTOLABEL_DEVICE_PROCESSES=given.processes,
        )  # fmt: skip
        wait_for(lambda: ended(cluster, done["run_key"]), 500)
        report(cluster, done["run_key"], folder / "out")


def report(cluster: Cluster, run_key: str, out: Path) -> None:
    """Print what happened when between two shards, in seconds after the first one's last table."""
    runs = sorted(cluster.runs(run_key), key=lambda one: one["start_time"])
    tables = {}
    for path in out.glob("labels/**/*.frames.parquet"):
        (drive,) = re.findall(r"drive\d+", str(path))[:1]
        tables.setdefault(drive, []).append(path.stat().st_mtime)
    order = sorted(tables.values(), key=min)
    for before, after, run, following in zip(order, order[1:], runs, runs[1:], strict=False):
        zero = max(before)
        told = {
            "between_s": round(min(after) - zero, 2),
            "first_run_ended": moment(run["end_time"]) - zero,
            "next": {
                one["name"]: round(moment(one["timestamp"]) - zero, 2)
                for one in cluster.get(f"flow_run_states/?flow_run_id={following['id']}")
                if one["name"] != "Scheduled"
            },
        }
        print(json.dumps(told), flush=True)
    print(cluster.log("worker0")[-20000:])


def ready(cluster: Cluster) -> list[str]:
    """Lines of the worker's log about processes that were ready."""
    return re.findall(r".*which was ready.*", cluster.log("worker0"))


def moment(text: str) -> float:
    """Return the seconds of the epoch of one of the API's times."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    main()
