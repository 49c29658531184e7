"""Weights stored in half precision and computed in float32.

On a CPU half precision is slow and on disk float32 is large. A float32 weight becomes a half
precision one and a Cast, which ONNX Runtime folds when it loads the file. Files of one folder can
share a data file, where equal weights lie once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

# Smaller ones (biases, norms, constants of shapes) are exact and cost nothing.
SMALLEST = 512
ALIGNMENT = 64


def store_in_half(graph: Any) -> None:
    """Turn the large float32 initialisers of an ONNX model into float16 ones and Casts."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in graph.graph.initializer:
        count = int(np.prod(tensor.dims))
        if tensor.data_type != TensorProto.FLOAT or count < SMALLEST:
            continue
        values = numpy_helper.to_array(tensor)
        if np.abs(values).max() > np.finfo(np.float16).max:
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
        casts.append(helper.make_node("Cast", [f"{name}_half"], [name], to=onnx.TensorProto.FLOAT))
    for cast in reversed(casts):
        graph.graph.node.insert(0, cast)


def share_weights(paths: list[Path], data: Path) -> None:
    """Move the large weights of several ONNX files into one data file, equal ones once.

    Args:
        paths: files of one folder, rewritten.
        data: in the same folder.

    """
    import onnx
    from onnx import TensorProto

    places: dict[bytes, tuple[int, int]] = {}
    content = bytearray()
    for path in paths:
        graph = onnx.load(str(path))
        for tensor in graph.graph.initializer:
            raw = tensor.raw_data
            if len(raw) < 2 * SMALLEST or tensor.data_type not in (
                TensorProto.FLOAT, TensorProto.FLOAT16,
            ):  # fmt: skip
                continue
            digest = hashlib.sha256(raw).digest()
            if digest not in places:
                content.extend(bytes(-len(content) % ALIGNMENT))
                places[digest] = (len(content), len(raw))
                content.extend(raw)
            offset, length = places[digest]
            tensor.ClearField("raw_data")
            del tensor.external_data[:]
            for key, value in (("location", data.name), ("offset", offset), ("length", length)):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, str(value)
            tensor.data_location = TensorProto.EXTERNAL
        path.write_bytes(graph.SerializeToString())
    data.write_bytes(bytes(content))
