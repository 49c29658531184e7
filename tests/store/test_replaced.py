"""What was replaced since a run began labels nothing under the run's key."""

import shutil

import numpy as np
import pytest

from sam2_core.types import AutolabelError
from tasks import storage
from tasks.detector_files import detector_stamp, resolve_detector
from tasks.import_boxes import import_boxes
from tasks.model import choose_model, warm_segmenter
from tasks.yolox import Detector, load_detector
from tests.onnx_file import write_yolox
from tests.sam2_core.test_stamps import MICRO, rewrite
from tests.tasks.test_detect import NAMES, ROWS
from tests.tasks.test_import_boxes import folder, frame  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))


def test_a_model_that_was_replaced_since_it_was_chosen_is_refused(tmp_path):
    folder = tmp_path / "micro"
    shutil.copytree(MICRO, folder)
    choice = choose_model(str(folder), "onnxruntime-cpu")
    first = warm_segmenter(choice)
    assert warm_segmenter(choice) is first
    rewrite(folder / "decoder_mask.onnx")
    again = choose_model(str(folder), "onnxruntime-cpu")
    assert again.stamp != choice.stamp
    assert warm_segmenter(again) is not first  # never the model of before under the new stamp
    rewrite(folder / "decoder_multi.onnx")
    shutil.copy(MICRO / "decoder_mask.onnx", folder)
    third = choose_model(str(folder), "onnxruntime-cpu")
    shutil.copy(MICRO / "decoder_multi.onnx", folder)
    with pytest.raises(AutolabelError, match=r"not the one that this run began with.*Run again"):
        warm_segmenter(third)


def test_a_detector_that_was_replaced_since_it_was_named_is_refused(tmp_path):
    path = tmp_path / "detector.onnx"
    write_yolox(path, ROWS, 64, 1, NAMES)
    stamp = detector_stamp(str(path))
    assert load_detector(str(path), stamp=stamp).file.stamp == stamp
    write_yolox(path, ROWS + np.float32(0.25), 64, 1, NAMES)
    with pytest.raises(AutolabelError, match=r"not the one that this run began with.*Run again"):
        load_detector(str(path), stamp=stamp)


def test_the_bytes_of_a_detector_that_are_loaded_are_those_that_were_hashed(tmp_path):
    path = tmp_path / "detector.onnx"
    write_yolox(path, ROWS, 64, 1, NAMES)
    file = resolve_detector(str(path))
    write_yolox(path, ROWS + np.float32(0.25), 64, 1, NAMES)
    with pytest.raises(AutolabelError, match="not the one that this run began with"):
        Detector(file)


def test_a_box_file_that_was_replaced_since_it_was_listed_gives_no_boxes(folder):
    line = b"car 0.5 1 2 3 4\n"
    for name in "abc":
        storage.write_bytes(storage.join(folder, f"{name}.txt"), line)
    imported = import_boxes(folder)
    assert len(imported.of(frame("/x/a.jpg"))) == 1
    storage.write_bytes(storage.join(folder, "b.txt"), 2 * line)
    with pytest.raises(AutolabelError, match=r"b\.txt was replaced"):
        imported.of(frame("/x/b.jpg"))
    storage.delete(storage.join(folder, "c.txt"))
    with pytest.raises(AutolabelError, match=r"c\.txt"):  # an error to try again, not an answer
        imported.of(frame("/x/c.jpg"))
