"""YOLO's files have one form, told from the columns of all lines: none is taken for another."""

import numpy as np
import pytest
from PIL import Image

from sam2_core.types import AutolabelError
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import Matching
from tasks.types import FrameFailure, FrameRef

CAR = ".5 .5 .2 .4"  # 80 30 120 70 of 200x100
CORNERS = "0.6 0.3 1.000000 0.3 1.000000 0.8 0.6 0.8"
PADDED = "0.600000 0.300000 1.000000 0.300000 1.000000 0.800000 0.600000 0.800000"
POSE = "0 .5 .5 .2 .4 .45 .4 .55 .6"
YAML = "names: [car, bus]\n"


@pytest.fixture
def read(tmp_path):
    """Return what reads the text of each picture's file: boxes, or why there are none."""
    Image.new("RGB", (200, 100)).save(tmp_path / "0.png")

    def read(*texts, names="car\nbus\n", suffix="txt"):
        (tmp_path / "labels").mkdir()
        for number, text in enumerate(texts):
            (tmp_path / "labels" / f"{number}.txt").write_text(text)
        (tmp_path / f"names.{suffix}").write_text(names)
        imported = import_boxes(str(tmp_path / "labels"), str(tmp_path / f"names.{suffix}"))
        there = str(tmp_path / "0.png")
        paths = [str(tmp_path / f"{number}.png") for number in range(len(texts))]
        return [
            imported.of(FrameRef("d", "", i, None, path, local_path=there))
            for i, path in enumerate(paths)
        ]

    return read


def told(boxes):
    tracks = [-1] * len(boxes) if boxes.track_ids is None else boxes.track_ids.tolist()
    rounded = boxes.xyxy_px.round().astype(int).tolist()
    scores = [round(score, 2) for score in boxes.scores.tolist()]
    return list(zip(rounded, scores, tracks, strict=True))


@pytest.mark.parametrize(
    ("texts", "scores", "tracks"),
    [
        ([f"0 {CAR}"], [1], [-1]),
        ([f"0 {CAR} .9", f"0 {CAR} 1"], [0.9, 1], [-1, -1]),
        ([f"0 {CAR} 1.0"], [1], [-1]),
        ([f"0 {CAR} 1", f"0 {CAR} 2"], [1, 1], [1, 2]),
        ([f"0 {CAR}", f"0 {CAR} 7"], [1, 1], [-1, 7]),  # nothing was tracked in the first
        ([f"0 {CAR} .9 1", f"0 {CAR} .8 12"], [0.9, 0.8], [1, 12]),
        ([f"0 {CAR} .9", f"0 {CAR} .8 12"], [0.9, 0.8], [-1, 12]),
    ],
)
def test_scores_and_ids_of_tracks_behind_boxes(read, texts, scores, tracks):
    found = [row for boxes in read(*texts) for row in told(boxes)]
    assert found == [([80, 30, 120, 70], *row) for row in zip(scores, tracks, strict=True)]


def test_the_form_is_told(read, tmp_path):
    read(f"0 {CAR} 81", f"0 {CAR} 62")
    imported = import_boxes(str(tmp_path / "labels"), str(tmp_path / "names.txt"))
    told_lines = list(Matching(imported).lines())
    assert told_lines[0] == "boxes: lines are read as `class x y width height id`"


@pytest.mark.parametrize(
    ("tail", "score", "track"), [("", 1, -1), (" .9", 0.9, -1), (" 3", 1, 3), (" .9 3", 0.9, 3)]
)
def test_scores_and_ids_of_tracks_behind_polygons(read, tail, score, track):
    pictures = read(f"0 {CORNERS}{tail}", f"0 .6 .3 1.0 .3 .8 .8{tail}")
    assert [told(boxes) for boxes in pictures] == [[([120, 30, 200, 80], score, track)]] * 2


def test_where_coordinates_are_filled_with_zeros_a_bare_number_is_an_id(read):
    (boxes,) = read(f"0 {PADDED} 0.91 1")
    assert told(boxes) == [([120, 30, 200, 80], 0.91, 1)]


