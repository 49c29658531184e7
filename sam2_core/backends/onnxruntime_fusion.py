"""Fewer passes over memory on ONNX Runtime's CUDA provider: its own operators in an exported graph.

ONNX has no names for these, so they are put in when a graph is opened, and other runtimes read the
same files. On an H200 base_plus took 17.6 ms with its graphs as they are; where the time went:

- attention as products and a softmax writes every score: `MultiHeadAttention` does not, and reads
  queries, keys and values where they lie, without transposing them by head;
- an addition that repeats one image's values for every prompt runs three times slower than one
  over flat arrays, and with Gelu behind it both are one `BiasGelu`;
- `LayerNormalization` computes its sums value by value with divisions. `SkipLayerNormalization`
  takes 0.34 ms for 136 boxes where a sum and a `LayerNormalization` take 0.90. Its sums are halves;
  the error of its results is a quarter larger than that of rounding them to halves alone;
- both spend a block of threads on a row, however short: see `short_norm`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.onnx_graph import OnnxGraph, fold_constants

logger = logging.getLogger(__name__)
CONTRIB = "com.microsoft"
# Below this an operator's time is its launch.
_LARGE_ROW = 1 << 14


def fused_model(path: Path) -> bytes | None:
    """Return a graph file's model with fused operators; None where nothing can be done.

    Args:
        path: an ONNX file, weights in it or beside it.

    """
    if find_spec("onnx") is None:
        logger.warning("%s runs without fused operators: the extra gpu brings onnx", path.name)
        return None
    import onnx

    model = onnx.load(str(path))
    fold_constants(model.graph)
    graph = OnnxGraph(model)
    changed = fuse_attention(graph) + fuse_sums(graph)
    if not changed:
        return None
    graph.remove_unused()
    model.opset_import.append(onnx.helper.make_opsetid(CONTRIB, 1))
    del model.graph.value_info[:]
    logger.info("%s: %d places fused", path.name, changed)
    serialised: bytes = model.SerializeToString()
    return serialised


def fuse_attention(graph: OnnxGraph) -> int:
    """Make each product-softmax-product by head one operator; returns how many."""
    found = [node for node in graph.graph.node if node.op_type == "Softmax"]
    return sum(_attention(graph, node) for node in found)


def _by_head(graph: OnnxGraph, name: str, order: list[int]) -> tuple[str, list[int]] | None:
    """Return the tensor that (N, S, heads, d) was made of and that shape, if it was."""
    swap = graph.made_by(name, "Transpose")
    if swap is None or list(swap.attribute[0].ints) != order:
        return None
    view = graph.made_by(swap.input[0], "Reshape")
    shape = None if view is None else graph.shapes.get(view.output[0])
    if shape is None or len(shape) != 4 or min(shape[1:]) < 1:
        return None
    return view.input[0], shape


def _attention(graph: OnnxGraph, softmax: Any) -> bool:
    scores = graph.made_by(softmax.input[0], "MatMul")
    weighted = graph.only_reader(softmax.output[0], "MatMul")
    swap = None if weighted is None else graph.only_reader(weighted.output[0], "Transpose")
    if scores is None or swap is None or list(swap.attribute[0].ints) != [0, 2, 1, 3]:
        return False
    q = _by_head(graph, scores.input[0], [0, 2, 1, 3])
    k = _by_head(graph, scores.input[1], [0, 2, 3, 1])
    v = _by_head(graph, weighted.input[1], [0, 2, 1, 3])
    # Attention among a prompt's few tokens is not worth it.
    if q is None or k is None or v is None:
        return False
    heads, depth = q[1][2:]
    name = f"{swap.output[0]}_fused"
    flat = [f"{name}_{part}" for part in "qkv"]
    nodes = [
        graph.reshape(source, [-1, shape[1], heads * depth], to)
        for (source, shape), to in zip((q, k, v), flat, strict=True)
    ]
    nodes.append(
        graph.onnx.helper.make_node(
            "MultiHeadAttention", flat, [name], name=name, domain=CONTRIB,
            num_heads=heads, scale=1.0,
        )
    )  # fmt: skip
    nodes.append(graph.reshape(name, [-1, q[1][1], heads, depth], swap.output[0]))
    graph.insert(swap, nodes)
    graph.graph.node.remove(swap)
    graph.index()
    return True


def fuse_sums(graph: OnnxGraph) -> int:
    """Rewrite sums as large as the image for every prompt; returns how many."""
    found = [node for node in graph.graph.node if node.op_type == "Add"]
    return sum(_sum(graph, node) for node in found)


def _sum(graph: OnnxGraph, node: Any) -> bool:
    """Rewrite a sum of two tensors for every prompt, or of one and what all prompts share."""
    shapes = [graph.shapes.get(name) for name in node.input]
    for i in (0, 1):
        many, other = shapes[i], shapes[1 - i]
        if (
            many is None or other is None or len(many) < 2 or many[0] != -1
            or many[1:] != other[1:] or min(other[1:]) < 1 or np.prod(other[1:]) < _LARGE_ROW
        ):  # fmt: skip
            continue
        norm = graph.only_reader(node.output[0], "LayerNormalization")
        names = node.input[i], node.input[1 - i]
        if norm is not None:
            found = NormedSum(node, norm, *names)
            if other[0] != 1 or not short_norm(graph, found):
                _skip_norm(graph, found, other)
        elif other[0] == 1:
            _flat_sum(graph, node, *names, other)
        else:
            continue
        graph.index()
        return True
    return False


def _flat_sum(graph: OnnxGraph, node: Any, many: str, one: str, shape: list[int]) -> None:
    gelu = graph.only_reader(node.output[0], "Gelu")
    last = node if gelu is None else gelu
    name = f"{last.output[0]}_flat"
    row = int(np.prod(shape))
    nodes = [
        graph.reshape(many, [-1, row], f"{name}_many"),
        graph.reshape(one, [row], f"{name}_one"),
        graph.onnx.helper.make_node(
            "Add" if gelu is None else "BiasGelu", [f"{name}_many", f"{name}_one"], [name],
            name=name, domain="" if gelu is None else CONTRIB,
        ),
        graph.reshape(name, [-1, *shape[1:]], last.output[0]),
    ]  # fmt: skip
    graph.replace([node, last], nodes)


def _skip_norm(graph: OnnxGraph, found: NormedSum, shape: list[int]) -> None:
    name = f"{found.norm.output[0]}_fused"
    rows, channels = int(np.prod(shape[1:-1])), shape[-1]
    nodes = [
        graph.reshape(found.many, [-1, rows, channels], f"{name}_many"),
        graph.reshape(found.other, [shape[0], rows, channels], f"{name}_other"),
        graph.onnx.helper.make_node(
            "SkipLayerNormalization", [f"{name}_many", f"{name}_other", *found.norm.input[1:]],
            [name], name=name, domain=CONTRIB, epsilon=found.epsilon(),
        ),
        graph.reshape(name, [-1, *shape[1:]], found.norm.output[0]),
    ]  # fmt: skip
    graph.replace([found.node, found.norm], nodes)


_LONGEST_ROW = 64
# Largest weight of what is squared: a half holds squares of up to 65,504 and is precise above 6e-5,
# so that rows with a mean square of 0.01 to 100,000 keep all their digits.
_LARGEST_SCALE = 0.25
_LEAST_OF_LARGEST = 1 / 16  # a norm's smallest weight; below, squares of its channel lose digits
_BIAS_LENGTH = 1024  # of a repeated bias: `BiasGelu` is slow when its bias is short


@dataclass(frozen=True, eq=False)
class NormedSum:
    """A sum that is normalised at once and read by nobody else.

    Attributes:
        node: the sum.
        norm: its `LayerNormalization`.
        many: the input that differs from prompt to prompt, (P, ..., C).
        other: the other one, (P or 1, ..., C).

    """

    node: Any
    norm: Any
    many: str
    other: str

    def epsilon(self) -> float:
        """Return what is added to the variance."""
        return float(next(a.f for a in self.norm.attribute if a.name == "epsilon"))


def short_norm(graph: OnnxGraph, found: NormedSum) -> bool:
    """Rewrite the half-precision norm of `x @ weight + other`, if rows are short.

    Upscaling normalises 64 channels of every quarter of every cell: two million rows at 136 boxes,
    for which `LayerNormalization` takes 1.9 ms on an H200 and `SkipLayerNormalization` 1.3. Here
    the mean is taken off the weights of the product before, which is exact; what is left is to
    divide by the root of the mean square, and that is a product with a column of constants and one
    multiplication: 0.5 ms. Rows are scaled by the norm's own weights beforehand, also in that
    product.

    Args:
        graph: that it belongs to.
        found: whose other input is the same for all prompts.

    Returns:
        Whether it was rewritten.

    """
    view = graph.made_by(found.many, "Reshape")
    product = None if view is None else graph.made_by(view.input[0], "MatMul")
    if product is None:
        return False
    weight, gamma, beta = map(graph.values, (product.input[1], *found.norm.input[1:3]))
    if weight is None or gamma is None or beta is None or weight.dtype != np.float16:
        return False
    shape, large = graph.shapes[found.other], np.abs(gamma).max()
    if (
        shape[-1] > _LONGEST_ROW
        or int(np.prod(shape)) % _BIAS_LENGTH
        or np.abs(gamma).min() < _LEAST_OF_LARGEST * large
    ):
        return False
    scale = _LARGEST_SCALE / float(large)
    channels = len(gamma)
    # Takes the mean off rows and multiplies them with the norm's weights.
    centre = (np.eye(channels) - 1 / channels) * (gamma.astype(np.float64) * scale)
    centred = weight.astype(np.float64).reshape(len(weight), -1, channels) @ centre
    mean = 1 / (channels * gamma.astype(np.float64)[:, None] ** 2)
    _rewrite(graph, found, product.input[0], {
        "weight": centred.reshape(weight.shape),
        "centre": centre,
        "mean": mean,
        "bias": np.tile(beta, _BIAS_LENGTH // channels),
        "epsilon": np.float32(found.epsilon() * scale**2),
    })  # fmt: skip
    return True


def _rewrite(
    graph: OnnxGraph, found: NormedSum, x: str, values: dict[str, npt.NDArray[Any] | np.float32]
) -> None:
    norm, shape = found.norm, graph.shapes[found.other]
    name = f"{norm.output[0]}_short"
    constants = {
        key: graph.constant(
            value, np.float32 if key == "epsilon" else np.float16, f"{name}_{key}_values"
        )
        for key, value in values.items()
    }
    types, make = graph.onnx.TensorProto, graph.onnx.helper.make_node
    row = int(np.prod(shape))
    nodes = [
        make("MatMul", [x, constants["weight"]], [f"{name}_product"]),
        make("MatMul", [found.other, constants["centre"]], [f"{name}_one"]),
        graph.reshape(f"{name}_product", [-1, row], f"{name}_many"),
        graph.reshape(f"{name}_one", [row], f"{name}_flat"),
        make("Add", [f"{name}_many", f"{name}_flat"], [f"{name}_sum"]),
        graph.reshape(f"{name}_sum", [1, -1, shape[-1]], f"{name}_rows"),
        make("Mul", [f"{name}_rows", f"{name}_rows"], [f"{name}_squares"]),
        make("MatMul", [f"{name}_squares", constants["mean"]], [f"{name}_mean_square"]),
        make("Cast", [f"{name}_mean_square"], [f"{name}_precise"], to=types.FLOAT),
        make("Add", [f"{name}_precise", constants["epsilon"]], [f"{name}_above"]),
        make("Sqrt", [f"{name}_above"], [f"{name}_root"]),
        make("Reciprocal", [f"{name}_root"], [f"{name}_inverse"]),
        make("Cast", [f"{name}_inverse"], [f"{name}_factor"], to=types.FLOAT16),
        # ONNX Runtime is fast where one factor has the shape (rows, 1) and the other (1, rows, C).
        graph.reshape(f"{name}_factor", [-1, 1], f"{name}_column"),
        make("Mul", [f"{name}_rows", f"{name}_column"], [f"{name}_normal"]),
    ]  # fmt: skip
    gelu = graph.only_reader(norm.output[0], "Gelu")
    last = norm if gelu is None else gelu
    nodes += [
        graph.reshape(f"{name}_normal", [-1, _BIAS_LENGTH], f"{name}_long"),
        make("Add" if gelu is None else "BiasGelu", [f"{name}_long", constants["bias"]],
             [f"{name}_done"], domain="" if gelu is None else CONTRIB),
        graph.reshape(f"{name}_done", [-1, *shape[1:]], last.output[0]),
    ]  # fmt: skip
    for number, made in enumerate(nodes):
        made.name = made.name or f"{name}_{number}"
    graph.replace([found.node, norm, last], nodes)
