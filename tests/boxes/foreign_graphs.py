"""Small ONNX graphs with the ends that exporters of detectors give theirs, and known answers.

At 64x64 they find a truck in `TRUCK` and, weaker, a car in `CAR`, in pixels of the input.
"""

import json

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

TRUCK, CAR = [8, 16, 24, 40], [40, 8, 56, 24]
NAMES = ("car", "truck", "person")
CELLS = 8 * 8 + 4 * 4 + 2 * 2
ULTRALYTICS = {"names": str(dict(enumerate(NAMES))), "stride": "32", "imgsz": "[64, 64]"}


def write_graph(
    path, outputs, metadata=None, image=("images", [1, 3, 64, 64]), kind="FLOAT", sizes=False,
    means=None,
):  # fmt: skip
    """Write a graph that answers arrays (1, ...), plus 0 times its input's mean, so NaN shows.

    `means` adds the mean of each channel to three columns: the output's name, its axis, the first.
    """
    name, shape = image
    type_ = getattr(TensorProto, kind)
    node, value = helper.make_node, helper.make_tensor_value_info
    constants = {"zero": np.zeros(1, np.float32)}
    nodes = [
        node("Cast", [name], ["picture"], to=1),
        node("ReduceMean", ["picture"], ["mean"], keepdims=0),
        node("Mul", ["mean", "zero"], ["nothing"]),
        node("ReduceMean", ["picture"], ["channels"], axes=[2, 3], keepdims=0),
        # (B, 1) zeros: as many answers as there are pictures.
        node("ReduceMean", ["picture"], ["of_each"], axes=[1, 2, 3], keepdims=0),
        node("Mul", ["of_each", "zero"], ["none_of_each"]),
    ]
    if sizes:
        nodes += [
            node("Cast", ["orig_target_sizes"], ["sizes"], to=1),
            node("ReduceMean", ["sizes"], ["size"], axes=[0], keepdims=0),
            node("Concat", ["size", "size"], ["size_twice"], axis=0),
        ]
    ends = []
    for key, array in outputs.items():
        constants[f"{key}_is"] = array.astype(np.float32)
        constants[f"{key}_shape"] = np.array([-1, *[1] * (array.ndim - 1)])
        nodes.append(node("Reshape", ["none_of_each", f"{key}_shape"], [f"{key}_none"]))
        last = f"{key}_answer"
        nodes.append(node("Add", [f"{key}_is", f"{key}_none"], [last]))
        if sizes and key == "boxes":
            nodes.append(node("Mul", [last, "size_twice"], [f"{key}_scaled"]))
            last = f"{key}_scaled"
        if means and means[0] == key:
            _, axis, at = means
            width = array.shape[axis]
            constants["left"] = np.zeros((1, at), np.float32)
            constants["right"] = np.zeros((1, width - at - 3), np.float32)
            shape_of = [1] * array.ndim
            shape_of[axis] = width
            constants["means_shape"] = np.array(shape_of)
            nodes += [
                node("Concat", ["left", "channels", "right"], ["columns"], axis=1),
                node("Reshape", ["columns", "means_shape"], ["means"]),
                node("Add", [last, "means"], [f"{key}_seen"]),
            ]
            last = f"{key}_seen"
        whole = np.issubdtype(array.dtype, np.integer)
        to = TensorProto.INT64 if whole else type_
        nodes.append(node("Cast", [last], [key], to=to))
        sides = array.shape[1:] if isinstance(shape[2], int) else [None] * (array.ndim - 1)
        ends.append(value(key, to, [shape[0], *sides]))
    starts = [value(name, type_, shape)]
    if sizes:
        starts.append(value("orig_target_sizes", TensorProto.INT64, [shape[0], 2]))
    tensors = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    graph = helper.make_graph(nodes, "detector", starts, ends, tensors)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    helper.set_model_props(model, metadata or {})
    save(model, str(path))
    return path


def _centred(corners):
    left, top, right, bottom = corners
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


