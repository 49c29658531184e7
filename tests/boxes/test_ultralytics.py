"""Real exports of Ultralytics with random weights: its boxes are found, within a pixel.

`ultralytics` is AGPL and wants another OpenCV, so no environment of ours has it: the test makes one
in `.cache/ultralytics` by uv, 1.4 GB, once. AUTOLABEL_ULTRALYTICS names another Python with it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.boxes.detectors import load_detector
from tasks.boxes.yolox import SAME_BOX_IOU
from tests.examples import example

ROOT = Path(__file__).parents[2]
PACKAGES = ("ultralytics==8.4.190", "torch==2.13.0", "onnx", "onnxruntime")
MOST = 100
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python():
    named = os.environ.get("AUTOLABEL_ULTRALYTICS")
    place = ROOT / ".cache" / "ultralytics"
    found = Path(named or place / "bin" / "python")
    if found.is_file():
        return found
    uv = shutil.which("uv") or ROOT / ".uv" / "bin" / "uv"
    if not Path(uv).is_file():
        pytest.skip("no uv to make an environment with")
    asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    links = (
        os.environ.get("PIP_FIND_LINKS")
        or subprocess.run(asked, check=False, capture_output=True, text=True).stdout
    )
    options = [part for link in links.split() for part in ("--find-links", link)]
    new = place.with_name(f"ultralytics-{os.getpid()}")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, new], check=True)
    install = [uv, "pip", "install", "-q", "--python", new / "bin" / "python", *options, *PACKAGES]
    made = subprocess.run(install, check=False, capture_output=True, text=True)
    if made.returncode:
        shutil.rmtree(new)
        pytest.skip(f"ultralytics cannot be installed: {made.stderr[-300:]}")
    new.rename(place)
    return found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "pictures.npy"
    np.save(path, np.stack([example(index)[0] for index in (0, 11)]))
    return path


def overlaps(box, boxes):
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:4], boxes[:, 2:4])
    shared = np.clip(high - low, 0, None).prod(1)
    areas = (boxes[:, 2:4] - boxes[:, :2]).prod(1)
    return shared / ((box[2:4] - box[:2]).prod() + areas - shared)


def threshold(scores):
    """Return a score amid the widest gap below some dozens of boxes: none is on its edge."""
    best = np.sort(scores)[::-1][: MOST + 1]
    gaps = best[MOST // 2 : -1] - best[MOST // 2 + 1 :]
    at = MOST // 2 + int(gaps.argmax())
    return float(best[at] + best[at + 1]) / 2


def assert_same(ours, theirs, detector):
    """Ours are theirs, but for those that are one object with a better one of any class.

    Boxes in the grey around the picture, and turned ones, have no part of it.
    """
    limit = np.array([1280, 720, 1280, 720])
    theirs = np.hstack([np.clip(theirs[:, :4], 0, limit), theirs[:, 4:]])
    theirs = theirs[(theirs[:, 2:4] > theirs[:, :2]).all(1)]
    inside = (ours.xyxy_px[:, 2:] > ours.xyxy_px[:, :2]).all(1)
    classes = np.array([detector.classes.index(label) for label in ours.labels])[inside]
    boxes, scores = ours.xyxy_px[inside], ours.scores[inside]
    left = list(range(len(theirs)))
    for box, score, label in zip(boxes, scores, classes, strict=True):
        rest = theirs[left]
        near = (np.abs(rest[:, :4] - box).max(1) <= 1) & (rest[:, 5] == label)
        apart = np.where(near, np.abs(rest[:, 4] - score), np.inf)
        assert apart.min() < 5e-3
        left.pop(int(apart.argmin()))
    assert len(boxes) >= MOST // 8
    for row in theirs[left]:
        over = overlaps(row, boxes) > SAME_BOX_IOU - 0.1
        assert (over & (scores >= row[4] - 5e-3)).any()


@pytest.mark.parametrize(
    ("name", "options", "runtimes"),
    [
        ("yolov8n", {}, (".pt", ".onnx")),
        ("yolov8n", {"half": True}, (".onnx",)),
        ("yolov5nu", {"dynamic": True}, (".pt", ".onnx")),
        ("yolo11n-seg", {"batch": 2}, (".pt", ".onnx")),
        ("yolo12n", {"imgsz": [192, 320]}, (".pt", ".onnx")),
        ("yolo26n", {}, (".pt", ".onnx")),
        ("yolo26n", {"nms": False}, (".onnx",)),  # end to end: its weights run so by themselves not
        ("rtdetr-l", {}, (".pt", ".onnx")),
        ("rtdetr-l", {"dynamic": True}, (".pt", ".onnx")),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
)
def test_boxes_are_those_of_ultralytics(tmp_path, python, pictures, name, options, runtimes):
    path = tmp_path / f"{name}.onnx"
    script = Path(__file__).with_name("ultralytics_exports.py")
    environment = os.environ | {
        "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": str(tmp_path),
        "PYTHONPATH": "",
    }  # fmt: skip
    made = subprocess.run(
        [python, script, name, json.dumps(options), pictures, path],
        check=False, capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    answers = json.loads(made.stdout.splitlines()[-1])
    detector = load_detector(str(path))
    images = [detector.letterbox(image) for image in np.load(pictures)]
    for runtime in runtimes:
        for image, rows in zip(images, answers[runtime], strict=True):
            theirs = np.array(rows)
            least = threshold(theirs[:, 4])
            (ours, again) = detector.detect([image, image], min_score=least)
            np.testing.assert_allclose(again.xyxy_px, ours.xyxy_px, atol=1e-2)
            assert_same(ours, theirs[theirs[:, 4] > least], detector)
