"""What was replaced since a run began labels nothing under the run's key."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from sam2_core.decisive_code import ROOT
from sam2_core.types import AutolabelError
from tasks.boxes.detectors import Detectors, load_detector, resolve_detector
from tasks.boxes.import_files import import_boxes
from tasks.frames.decisive_code import box_code, decisive_modules
from tasks.masks.model import Segmenters, choose_model
from tasks.store import storage
from tests.boxes.test_detect import NAMES, ROWS
from tests.boxes.test_imported import frame
from tests.onnx_file import write_yolox
from tests.sam2_core.test_stamps import MICRO, rewrite


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))


# In these rooms, and no pixel or box depends on them. Why:
NOT_DECISIVE = {
    "tasks.frames.decisive_code": "the list itself",
    "tasks.boxes.detectors": "finds files and loads them; their content is in the stamp",
    "tasks.frames.discover": "names of frames; they are in every key",
    "tasks.frames.download": "bytes as they are; their etags are in every key",
    "tasks.frames.listing": "names and etags of frames; they are in every key",
    "tasks.frames.naming": "names of sequences; they are in every key",
    "tasks.frames.identity": "names of sequences and cameras; they are in every key",
    "tasks.masks.model": "what certificates say of a model; refuses it or not",
    "tasks.masks.follow": "its code is among the parameters of the runs that follow",
    "tasks.masks.crops": "masks as FiftyOne holds them; labels hold their runs",
    "tasks.masks.rules": "its digest is among the parameters of the runs that it changes",
    "tasks.masks.segment": "order and threads; masks are sam2_core's",
}


def test_every_module_of_frames_boxes_and_masks_decides_labels_or_says_why_not():
    there = {
        f"tasks.{room}.{path.stem}"
        for room in ("frames", "boxes", "masks")
        for path in (ROOT / "tasks" / room).glob("*.py")
        if path.name != "__init__.py"
    }
    listed = {name for imported in (True, False) for name in decisive_modules(imported=imported)}
    assert not listed & set(NOT_DECISIVE)
    assert there - listed - set(NOT_DECISIVE) == set(), (
        "new modules: list them in tasks/frames/decisive_code.py, or here with the reason why no "
        "label depends on them"
    )
    here = {name for name in listed | set(NOT_DECISIVE) if name.startswith("tasks.")}
    assert here - there == {"tasks.pipeline.open_boxes"}, "no longer there"
    assert box_code(imported=True) != box_code(imported=False)


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
