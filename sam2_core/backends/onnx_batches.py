"""ONNX networks of one image at a time, such as published detectors, made to take any number."""

from typing import Any

import numpy as np
import onnx


def in_batches(data: bytes) -> bytes:
    """Return a network of one image at a time as one of any number.

    Args:
        data: an ONNX file with one input (1 or B, 3, H, W) and one output, both float32. Shapes
            that name the number of images are copied from what is reshaped.

    """
    model = onnx.load_from_string(data)
    graph = model.graph
    _fold_constants(graph)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "B"
    shapes = set()
    for node in graph.node:
        if node.op_type == "Reshape":
            shapes.add(node.input[1])
            # A zero is to mean "as it was", which this attribute would turn off.
            kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
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
    del graph.value_info[:]
    return model.SerializeToString()


def _fold_constants(graph: Any) -> None:
    """Cast and transpose weights now: files may hold them in another form than they are used in."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type not in {"Cast", "Transpose"} or node.input[0] not in constants:
            continue
        values = np.asarray(onnx.numpy_helper.to_array(constants[node.input[0]]))
        given = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Cast":
            values = values.astype(onnx.helper.tensor_dtype_to_np_dtype(given["to"].i))
        else:
            order = list(given["perm"].ints) if "perm" in given else None
            values = np.ascontiguousarray(values.transpose(order))
        folded = onnx.numpy_helper.from_array(values, node.output[0])
        graph.initializer.append(folded)
        constants[node.output[0]] = folded
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _repeat_constants(graph: Any) -> None:
    """Repeat what is joined to every image's rows: zeros made of those rows are added to it."""
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
        at = next(
            i for i, candidate in enumerate(graph.node) if candidate.output[0] == node.output[0]
        )
        graph.node[at].input[:] = given
        for offset, new_node in enumerate(made):
            graph.node.insert(at + offset, new_node)
