"""The examples of the pages run as they stand, and what they use does what it says."""

import contextlib
import json
import re
import shutil
import subprocess
import textwrap

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from sam2_core.images import open_image
from sam2_core.types import AutolabelError, Masks
from tasks.dataset.schema import open_dataset
from tasks.export.run import FORMATS, Choice, export
from tasks.review.events import read_events
from tasks.store.manifests import write_manifest
from tests.conftest import REPOSITORY
from tests.export.labeled_runs import run_of, stored, truth
from tests.integration.cluster import AUTOLABEL
from tests.integration.runs import write_boxes, write_image
from tests.review.labels import OTHER_STAMP, STAMP, labeled_frames
from tests.review.reviewed import load_run


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.S)
    picture = np.full((240, 320, 3), 120, np.uint8)
    picture[20:220, 10:110] = (200, 30, 30)
    Image.fromarray(picture).save(tmp_path / "frame.jpg")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert re.match(r"car \d+ pixels, \d+ outline\(s\) ", capsys.readouterr().out)
    array = names["masks"].to_array(0)
    assert (array.shape, array.dtype) == ((240, 320), np.bool_)
    assert array.sum() == names["masks"].area_px[0] > 10_000


def test_the_examples_for_python_run(tmp_path, monkeypatch, capsys, database):
    examples = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/PYTHON.md").read_text(), re.S)
    for name in ("drives/one/0.jpg", "drives/one/1.jpg", "frame.jpg"):
        write_image(tmp_path / name, 3, (240, 320))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "nobody")  # until an example signs
    load_run("python demo", tmp_path / "reviewed", labeled_frames(4))
    for code in examples:
        # With a server, `test_nightly` submits one from Python.
        needs_server = "backfill(" in code
        expected = pytest.raises(AutolabelError, match="no Prefect server: start one with")
        with expected if needs_server else contextlib.nullcontext():
            named = code.replace('"demo"', '"python demo"')  # test_demo.py has the other one
            exec(compile(named, "PYTHON.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"2 frames, \d+ masks, \[\]", first)
    assert second == "Masks(1 of 320x240 px)"
    assert list(tmp_path.glob("labels/labels/**/*.parquet"))
    labels = [one for frame in open_dataset("python demo") for one in frame.detections.detections]
    assert {one.area_px < 1000 for one in labels} == {True, False}
    small = {one.id for one in labels if one.area_px < 1000}
    assert small == {one.id for one in labels if one.decision == "rejected"}
    events = read_events(str(tmp_path / "reviewed"), "python demo")
    assert {label for one in events for label in one.decisions} == small
    assert {one.by for one in events} == {"too small"}


def test_the_example_for_files_reads_those_of_one_run(tmp_path, capsys):
    page = (REPOSITORY / "docs/ARTIFACTS.md").read_text()
    (code,) = re.findall(r"```python\n(import json\n.*?)```", page, re.S)
    out = str(tmp_path)
    for stamp, frames in ((STAMP, 2), (OTHER_STAMP, 3)):
        write_manifest(out, stored(out, "/drives/one", labeled_frames(frames, 5), stamp))
    exec(compile(code, "ARTIFACTS.md", "exec"), {"out": out, "run_key": OTHER_STAMP.run_key})
    assert capsys.readouterr().out == " 15\n"


def test_the_export_format_of_contributing_is_a_whole_one(tmp_path, monkeypatch):
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"   ```python\n(.*?)   ```", page, re.S)
    names = {}
    exec(compile(textwrap.dedent(code), "CONTRIBUTING.md", "exec"), names)
    monkeypatch.setitem(FORMATS, "lines", names["LinesWriter"])
    to = tmp_path / "to"
    report = export(run_of(tmp_path), "lines", str(to), Choice())
    rows = [json.loads(line) for line in (to / "boxes.jsonl").read_text().splitlines()]
    assert len(rows) == report["instances"] == 30
    assert {report["names"][row["class"]] for row in rows} == {*report["classes"]}
    assert all((to / "images" / row["picture"]).is_file() for row in rows)
    expected = [coco_mask.toBbox(rle).tolist() for frame in truth(tmp_path) for _, _, rle in frame]
    assert [row["box_xywh_px"] for row in rows] == expected


@pytest.mark.ci
def test_the_sources_of_the_commands_are_taken_as_they_stand(tmp_path):
    text = (REPOSITORY / "docs" / "labeling.md").read_text()
    commands = re.findall(
        r"^((?:find .*\| )?autolabel label (?!SOURCE|s3:).*?)(?: +#.*)?$", text, re.M
    )
    commands = [one for one in commands if "--detector" not in one]  # which is downloaded first
    assert len(commands) == 4, commands
    for name in (
        "frames/a_7",
        "frames/b_7",
        *(f"drives/2026-05-0{day}/CAM_FRONT/1" for day in (1, 2)),
    ):
        write_image(tmp_path / f"{name}.jpg", 1)
    for name in ("a_7", "b_7"):
        write_boxes(tmp_path / "boxes" / f"{name}.txt", ["car 0.9 20 15 100 70"])
    video = cv2.VideoWriter(
        str(tmp_path / "drive.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 48)
    )
    video.write(np.zeros((48, 64, 3), np.uint8))
    video.release()
    if not shutil.which("find"):
        commands = [command for command in commands if not command.startswith("find ")]
    for command in commands:
        said = subprocess.run(
            ["/bin/sh", "-c", command.replace("autolabel", str(AUTOLABEL)) + " --dry-run"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert said.returncode == 0, (command, said.stderr)
        assert "to label" in said.stderr + said.stdout


def test_polygons_of_every_mask():
    there, hole = np.zeros((2, 40, 60), np.uint8)
    there[5:20, 10:30] = there[25:35, 40:50] = 1
    hole[5:35, 5:35] = 1
    hole[10:20, 10:20] = 0
    counts = [coco_mask.encode(np.asfortranarray(one))["counts"] for one in (there, hole)]
    one = [1.0] * 2
    masks = Masks(tuple(counts), (40, 60), one, one, one, [0] * 2, ("", ""))
    np.testing.assert_array_equal(masks.to_array(0), there > 0)
    assert [len(parts) for parts in masks.polygons()] == [2, 1]
    for array, parts in zip((there, hole), masks.polygons(), strict=True):
        flat = [part.ravel().tolist() for part in parts]
        drawn = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(flat, 40, 60)))
        np.testing.assert_array_equal(drawn, array)


def test_a_picture_is_opened_as_displayed(tmp_path):
    picture = np.zeros((10, 20, 3), np.uint8)
    picture[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture).save(tmp_path / "turned.png", exif=exif)
    opened = open_image(tmp_path / "turned.png")
    assert opened.shape == (20, 10, 3)
    assert opened[0, 9].tolist() == [255] * 3
    Image.fromarray(picture[:, :, 0]).save(tmp_path / "grey.png")
    assert open_image(str(tmp_path / "grey.png")).shape == (10, 20, 3)
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    for name in ("bad.jpg", "none.jpg"):
        with pytest.raises(AutolabelError, match=name):
            open_image(tmp_path / name)
