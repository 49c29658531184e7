"""An ONNX graph that is rewritten in place: who makes and who reads each tensor, known shapes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt


class OnnxGraph:
    """An ONNX graph, who makes and who reads each tensor, and the shapes that are known."""

    def __init__(self, model: Any) -> None:
        import onnx

        self.onnx, self.graph = onnx, model.graph
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        self.shapes: dict[str, list[int]] = {
            tensor.name: [dim.dim_value or -1 for dim in tensor.type.tensor_type.shape.dim]
            for tensor in [*inferred.value_info, *inferred.input, *inferred.output]
        }
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        self.shapes |= {name: list(tensor.dims) for name, tensor in self.constants.items()}
        self.outputs = {tensor.name for tensor in self.graph.output}
        self.index()

    def index(self) -> None:
        """Note makers and readers again, after nodes have changed."""
        self.made = {name: node for node in self.graph.node for name in node.output}
        self.readers: dict[str, list[Any]] = defaultdict(list)
        for node in self.graph.node:
            for name in node.input:
                self.readers[name].append(node)

    def made_by(self, name: str, kind: str) -> Any:
        """Return the node of a kind that makes a tensor, or None."""
        node = self.made.get(name)
        return node if node is not None and node.op_type == kind else None

    def only_reader(self, name: str, kind: str) -> Any:
        """Return the node of a kind that alone reads a tensor, or None."""
        readers = self.readers[name]
        alone = len(readers) == 1 and name not in self.outputs
        return readers[0] if alone and readers[0].op_type == kind else None

    def values(self, name: str) -> npt.NDArray[Any] | None:
        """Return a constant's values, or None for what is not a constant."""
        found = self.constants.get(name)
        return None if found is None else np.asarray(self.onnx.numpy_helper.to_array(found))

    def constant(self, values: Any, dtype: Any, name: str) -> str:
        """Add a constant."""
        tensor = self.onnx.numpy_helper.from_array(np.asarray(values, dtype), name)
        self.graph.initializer.append(tensor)
        return name

    def insert(self, before: Any, nodes: list[Any]) -> None:
        """Put nodes in front of a node."""
        at = next(i for i, node in enumerate(self.graph.node) if node is before)
        for offset, node in enumerate(nodes):
            self.graph.node.insert(at + offset, node)

    def reshape(self, name: str, shape: list[int], result: str) -> Any:
        """Return a node that views a tensor in another shape; copies nothing."""
        sizes = self.constant(shape, np.int64, f"{result}_shape")
        return self.onnx.helper.make_node("Reshape", [name, sizes], [result], name=result)

    def remove_unused(self) -> None:
        """Drop nodes that nothing reads any more, and their constants."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.graph.node):
            if needed & set(node.output):
                kept.append(node)
                needed |= set(node.input)
        del self.graph.node[:]
        self.graph.node.extend(reversed(kept))
        constants = [tensor for tensor in self.graph.initializer if tensor.name in needed]
        del self.graph.initializer[:]
        self.graph.initializer.extend(constants)

    def replace(self, old: list[Any], nodes: list[Any]) -> None:
        """Put nodes where the last of the old ones was."""
        self.insert(old[-1], nodes)
        for node in {node.output[0]: node for node in old}.values():
            self.graph.node.remove(node)
        self.index()


def fold_constants(graph: Any) -> None:
    """Cast and transpose weights now: files may hold them in another form than they are used in."""
    import onnx

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
