"""YOLO's text boxes: fractions, polygons, names of classes; mistakes are told by file and line."""

import itertools

import numpy as np
import pytest
from PIL import Image

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.import_files import import_boxes
from tasks.boxes.yolo import read_classes
from tasks.types import FrameFailure, FrameRef

LETTERS = "abcdefghi"  # each stands for nine of the one before
BOMB = "a: &a [x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise(LETTERS)
)
BOMB += "names: *i\n"
YAML = "path: .\nnames:\n  0: car\n  1: traffic light\n"


@pytest.fixture
def folder(tmp_path):
    """A picture of 200x100, and boxes for it."""
    Image.new("RGB", (200, 100)).save(tmp_path / "1.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "classes.txt").write_text("car\ntraffic light\n")
    (tmp_path / "data.yaml").write_text(YAML)
    return tmp_path


def frame(folder):
    path = str(folder / "1.jpg")
    return FrameRef("drive", "", 0, None, path, local_path=path)


def boxes_of(folder, lines, names="labels/classes.txt"):
    (folder / "labels" / "1.txt").write_text(lines)
    imported = import_boxes(str(folder / "labels"), str(folder / names))
    return imported.of(frame(folder))


@pytest.mark.parametrize("names", ["labels/classes.txt", "data.yaml"])
def test_boxes_and_polygons_become_pixels(folder, names):
    found = boxes_of(folder, "1 0.5 0.5 0.2 0.4\n\n0 0.1 0.2 0.3 0.2 0.3 0.9\n", names)
    assert found.labels == ("traffic light", "car")
    np.testing.assert_allclose(found.xyxy_px, [[80, 30, 120, 70], [20, 20, 60, 90]], atol=1e-4)
    found = boxes_of(folder, "1 0.5 0.5 0.2 0.4\n0 0.25 0.25 0.5 0.5 0.75\n", names)
    np.testing.assert_allclose(found.xyxy_px, [[80, 30, 120, 70], [0, 0, 100, 50]], atol=1e-4)
    np.testing.assert_allclose(found.scores, [1, 0.75])


def test_the_names_are_part_of_the_stamp_and_no_box_file(folder):
    (folder / "labels" / "1.txt").write_text("0 0.5 0.5 0.2 0.4")
    names = folder / "labels" / "classes.txt"
    first = import_boxes(str(folder / "labels"), str(names))
    assert [entry.name for entry in first.entries] == ["1.txt"]
    names.write_text("lorry\n")
    assert import_boxes(str(folder / "labels"), str(names)).version != first.version


@pytest.mark.parametrize(
    "line",
    ["2 .5 .5 .1 .1", "-1 .5 .5 .1 .1", "car .5 .5 .1 .1", "0 .5 .5 .1", "0 100 50 20 30",
     "0 nan x 1 1", "0.5 .5 .5 .1 .1", "0 .5 .5 .1 2"],
)  # fmt: skip
def test_other_lines_are_told(folder, line):
    failure = boxes_of(folder, f"0 .5 .5 .1 .1\n{line}\n")
    assert isinstance(failure, FrameFailure)
    assert f"class from 0 to 1, found {folder}/labels/1.txt:2: {line!r}" in failure.reason


@pytest.mark.parametrize("odd", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize(
    "line", ["0 .5 .5 .1 {}", "0 .5 .5 .1 .1 {}", "0 .1 .2 .3 .2 .3 {}", "0 .1 .2 {} .2 .3 .9"]
)
def test_what_is_not_finite_fails_its_box_alone(folder, line, odd):
    found = boxes_of(folder, f"{line.format('.5')}\n{line.format(odd)}\n")
    finite = np.isfinite(found.xyxy_px).all(1) & np.isfinite(found.scores)
    assert finite.tolist() == [True, False]


def test_pixels_are_not_taken_for_fractions_nor_fractions_for_pixels(folder):
    (folder / "labels" / "1.txt").write_text("0 0.5 0.5 0.2 0.4 0.9\n")
    failure = import_boxes(str(folder / "labels")).of(frame(folder))
    assert "name the file of its class names with --box-names" in failure.reason
    (folder / "labels" / "1.txt").write_text("0 0.5 1 1 20 40\n")
    assert isinstance(import_boxes(str(folder / "labels")).of(frame(folder)), Boxes)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("\n", "c.txt", "no names of classes"),
        ("a: 1", "d.yaml", "expected `names`"),
        ("names: {0: a, 2: b}", "d.yml", "expected `names`"),
        ("names: [", "d.yml", "expected `names`"),
        ("names: !!python/object/apply:os.getcwd []", "d.yml", "expected `names`"),
        ("names: [[car], bus]", "d.yml", "expected `names`"),
        ("names: [car, ]\nkpt_shape: [x, 2]", "d.yml", "expected `names`"),
        ("car\n\nbus\n", "c.txt", "no names of classes"),
        ("{}", "c.json", "no names of classes"),
        ("classes=2\nnames=obj.names\n", "obj.data", "without `=`, or name a data.yaml"),
        ("0 car\n1 person\n", "c.txt", "without numbers before them"),
        ("0,car\n1,person\n", "c.csv", "without numbers before them"),
        (BOMB, "d.yml", "expected `names`"),
        (b"car\nb\xfcs\n", "c.txt", r"c\.txt is no text in UTF-8 \(in line 2\)"),
    ],
)
def test_names_that_are_none_are_refused(text, name, words):
    with pytest.raises(AutolabelError, match=words):
        read_classes(text if isinstance(text, bytes) else text.encode(), name)
    assert read_classes("car\nbüs\n".encode("utf-16"), "x.txt").names == ("car", "büs")
    assert read_classes(b"2 wheeler\ncar, red\n", "x.names").names == ("2 wheeler", "car, red")


def test_names_for_coco_are_refused(folder):
    (folder / "c.json").write_text('{"images": [], "annotations": [], "categories": []}')
    with pytest.raises(AutolabelError, match="leave out --box-names"):
        import_boxes(str(folder / "c.json"), str(folder / "data.yaml"))
