"""How much memory and time an export of many labels takes: python -m lab.tools.export_memory.

Writes a run of INSTANCES labels without pictures into a folder, then exports it in each of FORMATS
in a process of its own, and prints that process's peak resident memory. 1,000,000 labels take a few
gigabytes of disk.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tasks.store.tables import LabeledFrame
from tests.export.labeled_runs import store
from tests.review.labels import labeled_frames

PER_FRAME, PER_SEQUENCE, CHUNK = 100, 1000, 64


def write_run(out: str, instances: int) -> None:
    """Sequences of 1000 frames, 100 labels in each; a few frames' masks in turn."""
    templates = labeled_frames(8, PER_FRAME, sequence_id="drive")
    frames = instances // PER_FRAME
    for start in range(0, frames, PER_SEQUENCE):
        name = f"drive{start // PER_SEQUENCE:04d}"
        labeled = []
        for index in range(min(PER_SEQUENCE, frames - start)):
            one = templates[index % len(templates)]
            uri = f"s3://nowhere/{name}/{index:06d}.jpg"
            frame = replace(
                one.frame, sequence_id=name, index=index, uri=uri, etag=str(index),
                timestamp_ns=index * 10**8,
            )  # fmt: skip
            labeled.append(LabeledFrame(frame, one.boxes, one.masks))
        store(out, f"s3://nowhere/{name}", labeled, CHUNK)


def export(source: str, format_: str, target: str) -> tuple[int, float]:
    """Peak resident bytes and seconds of one export."""
    command = [
        sys.executable,
        "-c",
        "import sys; from flows.cli.main import main; sys.exit(main())",
    ]
    options = ["export", source, "--format", format_, "--to", target, "--images", "none"]
    started = time.perf_counter()
    process = subprocess.Popen([*command, *options])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{format_} ended with {process.returncode}")
    return usage.ru_maxrss * 1024, time.perf_counter() - started


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1_000_000)
    parser.add_argument("--formats", default="coco,t4,cvat")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        write_run(run, options.instances)
        for name in options.formats.split(","):
            peak, seconds = export(run, name, str(Path(folder) / name))
            size = sum(one.stat().st_size for one in (Path(folder) / name).rglob("*.*"))
            print(
                f"{name}: {options.instances} labels, {peak / 2**20:.0f} MiB, {seconds:.0f} s, "
                f"{size / 1e9:.2f} GB", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
