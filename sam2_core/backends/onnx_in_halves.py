"""A network of one image in float32, rewritten for a GPU: in batches and in halves.

Files of convolutional networks, such as detectors, compute in float32 and often take one image at a
time. Here, when the file is opened, the first size of everything is freed and what follows the
first convolution computes in halves. The first convolution stays in float32: it sees pixels up to
255, and ONNX Runtime's convolutions of halves add up in halves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sam2_core.backends.onnx_graph import fold_constants
from sam2_core.types import AutolabelError


def for_gpu(data: bytes, *, halves: bool = True) -> bytes:
    """Return a network of one image at a time as one of any number, in halves.

    Args:
        data: an ONNX file with one input (1 or B, 3, H, W) and one output, both float32.
        halves: else it stays in float32.

    """
    import onnx

    model = onnx.load_from_string(data)
    fold_constants(model.graph)
    _free_batch(model.graph)
    if halves:
        _in_halves(model.graph)
    del model.graph.value_info[:]
    serialised: bytes = model.SerializeToString()
    return serialised


def _free_batch(graph: Any) -> None:
    """Leave the number of images open; shapes that name it copy it from what is reshaped."""
    import onnx

    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "B"
    shapes = set()
    for node in graph.node:
        if node.op_type == "Reshape":
            shapes.add(node.input[1])
            # A zero is to mean "as it was", which this attribute would turn off.
            kept = [one for one in node.attribute if one.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(kept)
    values = [tensor for tensor in graph.initializer if tensor.name in shapes]
    values += [
        node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.output[0] in shapes
    ]
    for tensor in values:
        sizes = np.array(onnx.numpy_helper.to_array(tensor))
        if len(sizes) > 1 and sizes[0] == 1:
            sizes[0] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(sizes, tensor.name))
    _repeat_constants(graph)


def _repeat_constants(graph: Any) -> None:
    """Repeat what is joined to every image's rows: zeros made of those rows are added to it."""
    import onnx

    ones = {t.name for t in graph.initializer if len(t.dims) > 1 and t.dims[0] == 1}
    make = onnx.helper.make_node
    for node in list(graph.node):
        constant = [name for name in node.input if name in ones]
        if node.op_type != "Concat" or not constant or len(constant) == len(node.input):
            continue
        rows = next(name for name in node.input if name not in ones)
        zero, first = f"{rows}_zero", f"{rows}_one_column"
        for name, sizes in ((f"{zero}_from", [0]), (f"{zero}_to", [1]), (f"{zero}_axis", [-1])):
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(sizes), name))
        limit = onnx.numpy_helper.from_array(np.float32(0), f"{zero}_limit")
        graph.initializer.append(limit)
        made = [
            make("Slice", [rows, f"{zero}_from", f"{zero}_to", f"{zero}_axis"], [first]),
            make("Clip", [first, f"{zero}_limit", f"{zero}_limit"], [zero]),
            *(make("Add", [name, zero], [f"{name}_each"]) for name in constant),
        ]
        given = [f"{name}_each" if name in constant else name for name in node.input]
        at = next(i for i, one in enumerate(graph.node) if one.output[0] == node.output[0])
        graph.node[at].input[:] = given
        for offset, one in enumerate(made):
            graph.node.insert(at + offset, one)


def _in_halves(graph: Any) -> None:
    """Compute everything behind the first convolution in halves; the output is float32 again."""
    import onnx

    stem = _stem(graph)
    made = {name for node in stem for name in node.output}
    kept = {name for node in stem for name in node.input}
    types = onnx.TensorProto
    for tensor in graph.initializer:
        if (
            tensor.data_type == types.FLOAT
            and tensor.name not in kept
            and not _is_scale(graph, tensor)
        ):
            values = np.asarray(onnx.numpy_helper.to_array(tensor))
            halves = values.clip(-65504, 65504).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(halves, tensor.name))
    for node in graph.node:
        if node.output[0] in made:
            continue
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == types.FLOAT:
                attribute.i = types.FLOAT16
            if node.op_type == "Constant" and attribute.t.data_type == types.FLOAT:
                values = np.asarray(onnx.numpy_helper.to_array(attribute.t))
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16)))
    first, output = stem[-1].output[0], graph.output[0].name
    for node in graph.node:
        if node.output[0] not in made:
            node.input[:] = [f"{first}_half" if one == first else one for one in node.input]
        node.output[:] = [f"{output}_half" if one == output else one for one in node.output]
    make = onnx.helper.make_node
    at = list(graph.node).index(stem[-1]) + 1
    graph.node.insert(at, make("Cast", [first], [f"{first}_half"], to=types.FLOAT16))
    graph.node.append(make("Cast", [f"{output}_half"], [output], to=types.FLOAT))


def _stem(graph: Any) -> list[Any]:
    """Return the nodes up to the first convolution, with what prepares its weights."""
    nodes = list(graph.node)
    first = next((i for i, node in enumerate(nodes) if node.op_type == "Conv"), None)
    if first is None:
        raise AutolabelError("a network without a convolution")
    needed, stem = set(nodes[first].input), [nodes[first]]
    for node in reversed(nodes[:first]):
        if needed & set(node.output):
            needed |= set(node.input)
            stem.insert(0, node)
    return stem


def _is_scale(graph: Any, tensor: Any) -> bool:
    """Whether a tensor holds scales of a `Resize`, which are float32 always."""
    return any(node.op_type == "Resize" and tensor.name in node.input[1:] for node in graph.node)
