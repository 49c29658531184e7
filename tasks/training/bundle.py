"""From trained weights to what the package carries: one weights file and small graphs over it.

The weights lie once, in a safetensors file of half precision with Meta's names: PyTorch loads it
as a checkpoint, and the ONNX graphs beside it point into it (external data), cast to float32 when
ONNX Runtime folds constants while loading.
"""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.cache import file_sha256
from sam2_core.export import ExportOptions, export_model
from sam2_core.presets import Preset
from tasks.training.half_storage import SMALLEST, store_in_half

WEIGHTS_FILE = "compact.safetensors"
GRAPH_FOLDER = "published-fp32"


def safetensors_places(path: Path) -> dict[str, tuple[str, list[int], int, int]]:
    """Find each tensor of a safetensors file: name -> type, shape, offset, length in bytes."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    start = 8 + size
    return {
        name: (
            entry["dtype"], entry["shape"],
            start + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }  # fmt: skip


def _known(path: Path) -> dict[bytes, tuple[int, int, list[int], bool]]:
    """Half precision matrices by content, as they lie and transposed: offset, length, shape."""
    data = path.read_bytes()
    known: dict[bytes, tuple[int, int, list[int], bool]] = {}
    for kind, shape, offset, length in safetensors_places(path).values():
        if kind != "F16" or length < 2 * SMALLEST:
            continue
        raw = data[offset : offset + length]
        known.setdefault(raw, (offset, length, shape, False))
        if len(shape) == 2:
            values: npt.NDArray[np.float16] = np.frombuffer(raw, np.float16).reshape(shape)
            known.setdefault(values.T.tobytes(), (offset, length, shape, True))
    return known


def point_into(graph: Any, weights: Path, location: str) -> int:
    """Replace a graph's half precision weights by references into a safetensors file.

    Args:
        graph: an ONNX model after `store_in_half`.
        weights: the file.
        location: the file as seen from the graph's folder.

    Returns:
        Bytes of weights that were not found there and stay in the graph.

    """
    from onnx import TensorProto, helper

    known, left = _known(weights), 0
    for tensor in graph.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT16:
            left += len(tensor.raw_data)
            continue
        place = known.get(tensor.raw_data)
        if place is None:
            left += len(tensor.raw_data)
            continue
        offset, length, shape, transposed = place
        if transposed:
            (cast,) = [node for node in graph.graph.node if node.input[:] == [tensor.name]]
            turned = f"{tensor.name}_turned"
            cast.input[0] = turned
            node = helper.make_node("Transpose", [tensor.name], [turned], perm=[1, 0])
            graph.graph.node.insert(0, node)
            tensor.dims[:] = shape
        tensor.ClearField("raw_data")
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        tensor.data_location = TensorProto.EXTERNAL
    return left


def bundle_mask_model(weights: Path, preset: Preset, folder: Path) -> None:
    """Write the bundled mask model into a folder.

    Args:
        weights: `mask.safetensors` of a run.
        preset: its dimensions.
        folder: gets a folder with the weights file and the graphs.

    """
    import onnx

    from sam2_core.architecture import build_model
    from tasks.training.train import load_weights

    graphs = folder / GRAPH_FOLDER
    graphs.mkdir(parents=True, exist_ok=True)
    target = graphs / WEIGHTS_FILE  # beside the graphs: ONNX Runtime reads nothing above them
    target.write_bytes(weights.read_bytes())
    model = build_model(preset)
    model.load_state_dict(load_weights(target))
    with tempfile.TemporaryDirectory() as temporary:
        exported = export_model(
            model.eval(), Path(temporary) / GRAPH_FOLDER, checkpoint_sha256=file_sha256(target),
            weights="bundled: trained by this project on rendered scenes",
            options=ExportOptions("published", "fp32"),
        )  # fmt: skip
        facts = json.loads((exported / "model.json").read_text())
        for path in sorted(exported.glob("*.onnx")):
            graph = onnx.load(str(path))
            store_in_half(graph)
            point_into(graph, target, WEIGHTS_FILE)
            (graphs / path.name).write_bytes(graph.SerializeToString())
            size = (graphs / path.name).stat().st_size
            facts["files"][path.name] = {
                "sha256": file_sha256(graphs / path.name), "bytes": size,
            }  # fmt: skip
    (graphs / "model.json").write_text(json.dumps(facts, indent=2) + "\n")
