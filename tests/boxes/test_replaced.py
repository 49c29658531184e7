"""What was replaced since a run began labels nothing under the run's key."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import resolve_detector
from tasks.boxes.detectors import Detectors, load_detector
from tasks.boxes.import_files import import_boxes
from tasks.masks.model import Segmenters, choose_model
from tasks.store import storage
from tests.boxes.test_detect import NAMES, ROWS
from tests.boxes.test_imported import frame
from tests.onnx_file import write_yolox
from tests.sam2_core.test_stamps import MICRO, rewrite

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    return str(tmp_path) if request.param == "local" else request.getfixturevalue("s3")


def record(folder):
    """Name the files in model.json as they are now: an export of its own."""
    facts = json.loads((folder / "model.json").read_text())
    for name, file in facts["files"].items():
        data = (folder / name).read_bytes()
        file["sha256"], file["bytes"] = hashlib.sha256(data).hexdigest(), len(data)
    (folder / "model.json").write_text(json.dumps(facts))


def test_a_model_that_was_replaced_since_it_was_chosen_is_refused(tmp_path):
    folder = tmp_path / "micro"
    shutil.copytree(MICRO, folder)
    choice = choose_model(str(folder), "onnxruntime-cpu")
    models = Segmenters()
    first = models.load(choice)
    assert models.load(choice) is first
    rewrite(folder / "decoder_mask.onnx")
    with pytest.raises(
        AutolabelError, match=r"decoder_mask\.onnx is not the file that was exported"
    ):
        choose_model(str(folder), "onnxruntime-cpu")
    record(folder)
    again = choose_model(str(folder), "onnxruntime-cpu")
    assert again.stamp != choice.stamp
    assert models.load(again) is not first  # never the model of before under the new stamp
    rewrite(folder / "decoder_multi.onnx")
    shutil.copy(MICRO / "decoder_mask.onnx", folder)
    record(folder)
    third = choose_model(str(folder), "onnxruntime-cpu")
    shutil.copy(MICRO / "decoder_multi.onnx", folder)
    shutil.copy(MICRO / "model.json", folder)
    with pytest.raises(AutolabelError, match=r"not the one that this run began with.*Run again"):
        models.load(third)


def test_a_detector_that_was_replaced_since_it_was_named_is_refused(tmp_path):
    path = tmp_path / "detector.onnx"
    write_yolox(path, ROWS, 64, 1, NAMES)
    stamp = resolve_detector(str(path)).stamp
    detectors = Detectors()
    assert detectors.load(str(path), stamp=stamp).file.stamp == stamp
    write_yolox(path, ROWS + np.float32(0.25), 64, 1, NAMES)
    for load in (load_detector, detectors.load):
        with pytest.raises(AutolabelError, match=r"not the one that this run began with.*Run ag"):
            load(str(path), stamp=stamp)


def test_a_box_file_that_was_replaced_since_it_was_listed_gives_no_boxes(place):
    line = b"car 0.5 1 2 3 4\n"
    for name in "abc":
        storage.write_bytes(storage.join(place, f"{name}.txt"), line)
    imported = import_boxes(place)
    assert len(imported.of(frame("/x/a.jpg"))) == 1
    storage.write_bytes(storage.join(place, "b.txt"), 2 * line)
    with pytest.raises(AutolabelError, match=r"b\.txt was replaced"):
        imported.of(frame("/x/b.jpg"))
    storage.delete(storage.join(place, "c.txt"))
    with pytest.raises(AutolabelError, match=r"c\.txt"):  # an error to try again, not an answer
        imported.of(frame("/x/c.jpg"))
