"""Normalisation of short rows without ONNX Runtime's kernels for it, which spend a block on a row.

Upscaling normalises 64 channels of every quarter of every cell: two million rows at 136 boxes, for
which `LayerNormalization` takes 1.9 ms on an H200 and `SkipLayerNormalization` 1.3. Here the mean
is taken off the weights of the product before, which is exact; what is left is to divide by the
root of the mean square, and that is a product with a column of constants and one multiplication:
0.5 ms. Rows are scaled by the norm's own weights beforehand, also in that product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sam2_core.backends.onnx_graph import OnnxGraph

CONTRIB = "com.microsoft"
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
