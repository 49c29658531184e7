"""From trained weights to what the package carries: one weights file and small graphs over it.

The weights lie once, in a safetensors file of half precision with Meta's names: PyTorch loads it
as a checkpoint, and the ONNX graphs beside it point into it (external data), cast to float32 when
ONNX Runtime folds constants while loading. What the restructured graphs have folded is no longer
among those weights: it lies once in a second file, which all graphs share.
"""

from __future__ import annotations

import copy
import json
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.training.half_storage import SMALLEST, store_in_half
from sam2_core.backends.model_folder import MEMORY_FOLDED, MEMORY_WEIGHTS
from sam2_core.cache import file_sha256
from sam2_core.export import export_memory, export_model
from sam2_core.presets import Preset

WEIGHTS_FILE = "compact.safetensors"
FOLDED_FILE = "folded.bin"
GRAPH_FOLDER = "restructured"
# Behind the names of the graphs in half precision, for GPUs.
HALF = "_fp16"
# Smaller tensors stay in their graph: pointing to them takes nearly as much.
SMALLEST_SHARED_BYTES = 256
# What a GPU runs.
ON_GPU = ("encoder", "decoder", "decoder_mask", "encoder_close_up", "decoder_close_up")


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


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor lie: file, offset and shape; `turned` when transposed there."""

    file: str
    offset: int
    length: int
    shape: list[int]
    turned: bool = False


@dataclass
class SharedWeights:
    """Half precision weights by content: those of the checkpoint, and those added on the way."""

    places: dict[bytes, Place]
    folded: bytearray = field(default_factory=bytearray)
    folded_file: str = FOLDED_FILE

    @staticmethod
    def of(checkpoint: Path) -> SharedWeights:
        """Know the matrices of a checkpoint, as they lie and transposed, and fused ones' thirds."""
        data = checkpoint.read_bytes()
        places: dict[bytes, Place] = {}
        for kind, shape, offset, length in safetensors_places(checkpoint).values():
            if kind != "F16" or length < 2 * SMALLEST:
                continue
            rows = shape[0]
            thirds = 3 if len(shape) == 2 and rows % 3 == 0 else 1
            for parts in {1, thirds}:
                for start in range(offset, offset + length, length // parts):
                    raw = data[start : start + length // parts]
                    part = [rows // parts, *shape[1:]]
                    places.setdefault(raw, Place(checkpoint.name, start, len(raw), part))
                    if len(shape) == 2:
                        values: npt.NDArray[np.float16] = np.frombuffer(raw, np.float16)
                        turned = values.reshape(part).T.tobytes()
                        place = Place(checkpoint.name, start, len(raw), part, turned=True)
                        places.setdefault(turned, place)
        return SharedWeights(places)

    def place(self, raw: bytes, shape: list[int]) -> Place:
        """Find a tensor's bytes, or add them."""
        found = self.places.get(raw)
        if found is None or (found.turned and found.shape[::-1] != shape):
            found = Place(self.folded_file, len(self.folded), len(raw), shape)
            self.folded += raw
            self.places[raw] = found
        return found


def point_into(graph: Any, weights: SharedWeights) -> None:
    """Replace a graph's weights by references into the shared files.

    Args:
        graph: an ONNX model after `store_in_half`.
        weights: where they lie; gets those that are not there yet.

    """
    from onnx import TensorProto, helper

    for tensor in graph.graph.initializer:
        floats = (TensorProto.FLOAT16, TensorProto.FLOAT)
        if tensor.data_type not in floats or len(tensor.raw_data) < SMALLEST_SHARED_BYTES:
            continue
        place = weights.place(tensor.raw_data, list(tensor.dims))
        if place.turned:
            turned = f"{tensor.name}_turned"
            for reader in graph.graph.node:
                reader.input[:] = [turned if one == tensor.name else one for one in reader.input]
            node = helper.make_node("Transpose", [tensor.name], [turned], perm=[1, 0])
            graph.graph.node.insert(0, node)
            tensor.dims[:] = place.shape
        tensor.ClearField("raw_data")
        entries = (("location", place.file), ("offset", place.offset), ("length", place.length))
        for key, value in entries:
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        tensor.data_location = TensorProto.EXTERNAL


def shorten_names(graph: Any) -> None:
    """Name nodes not at all and inner tensors by number: names were half of a graph's bytes."""
    inner = graph.graph
    kept = {value.name for value in (*inner.input, *inner.output)} | {""}
    short: dict[str, str] = {}

    def renamed(name: str) -> str:
        return name if name in kept else short.setdefault(name, f"t{len(short)}")

    for tensor in inner.initializer:
        tensor.name = renamed(tensor.name)
    for node in inner.node:
        node.ClearField("name")
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    inner.ClearField("value_info")  # of the old names; shapes are inferred when loading


def bundle_mask_model(weights: Path, preset: Preset, folder: Path) -> None:
    """Write the bundled mask model into a folder.

    Args:
        weights: `mask.safetensors` of a run.
        preset: its dimensions.
        folder: gets a folder with the weights files and the graphs.

    """
    from lab.training.train import load_weights
    from sam2_core.architecture import build_model

    graphs = folder / GRAPH_FOLDER
    graphs.mkdir(parents=True, exist_ok=True)
    target = graphs / WEIGHTS_FILE  # beside the graphs: ONNX Runtime reads nothing above them
    target.write_bytes(weights.read_bytes())
    # What loading compares with, and would record here: a package's folder may be read-only.
    recorded = target.with_name(f"{target.name}.sha256")
    recorded.write_text(f"{file_sha256(target)}  {target.name}\n", encoding="utf-8")
    model = build_model(preset)
    model.load_state_dict(load_weights(target))
    with tempfile.TemporaryDirectory() as temporary:
        exports = {
            precision: export_model(
                copy.deepcopy(model).eval(), Path(temporary) / precision,
                checkpoint_sha256=file_sha256(target),
                weights="bundled: trained by this project on rendered scenes and photographs",
                graph=GRAPH_FOLDER, precision=precision, only=only,
            )
            for precision, only in (("fp32", ()), ("fp16", ON_GPU))
        }  # fmt: skip
        write_shared(exports["fp32"], exports["fp16"], graphs)


def bundle_memory(memory: Path, graphs: Path) -> None:
    """Add a memory to the bundled mask model: its weights, its graphs and what they have to say.

    Args:
        memory: `memory.safetensors` of a run of `lab.training.memory`.
        graphs: folder of the bundled graphs.

    """
    import onnx

    from sam2_core.checkpoints import load_checkpoint, load_memory
    from sam2_core.trust.calibration import MEMORY_ANSWERS
    from sam2_core.trust.following import torch_follows

    weights, facts = graphs / WEIGHTS_FILE, json.loads((graphs / "model.json").read_text())
    target = graphs / MEMORY_WEIGHTS
    target.write_bytes(memory.read_bytes())
    model = load_checkpoint(weights)
    learned = load_memory(target, model.preset)
    assert learned is not None  # noqa: S101 - it is a memory's file
    places = SharedWeights.of(weights).places | SharedWeights.of(target).places
    shared, written = SharedWeights(places, folded_file=MEMORY_FOLDED), [target]
    with tempfile.TemporaryDirectory() as temporary:
        export_memory(model, learned, Path(temporary))
        for path in sorted(Path(temporary).glob("*.onnx")):
            graph = onnx.load(str(path))
            store_in_half(graph)
            point_into(graph, shared)
            shorten_names(graph)
            written.append(graphs / path.name)
            written[-1].write_bytes(graph.SerializeToString())
    written.append(graphs / MEMORY_FOLDED)
    written[-1].write_bytes(shared.folded)
    for path in written:
        facts["files"][path.name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    (graphs / "model.json").write_text(json.dumps(facts, indent=2) + "\n")
    torch_follows(model, learned, file_sha256(weights)).write(graphs / MEMORY_ANSWERS)


def write_shared(restructured: Path, half: Path, graphs: Path) -> None:
    """Write exported graphs so that they share one copy of their weights.

    Args:
        restructured: folder of the restructured fp32 export, with its model.json.
        half: folder of the restructured fp16 export.
        graphs: folder that holds the weights file; gets everything else.

    """
    import onnx

    shared = SharedWeights.of(graphs / WEIGHTS_FILE)
    facts = json.loads((restructured / "model.json").read_text())
    sources = {path.name: path for path in sorted(restructured.glob("*.onnx"))}
    sources |= {f"{path.stem}{HALF}.onnx": path for path in sorted(half.glob("*.onnx"))}
    facts["also"] = {"fp16": HALF}
    for name, path in sources.items():
        graph = onnx.load(str(path))
        store_in_half(graph)
        point_into(graph, shared)
        shorten_names(graph)
        written = graphs / name
        written.write_bytes(graph.SerializeToString())
    (graphs / FOLDED_FILE).write_bytes(shared.folded)
    for name in (*sources, WEIGHTS_FILE, FOLDED_FILE):
        written = graphs / name
        size = written.stat().st_size
        facts["files"][name] = {"sha256": file_sha256(written), "bytes": size}
    (graphs / "model.json").write_text(json.dumps(facts, indent=2) + "\n")
