"""Runs that are killed, and runs at the same time: nothing lost, nothing twice."""

import json
import os
import signal
import time

import pyarrow.parquet
import pytest

from tests.integration.runs import MICRO, files_below, write_boxes, write_sequence


def wait_for(done, process):
    """Wait until something is so while a process lives."""
    deadline = time.monotonic() + 120
    while not done():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.ci
def test_a_killed_run_continues_with_the_missing_chunks_only(home, tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 40, per_frame=12)
    common = [tmp_path / "in", "--boxes", tmp_path / "boxes", "--chunk-frames", "4"]
    out, calm = tmp_path / "out", tmp_path / "calm"

    process = home.start(
        "label", *common, "--out", out, "--dataset", "killed", "--model", MICRO,
        start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: len(_complete_chunks(out)) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    kept = {path: path.stat().st_mtime_ns for path in _complete_chunks(out)}
    assert 2 <= len(kept) < 10, "the run was to be killed in its middle"

    result, _ = home.label(*common, "--out", out, "--dataset", "killed")
    assert (result["frames"], result["skipped"]) == (40, 4 * len(kept))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    undisturbed, _ = home.label(*common, "--out", calm, "--dataset", "calm")
    assert undisturbed["skipped"] == 0
    assert files_below(out) == files_below(calm)
    disturbed, expected = home.datasets("killed", "calm")
    assert len(expected["rows"]) == 40
    assert sum(len(row["objects"]) for row in expected["rows"]) == 480
    assert disturbed == expected


@pytest.mark.ci
def test_the_same_command_in_two_terminals_at_once(home, tmp_path):
    write_sequence(tmp_path / "in" / "a", tmp_path / "boxes", 6)
    write_sequence(tmp_path / "in" / "b", tmp_path / "boxes", 6)
    arguments = [
        "label", tmp_path / "in", "--boxes", tmp_path / "boxes", "--out", tmp_path / "out",
        "--dataset", "both", "--model", MICRO, "--json",
    ]  # fmt: skip
    processes = [home.start(*arguments) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
    assert len(files_below(tmp_path / "out")) == 2 * 3 + 2 + 2, "manifests and tracks"
    (held,) = home.datasets("both")
    assert [(row["sequence"], row["frame"]) for row in held["rows"]] == [
        (name, index) for name in "ab" for index in range(6)
    ]
    assert all(len(row["objects"]) == 2 for row in held["rows"])


@pytest.mark.ci
def test_a_killed_run_that_follows_leaves_what_an_undisturbed_one_leaves(home, tmp_path):
    torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")
    from sam2_core.presets import MICRO as PRESET
    from tests.followed_objects import weights

    model, memory = weights(PRESET, score_bias=3)
    torch.save({"model": model.state_dict() | memory.state_dict()}, tmp_path / "micro.pt")
    source, boxes = tmp_path / "in" / "drive", tmp_path / "boxes"
    write_sequence(source, boxes, 24)
    for index in range(0, 24, 3):  # nothing is detected in two of three
        write_boxes(boxes / "drive" / f"{index:04d}.txt", [""])
        write_boxes(boxes / "drive" / f"{index + 1:04d}.txt", [""])
    common = ["label", source, "--boxes", boxes, "--no-dataset", "--model", tmp_path / "micro.pt"]
    common += ["--backend", "torch", "--precision", "fp32", "--follow", "--allow-uncertified"]
    killed = [*common, "--out", tmp_path / "killed", "--chunk-frames", "5"]
    process = home.start(*killed)
    wait_for(lambda: len(_complete_chunks(tmp_path / "killed")) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert len(_complete_chunks(tmp_path / "killed")) < 5
    both = [home.start(*killed) for _ in range(2)]
    for one in both:
        assert one.wait(240) == 0, one.communicate()[1][-2000:]
    labels = {"killed": files_below(tmp_path / "killed")}
    for name, size in (("five", "5"), ("whole", "64"), ("again", "64")):
        home.run(*common, "--out", tmp_path / name, "--chunk-frames", size)
        labels[name] = files_below(tmp_path / name)
    assert labels["killed"] == labels["five"]
    assert labels["whole"] == labels["again"]
    counts = {name: _followed(tmp_path / name) for name in labels}
    assert 0 < counts["five"] < counts["whole"]


def _followed(out):
    """How many labels of a run were followed, as its files say."""
    tables = [pyarrow.parquet.read_schema(path).metadata for path in _complete_chunks(out)]
    found = [json.loads(one.get(b"followed", b"{}")) for one in tables]
    return sum(len(ages) for one in found for ages in one.values())


def _complete_chunks(out):
    return sorted(out.glob("labels/*/*/*.frames.parquet"))
