"""Detectors of other makers: each form is told by its file and fed as it needs, or refused."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, load, save

from flows.params import LabelParams
from flows.plan.plan import job_of
from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import resolve_detector, with_prompt
from tasks.boxes.detectors import load_detector
from tasks.boxes.forms import COCO_CLASSES, read_form
from tests.boxes.foreign_graphs import (
    CAR,
    CELLS,
    FORMS,
    NAMES,
    TRUCK,
    ULTRALYTICS,
    labeled,
    logits,
    queries,
    scored,
    write_graph,
)

GIVEN = {"dfine": "car, truck, person"}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))


def written(tmp_path, form, **options):
    write, placing = FORMS[form]
    path = write(tmp_path / "foreign.onnx", **options)
    return load_detector(with_prompt(str(path), None, GIVEN.get(form))), placing


def in_image(corners, placing):
    """Where boxes of the input are in a picture of 32x64."""
    left, top, right, bottom = corners
    if placing == "middle":  # 16 grey rows above it
        return [left, max(top - 16, 0), right, bottom - 16]
    return [left, top / 2, right, bottom / 2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "batch", [1, 4, pytest.param(("any", 2), id="open"), pytest.param("half", id="half")]
)
def test_each_form_gives_its_boxes(tmp_path, form, batch):
    images = "input" if form == "rfdetr" else "images"
    first = batch[0] if isinstance(batch, tuple) else batch
    options = {"image": (images, [first, 3, 64, 64])}
    if batch == "half":
        options = {"kind": "FLOAT16"}
    detector, placing = written(tmp_path, form, **options)
    picture = np.full((32, 64, 3), 90, np.uint8)
    for boxes in detector.detect([detector.letterbox(picture)] * 3):
        assert boxes.labels == ("truck", "car")
        np.testing.assert_allclose(boxes.scores, [0.9, 0.8], atol=1e-3)
        expected = [in_image(TRUCK, placing), in_image(CAR, placing)]
        np.testing.assert_allclose(boxes.xyxy_px, expected, atol=0.05)


@pytest.mark.parametrize("form", ["columns", "nms", "ultralytics rtdetr"])
def test_open_sizes_are_those_of_the_training(tmp_path, form):
    detector, _ = written(tmp_path, form, image=("images", ["b", 3, "height", "width"]))
    boxed = detector.letterbox(np.zeros((32, 64, 3), np.uint8))
    assert boxed.pixels.shape == (3, 64, 64)
    assert detector.detect([boxed])[0].labels == ("truck", "car")


def of_colour(path, given=()):
    """What a graph gets of a picture of one colour, from rows that have its channels' means."""
    form = read_form(path, path.read_bytes(), given)
    import onnxruntime

    session = onnxruntime.InferenceSession(form.graph, providers=["CPUExecutionProvider"])
    picture = np.zeros((1, 3, 64, 64), np.float32)
    picture[0] = np.array([25.5, 127.5, 204])[:, None, None]  # BGR
    return session.run(None, {form.ends[0]: picture})[0][0, -1]


