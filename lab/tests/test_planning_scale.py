"""Planning is fast and small however many sequences there are: measured in a process of its own."""

import json
import subprocess
import sys

import pytest

from tests.integration.runs import MICRO, REPOSITORY

PROGRAM = """
import json, resource, sys, time
from flows.plan.backfill import plan_backfill
from flows.params import BackfillParams, LabelParams
source, out, model, boxes = sys.argv[1:]
label = LabelParams(sources=(source,), out=out, model=model, boxes=boxes, load_dataset=False)
started, cpu = time.perf_counter(), time.process_time()
plan = plan_backfill(BackfillParams(label=label))
result = plan.as_json() | {
    "seconds": time.perf_counter() - started,
    "cpu_seconds": time.process_time() - cpu,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}
print(json.dumps(result))
"""


def plan(folder, sequences: int) -> dict:
    arguments = [
        str(folder / "in"),
        str(folder / "out"),
        str(MICRO),
        str(folder / "boxes"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    print({k: told[k] for k in ("sequences", "shards", "seconds", "cpu_seconds", "peak_mib")})
    assert told["sequences"] == sequences
    return told


def make(folder, sequences: int, frames: int) -> None:
    """Folders of files that look like frames; planning reads no pixels."""
    for number in range(sequences):
        one = folder / "in" / f"part{number // 1000:03d}" / f"drive{number:06d}"
        one.mkdir(parents=True)
        for frame in range(frames):
            (one / f"{frame:04d}.jpg").write_bytes(b"x")
    (folder / "boxes" / "drive000000").mkdir(parents=True)
    (folder / "boxes" / "drive000000" / "0000.txt").write_text("car 0.9 1 1 9 9\n")


def mark_complete(folder, run_key: str) -> None:
    """Manifests of every sequence: their names are what planning reads."""
    from tasks.boxes.import_files import import_boxes
    from tasks.boxes.imported import Matching
    from tasks.frames.discover import discover
    from tasks.types import FrameSelection

    manifests = folder / "out" / "manifests" / run_key
    manifests.mkdir(parents=True)
    found = discover((str(folder / "in"),), FrameSelection.parse("::"))
    for one in map(Matching(import_boxes(str(folder / "boxes"))).with_boxes, found):
        (manifests / f"{one.sequence.sequence_id}@{one.content_key}.json").write_bytes(b"{}")


@pytest.mark.ci
def test_a_thousand_sequences_that_are_up_to_date(tmp_path):
    make(tmp_path, 1000, 20)
    before = plan(tmp_path, 1000)
    assert before["to_label"] == 1000
    mark_complete(tmp_path, before["run_key"])
    after = plan(tmp_path, 1000)
    assert (after["to_label"], after["up_to_date"], after["shards"]) == (0, 1000, 0)
    assert after["cpu_seconds"] < 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_sequences(tmp_path):
    make(tmp_path, 100_000, 4)
    told = plan(tmp_path, 100_000)
    assert told["to_label"] == 100_000
    assert told["cpu_seconds"] < 60
    assert told["peak_mib"] < 1024