def test_files_in_utf_16_have_a_form_too(read, tmp_path):
    read(f"0 {CAR} .9")
    path = tmp_path / "labels" / "0.txt"
    path.write_bytes(path.read_text().encode("utf-16"))
    imported = import_boxes(str(path), str(tmp_path / "names.txt"))
    assert imported.of(FrameRef("d", "", 0, None, "0.png")).scores[0] == np.float32(0.9)


def test_polygons_beside_boxes_and_turned_boxes(read):
    mixed, turned = read(f"0 {CAR}\n0 {CORNERS}", "0 .3 .3 .4 .4 .3 .5 .2 .4")
    assert told(mixed) == [([80, 30, 120, 70], 1, -1), ([120, 30, 200, 80], 1, -1)]
    assert told(turned) == [([40, 30, 80, 50], 1, -1)]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([f"0 {CAR} 1"], "`class x y width height score` and `class x y width height id`"),
        (["0 .6 .3 .9 .3 .8 1"], "`class x y width height score id` and `class x1 y1 "),
        (["", "0 .6 .3 .9 .3 .9 .8 .5 1"], "`class x1 y1 x2 y2 x3 y3 ...` and .* score id`"),
        ([POSE], "a box with keypoints as well as `class x1 y1 x2 y2 x3 y3 ...`: give --box-names"),
        ([f"{POSE} .9", f"{POSE} .8 4"], "a box with keypoints"),
        ([f"0 {CAR} .45 .4 2 .55 .6 2"], "a box with keypoints: give --box-names a data.yaml"),
    ],
)
def test_lines_that_fit_two_forms_are_refused(read, texts, words):
    with pytest.raises(AutolabelError, match=rf"labels/\d\.txt:1: '0 .* may be .*{words}"):
        read(*texts)


@pytest.mark.parametrize("tail", ["", " .9", " .9 4"])
@pytest.mark.parametrize(
    "points", ["0.45 0.4 0.9 " * 17, "0.45 0.4 0.55 0.6 " * 4, "0.0 0.0 0.0 " * 5]
)
def test_a_data_yaml_without_kpt_shape_does_not_make_poses_polygons(read, points, tail):
    with pytest.raises(AutolabelError, match=r"a box with keypoints.*kpt_shape, \[0, 0\] where"):
        read(f"0 {CAR} {points}{tail}", names=YAML, suffix="yaml")


@pytest.mark.parametrize(
    ("shape", "lines", "score", "track"),
    [
        ("[2, 2]", POSE, 1, -1),
        ("[2, 2]", f"{POSE} .9 4", 0.9, 4),
        ("[2, 3]", f"0 {CAR} .45 .4 2 .55 .6 0", 1, -1),
    ],
)
def test_a_data_yaml_tells_keypoints(read, shape, lines, score, track):
    (boxes,) = read(lines, names=f"{YAML}kpt_shape: {shape}\n", suffix="yaml")
    assert told(boxes) == [([80, 30, 120, 70], score, track)]


def test_a_data_yaml_without_keypoints_tells_polygons(read):
    names = f"{YAML}kpt_shape: [0, 0]\n"
    (boxes,) = read("0 .3 .3 .4 .4 .3 .6", names=names, suffix="yaml")
    assert told(boxes) == [([60, 30, 80, 60], 1, -1)]


@pytest.mark.parametrize("line", [CORNERS, f"{CAR} .9", f"{CAR} 87.5", f"{CAR} .9 .8"])
def test_a_line_of_another_form_fails_its_picture(read, line):
    *others, last = read(*[f"0 {CAR}"] * 3, f"0 {CAR}\n0 {line} 2 2 2")
    assert [told(boxes) for boxes in others] == [[([80, 30, 120, 70], 1, -1)]] * 3
    assert isinstance(last, FrameFailure)
    assert "expected `class x y width height` in fractions" in last.reason
    assert "3.txt:2: " in last.reason


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("names: [on, off, no]", "no"), ("names: {0: 1, 1: y, 2: 2.0}", "2.0"),
        ("names: [a, b, 1_000]", "1_000"), ("names:\n- a\n- b\n- 2024-01-01", "2024-01-01"),
        ("names: [a, b, null]", "null"), ("names: ['a', b, 0x10]", "0x10"),
    ],
)  # fmt: skip
def test_names_in_yaml_are_text(read, names, expected):
    (boxes,) = read(f"2 {CAR}", names=names, suffix="yaml")
    assert boxes.labels == (expected,)