def test_pictures_are_rgb_of_0_to_1_or_normalised(tmp_path):
    empty = np.zeros((1, CELLS, 7), np.float32)
    path = write_graph(
        tmp_path / "yolo.onnx", {"output0": empty}, ULTRALYTICS, means=("output0", 2, 4)
    )
    np.testing.assert_allclose(of_colour(path)[5:], [0.8, 0.5, 0.1], atol=1e-5)
    boxes, scores = queries()
    path = write_graph(
        tmp_path / "rfdetr.onnx", {"dets": boxes, "labels": np.zeros_like(scores)},
        means=("labels", 2, 0),
    )  # fmt: skip
    seen = logits(of_colour(path, NAMES)[5:])
    normal = (np.array([0.8, 0.5, 0.1]) - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(seen, normal, atol=1e-3)


def test_what_leaves_one_box_to_an_object_keeps_its_crowds(tmp_path):
    """Two people of one class overlap by 60%: YOLO's rows are suppressed, a transformer's not."""
    near = [[10, 10, 30, 50], [15, 10, 35, 50]]
    boxes, scores = queries()
    boxes[0, :2] = [[20 / 64, 30 / 64, 20 / 64, 40 / 64], [25 / 64, 30 / 64, 20 / 64, 40 / 64]]
    scores[0, :2] = [[0, 0, 0.9], [0, 0, 0.8]]
    path = write_graph(tmp_path / "d.onnx", {"dets": boxes, "labels": logits(scores)})
    detector = load_detector(with_prompt(str(path), None, ", ".join(NAMES)))
    found = detector.detect([detector.letterbox(np.zeros((64, 64, 3), np.uint8))])[0]
    np.testing.assert_allclose(found.xyxy_px, near, atol=1e-3)
    rows = scored(CELLS)
    rows[0, :3] = 0
    rows[0, :2, :4], rows[0, :2, 6] = boxes[0, :2] * 64, [0.9, 0.8]
    path = write_graph(tmp_path / "y.onnx", {"output0": rows}, ULTRALYTICS)
    detector = load_detector(str(path))
    assert len(detector.detect([detector.letterbox(np.zeros((64, 64, 3), np.uint8))])[0]) == 1


def test_given_names_replace_a_files_own_and_are_part_of_its_stamp(tmp_path):
    path = FORMS["columns"][0](tmp_path / "d.onnx")
    named = load_detector(with_prompt(str(path), None, "PKW, LKW, Mensch"))
    assert named.classes == ("PKW", "LKW", "Mensch")
    assert named.file.stamp != resolve_detector(str(path)).stamp
    params = LabelParams(
        sources=(str(tmp_path),), out=str(tmp_path / "out"), detector=str(path),
        detector_classes="PKW, LKW, Mensch", backend="onnxruntime-cpu",
    )  # fmt: skip
    assert job_of(params).stamp.detector == named.file.stamp


def test_given_names_keep_their_places(tmp_path):
    """COCO's 91 numbers have names that repeat; one less would shift all behind it."""
    path = write_graph(tmp_path / "d.onnx", labeled(), sizes=True)
    detector = load_detector(with_prompt(str(path), None, "N/A, N/A, car"))
    assert detector.classes[:3] == ("N/A", "N/A", "car")
    with pytest.raises(AutolabelError, match="has an empty name: name every class"):
        with_prompt(str(path), None, "car,,person")


def test_labels_beyond_the_names_are_seen(tmp_path):
    answers = labeled()
    answers["labels"][0, 0] = 7
    path = write_graph(tmp_path / "d.onnx", answers, sizes=True)
    detector = load_detector(with_prompt(str(path), None, "car, truck"))
    found = detector.detect([detector.letterbox(np.zeros((64, 64, 3), np.uint8))])[0]
    assert found.labels == ("unnamed", "car")


def test_coco_has_gaps_in_rfdetr_and_none_elsewhere(tmp_path):
    boxes, scores = queries(91)
    scores[0, :2] = 0
    scores[0, 0, 90], scores[0, 1, 12] = 0.9, 0.8  # toothbrush, and a number of no class
    path = write_graph(tmp_path / "r.onnx", {"dets": boxes, "labels": logits(scores)})
    detector = load_detector(str(path))
    found = detector.detect([detector.letterbox(np.zeros((64, 64, 3), np.uint8))])[0]
    assert found.labels == ("toothbrush",)
    path = write_graph(tmp_path / "d.onnx", labeled(), sizes=True)
    assert load_detector(with_prompt(str(path), None, "coco")).classes[:80] == COCO_CLASSES


def external(path, location):
    """Move a graph's weights into another file."""
    FORMS["columns"][0](path)
    model = load(str(path))
    tensor = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    (path.parent / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path.write_bytes(model.SerializeToString())


def custom(path):
    """Put an operator of nobody's into a graph."""
    FORMS["columns"][0](path)
    model = load(str(path))
    model.graph.node[0].op_type, model.graph.node[0].domain = "Magic", "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    save(model, str(path))


def decoded(path):
    """Make the sizes of YOLOX's rows exponentials, as its exporter does when it is told to."""
    write_graph(path, {"output": np.zeros((1, CELLS, 8))}, {"classes": json.dumps(NAMES)})
    model = load(str(path))
    last = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["raw" if name == last else name for name in node.output]
    model.graph.node.append(helper.make_node("Exp", ["raw"], [last]))
    save(model, str(path))


def task(name):
    return lambda path: write_graph(
        path, {"output0": np.zeros((1, 56, CELLS))}, ULTRALYTICS | {"task": name}
    )


def other(outputs, metadata=None, **options):
    return lambda path: write_graph(path, outputs, metadata, **options)


def fails(path):
    """Write a graph that no picture gets through."""
    FORMS["columns"][0](path, image=("images", ["b", 3, "h", "w"]))
    model = load(str(path))
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [7])
    model.graph.initializer.append(shape)
    model.graph.node.insert(0, helper.make_node("Reshape", ["images", "shape"], ["seven"]))
    model.graph.node.insert(1, helper.make_node("NonZero", ["seven"], ["where"]))
    model.graph.output.append(helper.make_tensor_value_info("where", 7, [1, None]))
    save(model, str(path))


REFUSED = {
    "no onnx": (lambda path: path.write_bytes(b"not a model"), "cannot read the detector"),
    "empty": (lambda path: path.write_bytes(b""), "cannot read the detector"),
    "cut": (
        lambda path: path.write_bytes(FORMS["columns"][0](path).read_bytes()[:-400]),
        "cannot read the detector",
    ),
    "custom operator": (custom, "Magic.*operators of your own are not loaded"),
    "weights beside it": (lambda path: external(path, "weights.bin"), "weights in another file"),
    "weights above it": (lambda path: external(path, "../weights.bin"), "weights in another file"),
    "weights anywhere": (lambda path: external(path, "/etc/passwd"), "weights in another file"),
    "decoded": (decoded, "decodes its boxes itself"),
    "pose": (task("pose"), "exported for the task pose: boxes come from detect and segment"),
    "obb": (task("obb"), "exported for the task obb"),
    "classify": (task("classify"), "exported for the task classify"),
    "classifier": (other({"logits": np.zeros((1, 1000))}), r"gives logits \['any', 1000\].*known"),
    "segmentation": (other({"out": np.zeros((1, 21, 64, 64))}), "not a detector of a known form"),
    "grey": (
        other({"output0": scored(CELLS)}, ULTRALYTICS, image=("images", [1, 1, 64, 64])),
        r"takes images \[1, 1, 64, 64\]",
    ),
    "two pictures": (
        other({"output0": scored(CELLS)}, ULTRALYTICS, image=("images", [1, 6, 64, 64])),
        "not a detector of a known form",
    ),
    "vast": (
        other({"output0": scored(CELLS)}, ULTRALYTICS | {"imgsz": "[10**9, 64]"}),
        "metadata `imgsz` cannot be read",
    ),
    "vaster": (
        other(
            {"output0": scored(CELLS)}, ULTRALYTICS | {"imgsz": "[1000000, 64]"},
            image=("images", [1, 3, "h", 64]),
        ),
        "not a detector of a known form",
    ),
    "no side": (
        other(
            {"output0": scored(CELLS)}, ULTRALYTICS | {"imgsz": "[-64, 64]"},
            image=("images", [1, 3, "h", 64]),
        ),
        "not a detector of a known form",
    ),
    "sides": (
        other({"output0": scored(CELLS)}, ULTRALYTICS | {"imgsz": "64"}),
        "metadata `imgsz` cannot be read",
    ),
    "facts": (
        other({"dets": queries()[0], "labels": queries()[1]}, {"rfdetr_inference": "[1]"}),
        "metadata `rfdetr_inference` cannot be read",
    ),
    "means": (
        other(
            {"dets": queries()[0], "labels": queries()[1]},
            {"rfdetr_inference": '{"stds": [1, 1, 1], "means": [0, 0, 0]}'},
        ),
        "metadata `rfdetr_inference` cannot be read",
    ),
    "code for names": (
        other({"output0": scored(CELLS)}, ULTRALYTICS | {"names": "__import__('os').abort()"}),
        "metadata `names` cannot be read",
    ),
    "other names": (
        other({"output0": scored(CELLS)}, ULTRALYTICS | {"names": "{0: 'car'}"}),
        "not a detector of a known form.*1 class name",
    ),
    "names with gaps": (
        other({"output0": scored(CELLS)}, ULTRALYTICS | {"names": "{0: 'a', 5: 'b', 6: 'c'}"}),
        "metadata `names` cannot be read",
    ),
    "unnamed labels": (other(labeled(), sizes=True), "no class names: give them with --det"),
    "unnamed logits": (
        other({"dets": queries(7)[0], "labels": queries(7)[1]}),
        "no class names for its 7 scores: give them with --detector-classes",
    ),
    "fails": (fails, "the detector .* fails"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_detector_is_refused_before_anything_is_planned(tmp_path, kind):
    write, message = REFUSED[kind]
    (tmp_path / "own").mkdir()
    path = tmp_path / "own" / "foreign.onnx"
    write(path)
    params = LabelParams(
        sources=(str(tmp_path),), out=str(tmp_path / "out"), detector=str(path),
        backend="onnxruntime-cpu",
    )  # fmt: skip
    with pytest.raises(AutolabelError, match=f"(?s){message}") as refusal:
        job_of(params)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
