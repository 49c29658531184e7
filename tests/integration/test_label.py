"""`autolabel label` end to end, as a process: frames in, artifacts and a dataset out."""

import json

from tests.integration.runs import files_below, write_boxes, write_image, write_sequence


def test_second_run_of_the_same_command_does_no_model_work(terminal, tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 5)
    write_sequence(tmp_path / "in" / "other", tmp_path / "boxes", 1)
    arguments = [tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes"]
    first, _ = terminal.label(*arguments, "--dataset", "twice run")
    assert (first["sequences"], first["frames"], first["instances"]) == (2, 6, 12)
    assert (first["skipped"], first["failed"], first["dataset"]) == (0, [], "twice run")
    assert first["seconds"]["segment"] > 0
    written = files_below(tmp_path / "out")
    assert len(written) == 2 * 3 + 2

    second, told = terminal.label(*arguments, "--dataset", "twice run")
    assert (second["sequences"], second["frames"], second["instances"]) == (2, 6, 12)
    assert second["skipped"] == 6
    assert "segment" not in second["seconds"]
    assert "0 of 2 sequences to label" in told
    assert files_below(tmp_path / "out") == written


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


def test_one_bad_sequence_does_not_stop_the_others(terminal, tmp_path):
    write_sequence(tmp_path / "in" / "good", tmp_path / "boxes", 2)
    (tmp_path / "in" / "broken.mp4").write_bytes(b"no video at all")
    arguments = [tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes"]
    result, told = terminal.label(*arguments, "--no-dataset", code=1)
    assert result["frames"] == 2
    assert [one["sequence"] for one in result["failed"]] == ["broken"]
    assert "✗ broken" in told


def test_bad_usage_ends_with_2_and_says_what_to_do(terminal, tmp_path):
    write_image(tmp_path / "in" / "0.jpg")
    (tmp_path / "empty").mkdir()
    out = ["--out", tmp_path / "out", "--no-dataset"]
    bad_model = tmp_path / "model"
    bad_model.mkdir()
    (bad_model / "model.json").write_text("{")
    for arguments, words in [
        ([tmp_path / "nowhere", *out], "nowhere"),
        ([tmp_path / "empty", *out], "no images or videos"),
        ([tmp_path / "in", *out, "--frames", "5:2"], "STOP must be greater"),
        ([tmp_path / "in", *out, "--boxes", "x", "--detector", "y"], "not both"),
        ([tmp_path / "in", *out, "--detector", tmp_path / "no.onnx"], "no.onnx"),
        ([tmp_path / "in", *out, "--boxes", tmp_path / "no.txt"], "no.txt"),
        ([tmp_path / "in", "--out", "s3://user:secret@host/out"], "password"),
    ]:
        _, told = terminal.label(*arguments, code=2)
        assert words in told
        assert "Traceback" not in told
        assert "secret" not in told
    _, told = terminal.run("label", tmp_path / "in", *out, "--model", bad_model, code=2)
    assert "model.json" in told


def test_dry_run_writes_nothing(terminal, tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 2)
    arguments = [tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes"]
    result, _ = terminal.label(*arguments, "--dry-run")
    assert result["to_label"] == ["drive"]
    assert result["dry_run"] is True
    assert not (tmp_path / "out").exists()
    json.dumps(result)
