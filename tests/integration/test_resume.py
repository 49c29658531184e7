"""Runs that are killed, and runs at the same time: nothing lost, nothing twice."""

import os
import signal
import time

import pytest

from tests.integration.runs import MICRO, files_below, write_sequence


@pytest.mark.ci
def test_a_killed_run_continues_with_the_missing_chunks_only(home, tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 40, per_frame=12)
    common = [tmp_path / "in", "--boxes", tmp_path / "boxes", "--chunk-frames", "4"]
    out, calm = tmp_path / "out", tmp_path / "calm"

    process = home.start(
        "label", *common, "--out", out, "--dataset", "killed", "--model", MICRO,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(_complete_chunks(out)) < 2:
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
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


def _complete_chunks(out):
    return sorted(out.glob("labels/*/*/*.frames.parquet"))
