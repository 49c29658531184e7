"""A traced module's ONNX graph, and the parts and variants of it that become files. Needs torch."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sam2_core.export_jobs import DYNAMIC
from sam2_core.onnx_contract import FEATURES

OPSET = 20  # the first with a native Gelu


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's notes about packages and operators that are not used here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def traced(module: Any, example: dict[str, Any], outputs: tuple[str, ...], folder: Path) -> Any:
    """Export one module and return the ONNX model.

    Args:
        module: what to trace.
        example: its inputs by name.
        outputs: names of its outputs.
        folder: for a file that is removed again.

    """
    import onnx
    import torch

    symbols: dict[str, Any] = {}
    shapes = {
        name: {
            axis: symbols.setdefault(symbol, torch.export.Dim(symbol))
            for axis, symbol in DYNAMIC.get(name, {}).items()
        }
        for name in example
    }
    path = folder / "traced.onnx"
    with _quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            # eval() on the wrapper itself: an exporter that restores training mode would switch
            # the single-mask choice off.
            module.eval(),
            (),
            str(path),
            kwargs=example,
            input_names=list(example),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )
    try:
        return onnx.load(str(path))
    finally:
        path.unlink()


def extract(graph: Any, inputs: list[str], outputs: tuple[str, ...]) -> Any:
    """Return the part of a graph that some outputs need; `x_multi` is renamed to `x`."""
    from onnx.utils import Extractor

    part = Extractor(graph).extract_model(inputs, list(outputs))
    renames = {name: name.removesuffix("_multi") for name in outputs}
    for node in part.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = renames.get(name, name)
    for value in part.graph.output:
        value.name = renames[value.name]
    return part


def save(graph: Any, path: Path, metadata: dict[str, str]) -> None:
    """Write a graph with its metadata and without what it does not need."""
    import onnx

    onnx.helper.set_model_props(graph, metadata)
    del graph.graph.value_info[:]  # sizes are inferred again; they double a small file
    for node in graph.graph.node:  # the exporter's stack traces hold paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(graph, str(path))


def single_image(graph: Any) -> Any:
    """Return the graph for features of one image: what was gathered by image is broadcast.

    `image_index` stays an input, all zeros.
    """
    index = {"image_index"}
    for node in graph.graph.node:
        if node.op_type == "Reshape" and node.input[0] == "image_index":
            index.add(node.output[0])
    replaced = {
        node.output[0]: node.input[0]
        for node in graph.graph.node
        if node.op_type == "Gather" and node.input[1] in index
    }
    if not replaced:
        raise RuntimeError("the exporter wrote no Gather by image_index")
    kept = [node for node in graph.graph.node if node.output[0] not in replaced]
    del graph.graph.node[:]
    graph.graph.node.extend(kept)
    for node in graph.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = replaced.get(name, name)
    for value in graph.graph.input:
        if value.name in FEATURES:
            value.type.tensor_type.shape.dim[0].dim_value = 1
    return graph