def scored(rows, columns=7, objectness=False):
    """Centre, size, [objectness,] scores: the truck twice, the car, and nothing else."""
    found = np.zeros((1, rows, columns), np.float32)
    found[0, :, 2:4] = 1
    first = 5 if objectness else 4
    for row, (corners, label, score) in enumerate(
        [(TRUCK, 1, 0.9), ([9, 16, 25, 40], 1, 0.85), (CAR, 0, 0.8)]
    ):
        found[0, row, :4] = _centred(corners)
        found[0, row, first + label] = score
        found[0, row, first - 1] = 1 if objectness else found[0, row, first - 1]
    return found


def best(rows, extra=0, fractions=False):
    """Corners (or centre and size in fractions), score, label."""
    found = np.zeros((1, rows, 6 + extra), np.float32)
    for row, (corners, label, score) in enumerate([(TRUCK, 1, 0.9), (CAR, 0, 0.8)]):
        place = np.array(_centred(corners)) / 64 if fractions else corners
        found[0, row, :6] = [*place, score, label]
    return found


def queries(classes=3):
    """Centre and size in fractions, and logits or scores of each class."""
    boxes, scores = np.zeros((1, 10, 4), np.float32), np.zeros((1, 10, classes), np.float32)
    boxes[0, :2] = np.array([_centred(TRUCK), _centred(CAR)]) / 64
    scores[0, 0, 1], scores[0, 1, 0] = 0.9, 0.8
    return boxes, scores


def labeled():
    """Labels, corners in fractions of the given sizes, scores."""
    labels = np.zeros((1, 10), np.int64)
    labels[0, 0] = 1
    boxes, scores = np.zeros((1, 10, 4), np.float32), np.zeros((1, 10), np.float32)
    boxes[0, :2] = np.array([TRUCK, CAR]) / 64
    scores[0, :2] = [0.9, 0.8]
    return {"labels": labels, "boxes": boxes, "scores": scores}


def logits(scores):
    """The numbers whose sigmoid these scores are."""
    inside = np.clip(scores, 1e-6, 1 - 1e-6)
    return np.log(inside / (1 - inside)).astype(np.float32)


def _rfdetr(path, **options):
    boxes, scores = queries(4)
    facts = {"task": "detect", "class_id_to_name": dict(enumerate(NAMES))}
    metadata = {"rfdetr_inference": json.dumps(facts)}
    outputs = {"dets": boxes, "labels": logits(scores)}
    options = {"image": ("input", [1, 3, 64, 64]), **options}
    return write_graph(path, outputs, metadata, **options)


def _ultralytics(answer, **metadata):
    def write(path, **options):
        outputs = answer if isinstance(answer, dict) else {"output0": answer}
        return write_graph(path, outputs, ULTRALYTICS | metadata, **options)

    return write


_PROTOTYPES = np.zeros((1, 32, 16, 16), np.float32)
_DETR = {"description": "Ultralytics rtdetr-l model", "task": "detect"}
# What writes each form, and where its pictures are put.
FORMS = {
    "columns": (_ultralytics(scored(CELLS).transpose(0, 2, 1), task="detect"), "middle"),
    "rows": (_ultralytics(scored(CELLS)), "middle"),
    "segment": (
        _ultralytics(
            {"output0": scored(CELLS, 39).transpose(0, 2, 1), "output1": _PROTOTYPES},
            task="segment",
        ),
        "middle",
    ),
    "yolov5": (_ultralytics(scored(3 * CELLS, 8, objectness=True)), "middle"),
    "nms": (_ultralytics(best(20), task="detect", end2end="True"), "middle"),
    "segment with nms": (
        _ultralytics({"output0": best(20, 32), "output1": _PROTOTYPES}, task="segment"), "middle",
    ),
    "ultralytics rtdetr": (_ultralytics(np.concatenate(queries(), 2), **_DETR), "stretched"),
    "ultralytics rtdetr, best": (
        _ultralytics(best(10, fractions=True), **_DETR, head="RTDETRDecoder"), "stretched",
    ),
    "rfdetr": (_rfdetr, "stretched"),
    "dfine": (
        lambda path, **options: write_graph(path, labeled(), sizes=True, **options), "stretched",
    ),
}  # fmt: skip
