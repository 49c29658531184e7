"""`autolabel label` end to end, as a process: frames in, artifacts and a dataset out."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.server.prefect_runs import flow_runs
from flows.server.status import label_runs
from tasks.store import manifests
from tests.integration.dataset_rows import held
from tests.integration.runs import (
    files_below,
    no_space_for,
    write_boxes,
    write_image,
    write_sequence,
)


def test_second_run_of_the_same_command_does_no_model_work(terminal, tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 5)
    write_sequence(tmp_path / "in" / "other", tmp_path / "boxes", 1)
    arguments = [tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes"]
    first, _ = terminal.label(*arguments, "--dataset", "twice run")
    assert (first["sequences"], first["frames"], first["instances"]) == (2, 6, 12)
    assert (first["skipped"], first["failed"], first["dataset"]) == (0, [], "twice run")
    assert first["seconds"]["segment"] > 0
    written = files_below(tmp_path / "out")
    assert len(written) == 2 * (3 + 1) + 2  # tables of a chunk and of its tracks, and the reports

    second, told = terminal.label(*arguments, "--dataset", "twice run")
    assert (second["sequences"], second["frames"], second["instances"]) == (2, 6, 12)
    assert second["skipped"] == 6
    assert "segment" not in second["seconds"]
    assert "0 of 2 sequences to label" in told
    assert files_below(tmp_path / "out") == written


def test_frames_that_the_dataset_lacks_are_told_and_loaded_by_the_next_run(
    terminal, tmp_path, monkeypatch
):
    """A picture changes after it was labeled and before it is loaded, and later comes back."""
    drive, boxes = tmp_path / "in" / "drive", tmp_path / "boxes"
    write_sequence(drive, boxes, 3)
    arguments = [drive, "--out", tmp_path / "out", "--boxes", boxes, "--dataset", "lacking"]
    write_manifest = manifests.write_manifest

    def replace_a_picture(*manifest):
        write_manifest(*manifest)
        (drive / "0001.jpg").rename(tmp_path / "kept.jpg")
        (drive / "0001.jpg").write_bytes((drive / "0002.jpg").read_bytes())

    with monkeypatch.context() as patch:
        patch.setattr(manifests, "write_manifest", replace_a_picture)
        first, told = terminal.label(*arguments)
    assert (first["frames"], first["left_out"]) == (3, 1)
    assert "left out of the dataset: 1 labeled frame" in told
    assert {row["frame"] for row in held("lacking")["rows"]} == {0, 2}
    (tmp_path / "kept.jpg").rename(drive / "0001.jpg")
    again, told = terminal.label(*arguments)
    assert (again["skipped"], again["left_out"]) == (3, 0)
    assert "left out" not in told
    assert {row["frame"] for row in held("lacking")["rows"]} == {0, 1, 2}


def test_bad_frames_and_bad_boxes_fail_alone(terminal, tmp_path):
    drive, boxes = tmp_path / "in" / "drive", tmp_path / "boxes"
    write_sequence(drive, boxes, 4)
    whole = (drive / "0001.jpg").read_bytes()
    (drive / "0001.jpg").write_bytes(whole[: len(whole) // 2])
    (drive / "0002.jpg").write_bytes(b"")
    write_boxes(
        boxes / "drive" / "0003.txt",
        [
            "car 0.9 nan 10 50 60",
            "car 0.9 80 70 20 10",
            "car 0.9 500 500 600 600",
            "car 0.9 30 30 30 30",
            "car 0.9 20 20 90 70",
        ],
    )
    arguments = [tmp_path / "in", "--out", tmp_path / "out", "--boxes", boxes, "--no-dataset"]
    result, told = terminal.label(*arguments, code=1)
    assert (result["frames"], result["instances"], result["dataset"]) == (2, 2 + 5, None)
    assert {one["frame"] for one in result["failed"]} == {1, 2}
    assert all(one["reason"] for one in result["failed"])
    assert "zero-byte" in told
    again, _ = terminal.label(*arguments, code=1)
    assert again["failed"] == result["failed"]
    assert again["skipped"] == 2


def test_a_run_with_a_sequence_that_is_not_complete_ends_failed(terminal, under_prefect, tmp_path):
    for number in range(2):
        write_image(tmp_path / "in" / "good" / f"{number}.jpg")
    (tmp_path / "in" / "bad.mp4").write_bytes(b"no video")
    result, _ = terminal.label(tmp_path / "in", "--out", tmp_path / "out", "--no-dataset", code=1)
    assert [one["sequence"] for one in result["failed"]] == ["bad"]
    *_, last = (one for one in label_runs(flow_runs(["label"])) if one["out"] == result["out"])
    assert last["state"] == "Failed"
    assert "1 sequence failed: bad: " in last["message"]


def test_odd_but_good_input_is_labeled(terminal, tmp_path):
    folder, boxes = tmp_path / "in" / "odd", tmp_path / "boxes" / "odd"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (80, 120, 4), np.uint8), "RGBA").save(folder / "alpha.png")
    Image.fromarray(rng.integers(0, 65535, (80, 120), np.uint16)).save(folder / "deep.png")
    Image.fromarray(rng.integers(0, 255, (64, 64), np.uint8), "L").save(folder / "grey.jpg")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(rng.integers(0, 255, (60, 100, 3), np.uint8)).save(
        folder / "turned.jpg", exif=turned
    )
    for name in ("alpha", "grey", "turned"):
        write_boxes(boxes / f"{name}.txt", ["car 0.9 10 10 50 50", "person 0.2 20 5 40 60"])
    write_boxes(
        boxes / "deep.txt", [f"car 0.5 {i % 90} {i % 60} {i % 90 + 20} 70" for i in range(500)]
    )

    out = tmp_path / "out"
    given = [folder.parent, "--boxes", tmp_path / "boxes", "--no-dataset"]
    result, _ = terminal.label(*given, "--out", out, code=1)
    assert (result["frames"], result["instances"]) == (3, 504)
    (failed,) = result["failed"]  # text does not say whether its boxes are turned
    assert failed["uri"].endswith("turned.jpg")
    assert "EXIF orientation 6" in failed["reason"]
    (boxes / "grey.txt").unlink()
    (boxes / "turned.txt").unlink()
    chosen = ["--classes", "car", "--min-score", "0.6", "--out", tmp_path / "chosen"]
    result, _ = terminal.label(
        folder.parent, "--boxes", tmp_path / "boxes", *chosen, "--no-dataset"
    )
    assert (result["frames"], result["instances"], result["failed"]) == (4, 1, [])
    assert result["imported"]["frames_without_boxes"] == 2


@pytest.mark.parametrize("served", [True, False])
def test_no_space_fails_one_sequence_and_the_next_run_labels_what_is_missing(
    terminal, tmp_path, monkeypatch, served, request
):
    if served:
        request.getfixturevalue("under_prefect")
    for name in ("drive", "full"):
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 3)
    (tmp_path / "in" / "broken.mp4").write_bytes(b"no video at all")
    arguments = [tmp_path / "in", "--boxes", tmp_path / "boxes", "--out", tmp_path / "out"]
    arguments += ["--no-dataset", "--chunk-frames", 2]
    with monkeypatch.context() as patch:
        no_space_for("labels/full/_/000002", patch)
        result, told = terminal.label(*arguments, code=1)
    assert {one["sequence"] for one in result["failed"]} == {"broken", "full"}
    assert result["frames"] == 3
    assert "no space left" in told
    assert not list((tmp_path / "out" / "manifests").glob("*/full@*"))
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.frames.parquet")}
    frames = sum(pq.read_metadata(path).num_rows for path in kept)
    assert frames >= 3
    again, _ = terminal.label(*arguments, code=1)
    assert [one["sequence"] for one in again["failed"]] == ["broken"]
    assert (again["frames"], again["skipped"]) == (6, frames)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
