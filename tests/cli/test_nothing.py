"""Asking for what is not there is an error with the reason, not a success with nothing in it."""

import json
import sys
from pathlib import Path

import pytest

from flows.cli.main import main
from tests.integration.runs import write_boxes, write_image

MICRO = Path(__file__).parents[1] / "data" / "micro"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--classes", "Car"], "has no such boxes; its classes are: car"),
        (["--frames", "50:"], "--frames 50::1 takes no frame"),
        (["--boxes", "other"], "none of its images is among the frames"),
    ],
)
@pytest.mark.parametrize("command", ["label", "backfill"])
def test_nothing_to_label_exits_with_1(tmp_path, monkeypatch, capsys, command, options, reason):
    write_image(tmp_path / "in" / "drive" / "1.jpg")
    write_boxes(tmp_path / "boxes" / "1.txt", ["car 0.9 10 10 50 50"])
    write_boxes(tmp_path / "other" / "elsewhere" / "1.txt", ["car 0.9 10 10 50 50"])
    monkeypatch.chdir(tmp_path)
    arguments = ["in", "--out", "out", "--boxes", "boxes", "--model", str(MICRO), "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["autolabel", command, *arguments, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert reason in " ".join(capsys.readouterr().err.split())


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
