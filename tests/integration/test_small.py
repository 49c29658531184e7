"""`label` needs no Prefect server, and leaves exactly what the flow leaves."""

import re
from collections import Counter

import pytest

from flows.server.prefect_runs import flow_runs
from flows.server.status import label_runs
from tests.integration.runs import (
    Home,
    files_below,
    no_space_for,
    write_boxes,
    write_image,
    write_sequence,
)


def imported(errors: str) -> Counter[str]:
    """How many modules of each package Python imported, as PYTHONPROFILEIMPORTTIME tells it."""
    modules = set(re.findall(r"^import time:.*\| +(\S+)$", errors, re.M))
    return Counter(one.partition(".")[0] for one in modules)


@pytest.mark.ci
def test_nothing_is_imported_that_is_not_needed(tmp_path):
    home = Home(tmp_path / "home", PYTHONPROFILEIMPORTTIME="1")
    write_image(tmp_path / "one.jpg")
    write_boxes(tmp_path / "boxes" / "one.txt", ["car 0.9 20 15 100 70"])
    arguments = [tmp_path / "one.jpg", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes"]
    first, errors = home.label(*arguments)
    assert (first["frames"], first["instances"], first["failed"]) == (1, 1, [])
    assert first["seconds"]["load"] > 0
    modules = imported(errors)
    assert modules["fiftyone"] > 100
    assert not {"prefect", "torch", "strawberry", "graphql"} & modules.keys()
    # FiftyOne imports them, pyarrow looks for pandas, and nobody uses them: 20 to 500 modules each.
    unused = ["sklearn", "plotly", "matplotlib", "pandas"]
    assert max(modules[one] for one in unused) < 10
    again, errors = home.label(*arguments)
    assert again["skipped"] == 1
    assert {"click", "pymongo"} <= imported(errors).keys()
    heavy = {"prefect", "fiftyone", "torch", "onnxruntime", "cv2", "s3fs", "pandas", "sklearn"}
    assert {one for one in heavy if imported(errors)[one] > 1} == set()
    other = tmp_path / "other" / "out"
    for trial in ((), ("--dry-run",)):
        _, errors = home.label(*arguments[:2], other, *arguments[3:], *trial, code=2)
        assert f"holds the labels of {tmp_path / 'out'}" in errors
    assert not other.exists()


def test_a_run_without_a_server_leaves_what_the_flow_leaves(terminal, tmp_path, request):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 3)
    (tmp_path / "in" / "drive" / "0001.jpg").write_bytes(b"")
    write_sequence(tmp_path / "in" / "lost", tmp_path / "boxes", 2)
    for path in (tmp_path / "in" / "lost").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    arguments = [tmp_path / "in", "--boxes", tmp_path / "boxes", "--no-dataset"]
    small, told = terminal.label(*arguments, "--out", tmp_path / "small", code=1)
    request.getfixturevalue("under_prefect")
    flow, _ = terminal.label(*arguments, "--out", tmp_path / "flow", code=1)
    runs = label_runs(flow_runs(["label"]))
    (told_by_status,) = (run for run in runs if run["out"] == flow["out"])
    assert told_by_status["state"] == "Completed"
    assert told_by_status["message"].endswith("in part: 3 frames without labels")
    assert files_below(tmp_path / "small") == files_below(tmp_path / "flow") != {}
    told_alike = [name for name in flow if name not in {"seconds", "out"}]
    assert {name: small[name] for name in told_alike} == {name: flow[name] for name in told_alike}
    assert small["seconds"].keys() == flow["seconds"].keys()
    # Every frame of a chunk failed: each with its own file and reason.
    lost = [one for one in small["failed"] if one["sequence"] == "lost"]
    assert [one["uri"].rsplit("/", 1)[-1] for one in lost] == ["0000.jpg", "0001.jpg"]
    assert all("truncated or damaged" in one["reason"] for one in lost)
    lines = [line for line in told.splitlines() if line.startswith("  ")]
    assert "  drive 0001.jpg decode: zero-byte file" in lines
    assert any(line.startswith("  lost 0000.jpg decode: truncated") for line in lines)


def test_a_run_that_ended_before_its_tracks_makes_them_later_and_no_others(
    terminal, tmp_path, monkeypatch
):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 5)
    common = [tmp_path / "in", "--boxes", tmp_path / "boxes", "--no-dataset", "--chunk-frames"]
    calm, _ = terminal.label(*common, 2, "--out", tmp_path / "calm")
    assert calm["tracks"] == 2
    (expected,) = (tmp_path / "calm" / "tracks").rglob("*.parquet")

    arguments = [*common, 2, "--out", tmp_path / "out"]
    with monkeypatch.context() as full:
        no_space_for("tracks/", full)
        result, _ = terminal.label(*arguments, code=1)
    assert [(one["sequence"], one["stage"]) for one in result["failed"]] == [("drive", "track")]
    before = files_below(tmp_path / "out")
    assert before.keys() == {
        name for name in files_below(tmp_path / "calm") if "tracks" not in name
    }
    again, _ = terminal.label(*arguments)
    assert (again["skipped"], again["tracks"]) == (5, 2)
    (made,) = (tmp_path / "out" / "tracks").rglob("*.parquet")
    assert made.read_bytes() == expected.read_bytes()
    kept = made.stat().st_mtime_ns
    terminal.label(*arguments)
    assert made.stat().st_mtime_ns == kept
    without, _ = terminal.label(*common, 2, "--no-tracks", "--out", tmp_path / "without")
    assert (without["tracks"], without["run_key"]) == (0, calm["run_key"])
