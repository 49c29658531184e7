"""Planning is fast and small however many sequences there are: measured in a process of its own."""

import contextlib
import json
import subprocess
import sys

import pytest

from tests.conftest import use_s3_endpoint
from tests.integration.runs import MICRO, REPOSITORY
from tests.review.labels import STAMP

PROGRAM = """
import json, resource, sys, time
from flows.plan.backfill import plan_backfill
from flows.params import BackfillParams, LabelParams
source, out, model, boxes = sys.argv[1:]
label = LabelParams(
    sources=(source,), out=out, model=model, boxes=boxes or None, load_dataset=False
)
started, cpu = time.perf_counter(), time.process_time()
plan = plan_backfill(BackfillParams(label=label))
result = plan.as_json() | {
    "seconds": time.perf_counter() - started,
    "cpu_seconds": time.process_time() - cpu,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}
print(json.dumps(result))
"""


def plan(folder, sequences: int, boxes: str = "") -> dict:
    arguments = [f"{folder}/in", f"{folder}/out", str(MICRO), boxes]
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
        (manifests / f"{one.sequence_id}@{one.content_key}.json").write_bytes(b"{}")


@pytest.mark.ci
def test_a_thousand_sequences_that_are_up_to_date(tmp_path):
    make(tmp_path, 1000, 20)
    before = plan(tmp_path, 1000, str(tmp_path / "boxes"))
    assert before["to_label"] == 1000
    mark_complete(tmp_path, before["run_key"])
    after = plan(tmp_path, 1000, str(tmp_path / "boxes"))
    assert (after["to_label"], after["up_to_date"], after["shards"]) == (0, 1000, 0)
    assert after["cpu_seconds"] < 5


@contextlib.contextmanager
def flat_s3(monkeypatch, sequences: int, frames: int, run_key: str):
    """A server of so many objects, which this process and its children find."""
    words = [sys.executable, "-m", "tests.plan.flat_s3", str(sequences), str(frames), run_key]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:
        use_s3_endpoint(monkeypatch, f"http://127.0.0.1:{json.loads(server.stdout.readline())}")
        yield
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_sequences_in_a_bucket(monkeypatch):
    """A tenth of what docs/scaling.md tells: a million within 300 s of CPU and 1 GiB."""
    with flat_s3(monkeypatch, 100_000, 2, ""):
        told = plan("s3://b", 100_000)
    assert told["to_label"] == 100_000
    assert (told["cpu_seconds"] < 30, told["peak_mib"] < 300) == (True, True)
    with flat_s3(monkeypatch, 100_000, 2, told["run_key"]):
        told = plan("s3://b", 100_000)
    assert told["up_to_date"] == 100_000
    assert (told["cpu_seconds"] < 30, told["peak_mib"] < 300) == (True, True)


STATUS = """
import contextlib, resource, time
from flows.cli.main import cli
started = time.process_time()
with contextlib.suppress(SystemExit):
    cli(["status", "s3://b/out"], standalone_mode=False)
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.process_time() - started, peak_mib)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_status_of_a_hundred_thousand_sequences(monkeypatch):
    with flat_s3(monkeypatch, 100_000, 1, STAMP.run_key):
        done = subprocess.run([sys.executable, "-c", STATUS], cwd=REPOSITORY,
                              capture_output=True, text=True, check=False)  # fmt: skip
    shown, (cpu_s, peak_mib) = done.stdout, map(float, done.stdout.splitlines()[-1].split())
    print(cpu_s, peak_mib)
    newest = "in the newest 10,000 of them 10,000 frames and 110,000 labels by compact"
    assert f"s3://b/out: 100,000 sequences, {newest}" in shown
    assert (cpu_s < 60, peak_mib < 300) == (True, True)
