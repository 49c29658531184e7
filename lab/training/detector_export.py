"""The compact detector as an ONNX file of YOLOX's form, half precision on disk."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.training.config import DetectorConfig
from lab.training.detector_model import CompactDetector, YoloxOutput, detector_of
from lab.training.half_storage import store_in_half

OPSET = 20


def fuse_norms(network: CompactDetector) -> None:
    """Fold every batch normalisation into the convolution before it."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for module in network.modules():
        if hasattr(module, "conv") and hasattr(module, "norm"):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.norm = torch.nn.Identity()


def export_detector(
    weights: dict[str, Tensor], config: DetectorConfig, names: tuple[str, ...], path: Path,
    facts: dict[str, Any],
) -> None:  # fmt: skip
    """Write the detector.

    Args:
        weights: of `CompactDetector`, as trained.
        config: its dimensions and input size.
        names: of the classes, in the order of its outputs.
        path: of the .onnx file.
        facts: more metadata properties.

    """
    import onnx

    network = detector_of(config, len(names))
    network.load_state_dict(weights)
    network.eval()
    fuse_norms(network)
    for weight in network.parameters():  # so that a half holds them exactly
        if weight.ndim > 1:
            weight.data = weight.data.half().float()
    example = torch.zeros(1, 3, *config.input_hw)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        traced = Path(folder) / "traced.onnx"
        torch.onnx.export(
            YoloxOutput(network).eval(), (example,), str(traced), input_names=["images"],
            output_names=["output"], opset_version=OPSET, dynamo=True, external_data=False,
            verbose=False,
        )  # fmt: skip
        graph = onnx.load(str(traced))
    for node in graph.graph.node:  # the exporter's stack traces hold paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    del graph.graph.value_info[:]
    store_in_half(graph)
    properties = {"classes": json.dumps(list(names)), **{k: str(v) for k, v in facts.items()}}
    onnx.helper.set_model_props(graph, properties)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(graph, str(path))
