"""ONNX files of YOLOX's form with a known answer."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_yolox(
    path: Path,
    rows: np.ndarray,
    size: int = 64,
    batch: int | str = "batch",
    classes: list[str] | None = None,
) -> Path:
    """Write a detector that answers `rows` (cells, 5 + classes) for every image.

    It adds 0 times the image's mean, so that a NaN in its input shows.
    """
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["mean"], ["flat"], axes=[3]),
        helper.make_node("Mul", ["flat", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "rows"], ["output"]),
    ]
    shapes = {"images": [batch, 3, size, size], "output": [batch, *rows.shape]}
    images, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    constants = {"rows": rows[None], "zero": np.zeros(1)}
    tensors = [numpy_helper.from_array(np.float32(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "detector", [images], [output], tensors)
    model = helper.make_model(graph, ir_version=6, opset_imports=[helper.make_opsetid("", 11)])
    if classes is not None:
        helper.set_model_props(model, {"classes": json.dumps(classes)})
    onnx.save(model, str(path))
    return path
