"""Weights stored in half precision and computed in float32.

On a CPU half precision is slow and on disk float32 is large. A float32 weight becomes a half
precision one and a Cast, which ONNX Runtime folds when it loads the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Smaller ones (biases, norms, constants of shapes) are exact and cost nothing.
SMALLEST = 512


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
