"""Asking for what is not there is an error with the reason, not a success with nothing in it."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli.main import cli, main
from tests.conftest import REPOSITORY
from tests.integration.runs import write_boxes, write_image

MICRO = Path(__file__).parents[1] / "data" / "micro"


@pytest.mark.parametrize(
    ("options", "reason", "code"),
    [
        (["--classes", "Car"], "has no such boxes; its classes are: car", 2),
        (["--frames", "50:"], "--frames 50::1 takes no frame", 1),
        (["--boxes", "other"], "none of its images is among the frames", 1),
    ],
)
@pytest.mark.parametrize("command", ["label", "backfill"])
def test_nothing_to_label_is_no_success(
    tmp_path, monkeypatch, capsys, command, options, reason, code
):
    write_image(tmp_path / "in" / "drive" / "1.jpg")
    write_boxes(tmp_path / "boxes" / "1.txt", ["car 0.9 10 10 50 50"])
    write_boxes(tmp_path / "other" / "elsewhere" / "1.txt", ["car 0.9 10 10 50 50"])
    monkeypatch.chdir(tmp_path)
    arguments = ["in", "--out", "out", "--boxes", "boxes", "--model", str(MICRO)]
    arguments += ["--dry-run"] * (command == "backfill")
    monkeypatch.setattr(sys, "argv", ["autolabel", command, *arguments, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "page", "head"),
    [
        ("label", "labeling", "`--json` prints one"),
        ("backfill", "OPERATIONS", "`autolabel backfill --json`"),
    ],
)
def test_every_key_of_json_is_on_a_page(tmp_path, monkeypatch, capsys, command, page, head):
    write_image(tmp_path / "in" / "drive" / "1.jpg")
    write_boxes(tmp_path / "boxes" / "1.txt", ["car 0.9 10 10 50 50"])
    monkeypatch.chdir(tmp_path)
    arguments = ["in", "--out", "out", "--boxes", "boxes", "--model", str(MICRO), "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["autolabel", command, *arguments, "--json"])
    with pytest.raises(SystemExit):
        main()
    table = (REPOSITORY / "docs" / f"{page}.md").read_text().partition(head)[2].split("\n\n")[1]
    named = set(re.findall(r"`(\w+)`", table))
    assert set(json.loads(capsys.readouterr().out)) <= named


def test_what_does_not_fit_is_told(tmp_path, monkeypatch, capsys):
    for name in ("1", "2"):
        write_image(tmp_path / "in" / "drive" / f"{name}.jpg")
    for name in ("1", "3"):
        write_boxes(tmp_path / "boxes" / f"{name}.txt", ["car 0.9 10 10 50 50"])
    monkeypatch.chdir(tmp_path)
    arguments = ["in", "--out", "out", "--boxes", "boxes", "--model", str(MICRO), "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["autolabel", "label", *arguments, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    output = capsys.readouterr()
    told = " ".join(output.err.split())
    assert "frames without boxes: 1 of 2 " in told
    assert "boxes without a frame: those of 1 of 2 images (3.txt)" in told
    assert json.loads(output.out)["imported"]["first_boxes_without_frame"] == ["3.txt"]


def test_a_run_names_cameras_of_failures_and_counts_boxes_without_a_mask(tmp_path):
    for camera in ("CAM_BACK", "CAM_FRONT"):
        picture = write_image(tmp_path / "in" / camera / "1.jpg")
    (tmp_path / "in" / "CAM_BACK" / "1.jpg").write_bytes(picture.read_bytes()[:200])
    (tmp_path / "names.txt").write_text("car\n")
    rows = ["0 0.5 0.5 0.5 0.5", "0 nan 0.5 0.5 0.5"]
    write_boxes(tmp_path / "boxes" / "CAM_FRONT" / "1.txt", rows)
    given = ["label", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--json"]
    given += ["--no-dataset", "--model", str(MICRO), "--boxes", str(tmp_path / "boxes")]
    given += ["--box-names", str(tmp_path / "names.txt")]
    for _ in range(2):  # now, and as it was left
        done = CliRunner().invoke(cli, given)
        summary = json.loads(done.stdout)
        assert (done.exit_code, summary["instances"], summary["rejected"]) == (1, 2, 1)
        told = " ".join(done.stderr.split())
        assert "in CAM_BACK 1.jpg decode: " in told
        assert "1 frame and 1 mask in 1 sequence" in told
        assert f"1 box without a mask (why: reports/{summary['run_key']}/)" in told
        (report,) = (tmp_path / "out" / "reports" / summary["run_key"]).glob("*.json")
        assert "finite" in report.read_text()
    planned = CliRunner().invoke(cli, [*given, "--dry-run"])
    assert planned.exit_code == 1
    assert "in CAM_BACK 1.jpg decode: " in " ".join(planned.stderr.split()), "the reason for that"


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of a score beyond float32
def test_boxes_that_all_fail_leave_nothing_and_say_so(tmp_path):
    write_image(tmp_path / "in" / "drive" / "1.jpg")
    rows = ["car 1e308 10 10 50 50", "car 0.9 50 10 10 50", "car 0.9 1e39 10 50 50"]
    write_boxes(tmp_path / "boxes" / "1.txt", rows)
    given = ["label", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--no-dataset"]
    given += ["--boxes", str(tmp_path / "boxes"), "--model", str(MICRO), "--json"]
    for _ in range(2):  # now, and as it was left
        done = CliRunner().invoke(cli, given)
        summary = json.loads(done.stdout)
        assert (done.exit_code, summary["instances"], summary["rejected"]) == (1, 3, 3)
        assert summary["nothing"].startswith("no mask: no box could be used")
        (report,) = (tmp_path / "out" / "reports" / summary["run_key"]).iterdir()
        assert len(json.loads(report.read_text())["rejected"]) == 3, "where it says why"
