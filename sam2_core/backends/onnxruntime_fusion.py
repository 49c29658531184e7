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
- both spend a block of threads on a row, however short: see `onnxruntime_short_norm`.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.backends.onnx_graph import OnnxGraph, fold_constants
from sam2_core.backends.onnxruntime_short_norm import CONTRIB, NormedSum, short_norm

logger = logging.getLogger(__name__)
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
