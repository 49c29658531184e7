"""Faults planted in exported graphs: what would damage masks and say nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sam2_core.find_weights import BUNDLED_GRAPHS

ROOT = Path(__file__).parents[1]
COMPACT = ROOT / "sam2_core" / "weights" / "compact" / BUNDLED_GRAPHS


def micro_with_memory(folder: Path) -> Path:
    """Export a small model with a memory; its image path is that of `tests/data/micro`."""
    from sam2_core.backends.model_folder import MEMORY_OUTPUTS
    from sam2_core.export import export_memory
    from sam2_core.presets import MICRO
    from sam2_core.trust.calibration import MEMORY_ANSWERS
    from sam2_core.trust.following import torch_follows
    from tests.followed_objects import weights

    shutil.copytree(ROOT / "tests" / "data" / "micro", folder)
    export_memory(*weights(MICRO), folder)
    for name in MEMORY_OUTPUTS:
        as_exported(folder / f"{name}.onnx")
    torch_follows(*weights(MICRO), "random-0").write(folder / MEMORY_ANSWERS)
    return folder


def copy_of_compact(folder: Path) -> Path:
    """Copy what close-ups need of the bundled model."""
    folder.mkdir()
    kept = ("*_close_up.onnx", "*.safetensors", "*.bin", "*.json")
    for pattern in kept:
        for file in COMPACT.glob(pattern):
            shutil.copy(file, folder)
    return folder


def _edit(path: Path, change) -> None:
    model = onnx.load(str(path), load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
    as_exported(path)


def as_exported(path: Path) -> None:
    """Have model.json name a graph as it is now, as an export with the fault would."""
    described = path.parent / "model.json"
    facts = json.loads(described.read_text())
    data = path.read_bytes()
    facts["files"][path.name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    described.write_text(json.dumps(facts))


def _put_behind_input(graph, name: str, *nodes, constants=()) -> None:
    """Let all that reads an input read `<name>_other`, which the nodes make of it."""
    for node in graph.node:
        node.input[:] = [f"{name}_other" if one == name else one for one in node.input]
    for i, node in enumerate(nodes):
        graph.node.insert(i, node)
    graph.initializer.extend(constants)


def _constant(name: str, values) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def _dropped(graph) -> None:
    for name in ("high_res_s0", "high_res_s1"):
        node = helper.make_node("Mul", [name, f"{name}_none"], [f"{name}_other"])
        nothing = _constant(f"{name}_none", np.float32(0))
        _put_behind_input(graph, name, node, constants=[nothing])


def _without_no_mem_embed(graph) -> None:
    raw = (COMPACT / "compact.safetensors").read_bytes()
    tensors = 8 + int.from_bytes(raw[:8], "little")  # behind a length and so much json
    place = json.loads(raw[8:tensors])["no_mem_embed"]
    start, end = place["data_offsets"]
    kind = {"F16": np.float16, "F32": np.float32}[place["dtype"]]
    embed = np.frombuffer(raw[tensors + start : tensors + end], kind).astype(np.float32)
    assert np.abs(embed).max() > 0
    node = helper.make_node("Sub", ["embedding", "no_mem_embed"], ["embedding_other"])
    _put_behind_input(graph, "embedding", node, constants=[_constant("no_mem_embed", embed)])


def _swapped(graph) -> None:
    node = helper.make_node("Gather", ["image", "bgr"], ["image_other"], axis=1)
    _put_behind_input(graph, "image", node, constants=[_constant("bgr", np.array([2, 1, 0]))])


def _coarse(graph) -> None:
    down = helper.make_node("Cast", ["points"], ["points_half"], to=TensorProto.FLOAT16)
    up = helper.make_node("Cast", ["points_half"], ["points_other"], to=TensorProto.FLOAT)
    _put_behind_input(graph, "points", down, up)


def _halved(graph) -> None:
    for node in graph.node:
        node.output[:] = ["iou_whole" if one == "predicted_iou" else one for one in node.output]
        node.input[:] = ["iou_whole" if one == "predicted_iou" else one for one in node.input]
    half = _constant("iou_half", np.float32(0.5))
    graph.node.append(helper.make_node("Mul", ["iou_whole", "iou_half"], ["predicted_iou"]))
    graph.initializer.append(half)


# Name: the graph and what becomes of it.
FAULTS = {
    "high-resolution features dropped": ("decoder", _dropped),
    "no_mem_embed skipped": ("decoder", _without_no_mem_embed),
    "red and blue swapped": ("encoder", _swapped),
    "coordinates in half precision": ("decoder", _coarse),
    "predicted IoU halved": ("decoder", _halved),
}


# A fault of the code before the graph.
RESIZE = "resized without antialias"


def resized_without_antialias(image, size):
    """In the place of `resize_square`: every pixel from the nearest four."""
    import cv2

    return cv2.resize(image.astype(np.float32), (size, size), interpolation=cv2.INTER_LINEAR)


def plant(folder: Path, fault: str, suffix: str = "_close_up") -> Path:
    """Plant a fault in a folder of `copy_of_compact`, or, without the suffix, of any model."""
    graph, change = FAULTS[fault]
    _edit(folder / f"{graph}{suffix}.onnx", change)
    return folder
