"""Detectors of YOLOX's form, with answers that are known (others: test_forms.py)."""

import numpy as np
import pytest
from PIL import Image

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes import detector_files
from tasks.boxes.detect import detect
from tasks.boxes.detector_files import resolve_detector
from tasks.boxes.detectors import load_detector
from tasks.types import FrameRef
from tests.examples import example
from tests.frames.sources import serve
from tests.onnx_file import write_yolox

pytestmark = pytest.mark.usefixtures("own_cache")

NAMES = ["car", "truck", "person"]
CELLS = 8 * 8 + 4 * 4 + 2 * 2


def rows_for(boxes, classes=3):
    """Network output for boxes (cell, x1, y1, x2, y2, objectness, class, class score) at 64 px."""
    rows = np.zeros((CELLS, 5 + classes), np.float32)
    rows[:, 2:4] = -3
    for cell, x1, y1, x2, y2, objectness, index, score in boxes:
        if cell < 64:
            stride, across, number = 8, 8, cell
        elif cell < 80:
            stride, across, number = 16, 4, cell - 64
        else:
            stride, across, number = 32, 2, cell - 80
        centre = np.array([(x1 + x2) / 2, (y1 + y2) / 2]) / stride
        rows[cell, :2] = centre - [number % across, number // across]
        rows[cell, 2:4] = np.log(np.array([x2 - x1, y2 - y1]) / stride)
        rows[cell, 4], rows[cell, 5 + index] = objectness, score
    return rows


ROWS = rows_for([
    (9, 4, 4, 20, 20, 0.9, 0, 1.0),
    (10, 5, 4, 21, 20, 0.8, 0, 1.0),  # the same car again
    (11, 4, 4, 20, 21, 0.7, 1, 1.0),  # ... and once more as a truck
    (12, 4, 8, 20, 28, 0.6, 2, 1.0),  # a person half over it stays
    (70, 30, 10, 62, 30, 0.5, 1, 0.9),
    (81, -20, 20, 40, 90, 0.95, 2, 0.5),  # reaches out of the image
    (20, 0, 0, 9, 9, 0.2, 0, 1.0),  # too weak
])  # fmt: skip


def images(folder, sizes):
    frames = []
    for index, (height, width) in enumerate(sizes):
        path = folder / f"{index}.png"
        Image.fromarray(np.full((height, width, 3), 50, np.uint8)).save(path)
        frames.append(FrameRef("s", "", index, None, str(path), local_path=str(path)))
    return frames


@pytest.fixture(params=["batch", 1, 4])
def model(request, tmp_path):
    path = write_yolox(tmp_path / "own model.onnx", ROWS, 64, request.param, NAMES)
    return load_detector(str(path))


def test_boxes_are_decoded_suppressed_scaled_and_clipped(model, tmp_path):
    seen = []
    frames = images(tmp_path, [(128, 128), (64, 128)] * 5)
    found = detect(frames, model, on_frame=lambda frame, boxes: seen.append(frame.index))
    assert sorted(seen) == list(found) == list(range(10))
    boxes = found[0]
    assert boxes.labels == ("car", "person", "person", "truck")
    np.testing.assert_allclose(boxes.scores, [0.9, 0.6, 0.475, 0.45], atol=1e-6)
    expected = [[8, 8, 40, 40], [8, 16, 40, 56], [0, 40, 80, 128], [60, 20, 124, 60]]
    np.testing.assert_allclose(boxes.xyxy_px, expected, atol=1e-3)
    wide = found[1]  # 64 x 128: scaled by a half, the lower half of the input is padding
    np.testing.assert_allclose(wide.xyxy_px[2], [0, 40, 80, 64], atol=1e-3)
    assert boxes.source == model.file.stamp
    assert boxes.source.startswith("own_model@")


def test_classes_and_thresholds_select(model, tmp_path):
    frames = images(tmp_path, [(64, 64)])
    for classes, min_score, labels in (
        (["truck"], 0.3, ("truck", "truck")),
        (["car", "person"], 0.5, ("car", "person")),
        ((), 0.99, ()),
        (["car"], 0.1, ("car", "car")),
    ):
        assert detect(frames, model, classes, min_score)[0].labels == labels
    with pytest.raises(AutolabelError, match="does not know the classes tram; it knows car, truck"):
        detect(frames, model, ["car", "tram"])


def test_a_bad_frame_among_good_ones(model, tmp_path):
    frames = images(tmp_path, [(64, 64)] * 6)
    (tmp_path / "2.png").write_bytes(b"")
    (tmp_path / "4.png").write_bytes((tmp_path / "3.png").read_bytes()[:60])
    found = detect(frames, model)
    assert [isinstance(found[i], Boxes) for i in range(6)] == [True, True, False, True, False, True]
    assert "zero-byte" in found[2].reason
    assert detect([], model) == {}


def test_the_letterbox_is_bgr_above_left_with_grey_around(model):
    image = np.zeros((20, 40, 3), np.uint8)
    image[:, :, 0] = 200
    boxed = model.letterbox(image)
    assert boxed.pixels.shape == (3, 64, 64)
    assert boxed.scale == pytest.approx(1.6)
    assert [np.unique(plane).tolist() for plane in boxed.pixels[:, :32]] == [[0], [0], [200]]
    assert (boxed.pixels[:, 32:] == 114).all()


def test_huge_and_broken_numbers_give_no_boxes(tmp_path):
    rows = ROWS.copy()
    rows[9, 2] = 1000  # exp overflows
    rows[70, :] = np.nan
    path = write_yolox(tmp_path / "m.onnx", rows, 64, 1, NAMES)
    boxes = detect(images(tmp_path, [(64, 64)]), load_detector(str(path)))[0]
    assert np.isfinite(boxes.xyxy_px).all()
    assert "person" in boxes.labels


def test_unusable_detectors_are_clear_errors(tmp_path):
    frames = images(tmp_path, [(64, 64)])
    (tmp_path / "x.onnx").write_bytes(b"not a model")
    wrong = write_yolox(tmp_path / "wrong.onnx", np.zeros((CELLS, 8)), 64, 1, ["car"])
    cells = write_yolox(tmp_path / "cells.onnx", np.zeros((7, 8)), 64, 1, NAMES)
    for detector, message in (
        (tmp_path / "x.onnx", r"cannot read the detector .*x\.onnx"),
        ("yolox_q", r"no detector 'yolox_q'.*yolox_nano"),
        (wrong, r"not a detector of a known form.*any', 84, 8\].*1 class names"),
        (cells, r"not a detector of a known form.*any', 7, 8\]"),
    ):
        with pytest.raises(AutolabelError, match=message):
            detect(frames, load_detector(str(detector)))


def test_a_release_is_downloaded_once_and_held_to_its_hash(tmp_path, monkeypatch):
    folder = tmp_path / "www"
    folder.mkdir()
    path = write_yolox(folder / "yolox_m.onnx", ROWS, 64, 1, NAMES)
    with serve(folder) as url:
        monkeypatch.setattr(detector_files, "RELEASES_URL", url)
        first = resolve_detector("yolox-m")
        assert first.name == "yolox_m"
        assert first.path.read_bytes() == path.read_bytes()
    assert resolve_detector("yolox_m") == first  # the server is gone
    assert len(detect(images(tmp_path, [(64, 64)]), load_detector("yolox_m"))[0]) == 4
    first.path.write_bytes(first.path.read_bytes() + b"\0")
    with pytest.raises(AutolabelError, match="sha256"):
        resolve_detector("yolox_m")


def test_a_known_name_offline_says_what_to_place_where(tmp_path, monkeypatch):
    monkeypatch.setattr(detector_files, "RELEASES_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("sam2_core.model_download._FIRST_PAUSE_S", 0.01)
    with pytest.raises(AutolabelError, match=r"place it as .*cache/detectors/yolox_s\.onnx"):
        resolve_detector("yolox_s")


@pytest.mark.ci
def test_several_images_at_once_are_found_as_each_alone():
    detector = load_detector("compact")
    scenes = [detector.letterbox(example(index)[0]) for index in (0, 11)]
    given = [scenes[index % 2] for index in range(detector.batch)]
    alone = [detector.detect([one])[0] for one in scenes]
    assert len(alone[0]) > 0
    for index, boxes in enumerate(detector.detect(given)):
        np.testing.assert_allclose(boxes.xyxy_px, alone[index % 2].xyxy_px, atol=1e-2)
        assert boxes.labels == alone[index % 2].labels
