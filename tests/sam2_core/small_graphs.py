"""A model folder that keeps the ONNX contract and is too small to segment anything.

Every output depends on every input, so that a mixed-up image, prompt or buffer changes a number.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sam2_core.types import BOX_BOTTOM_RIGHT, BOX_TOP_LEFT, FORMAT_VERSION, POINT_PADDING, Prompts

SIZE, WIDTH = 64, 8
FACTS = {"preset": "micro", "image_size": SIZE, "checkpoint_sha256": "0" * 64,
         "graph": "restructured", "precision": "fp32",
         "format_version": FORMAT_VERSION}  # fmt: skip


def constant(name: str, values: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def info(name: str, dtype: int, shape: tuple[object, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def save(path: Path, nodes: list, inputs: list, outputs: list, weights: list) -> None:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def write_encoder(path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    cells = {"embedding": (16, WIDTH), "high_res_s0": (4, WIDTH // 8), "high_res_s1": (8, 2)}
    nodes, weights, outputs = [], [], []
    for name, (cell, channels) in cells.items():
        kernel = generator.normal(size=(channels, 3, 1, 1)).astype(np.float32) / 100
        weights.append(constant(f"{name}_kernel", kernel))
        nodes += [
            helper.make_node("AveragePool", ["image"], [f"{name}_pooled"],
                             kernel_shape=[cell, cell], strides=[cell, cell]),
            helper.make_node("Conv", [f"{name}_pooled", f"{name}_kernel"], [name]),
        ]  # fmt: skip
        side = SIZE // cell
        outputs.append(info(name, TensorProto.FLOAT, ("B", channels, side, side)))
    save(path, nodes, [info("image", TensorProto.FLOAT, ("B", 3, SIZE, SIZE))], outputs, weights)


def decoder_nodes(masks: bool) -> list[onnx.NodeProto]:
    """Features of each prompt's image, its points weighted by their labels, and a mask prompt."""
    gathered = [
        helper.make_node("Gather", [name, "image_index"], [f"{name}_own"])
        for name in ("embedding", "high_res_s0", "high_res_s1")
    ]
    means = [
        helper.make_node("ReduceMean", [f"{name}_own", "axes_rest"], [f"{name}_mean"], keepdims=1)
        for name in ("embedding", "high_res_s1")
    ]
    return [
        *gathered,
        *means,
        helper.make_node("Cast", ["labels"], ["labels_float"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["labels_float", "axis_last"], ["labels_3d"]),
        helper.make_node("Mul", ["points", "labels_3d"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axes_points"], ["prompt"], keepdims=0),
        helper.make_node("Reshape", ["prompt", "column"], ["prompt_4d"]),
        helper.make_node("Add", ["embedding_mean", "high_res_s1_mean"], ["context"]),
        helper.make_node("Add", ["context", "prompt_4d"], ["shift"]),
        helper.make_node("Add", ["high_res_s0_own", "shift"], ["plain"]),
        helper.make_node("Add", ["plain", "mask_input"], ["logits"])
        if masks
        else helper.make_node("Identity", ["plain"], ["logits"]),
        helper.make_node("ReduceMean", ["logits", "axes_rest"], ["predicted_iou"], keepdims=0),
        helper.make_node("ReduceMax", ["logits", "axes_rest"], ["object_score"], keepdims=0),
        helper.make_node("ReduceMin", ["logits", "axes_rest"], ["stability"], keepdims=0),
    ]


def write_decoder(path: Path, masks: bool = False, images: int | str = "B") -> None:
    grid = SIZE // 4
    weights = [
        constant("axes_rest", np.array([1, 2, 3])), constant("axis_last", np.array([2])),
        constant("axes_points", np.array([1, 2])), constant("column", np.array([-1, 1, 1, 1])),
    ]  # fmt: skip
    inputs = [
        info("embedding", TensorProto.FLOAT, (images, WIDTH, SIZE // 16, SIZE // 16)),
        info("high_res_s0", TensorProto.FLOAT, (images, WIDTH // 8, grid, grid)),
        info("high_res_s1", TensorProto.FLOAT, (images, 2, grid // 2, grid // 2)),
        info("points", TensorProto.FLOAT, ("P", "K", 2)),
        info("labels", TensorProto.INT32, ("P", "K")),
        info("image_index", TensorProto.INT64, ("P",)),
    ]
    if masks:
        inputs.append(info("mask_input", TensorProto.FLOAT, ("P", 1, grid, grid)))
    outputs = [
        info("logits", TensorProto.FLOAT, ("P", 1, grid, grid)),
        *(info(name, TensorProto.FLOAT, ("P",))
          for name in ("predicted_iou", "object_score", "stability")),
    ]  # fmt: skip
    save(path, decoder_nodes(masks), inputs, outputs, weights)


def write_model(folder: Path, seed: int = 0, **facts: object) -> Path:
    """Write encoder, decoder, decoder_mask and model.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_encoder(folder / "encoder.onnx", seed)
    write_decoder(folder / "decoder.onnx")
    write_decoder(folder / "decoder_single.onnx", images=1)
    write_decoder(folder / "decoder_mask.onnx", masks=True)
    (folder / "model.json").write_text(json.dumps(FACTS | facts))
    return folder


def with_close_ups(source: Path, folder: Path, size: int) -> Path:
    """Copy a model whose whole frames are small, and call its graphs those for close-ups too."""
    shutil.copytree(source, folder)
    for name in ("encoder", "decoder"):
        shutil.copyfile(folder / f"{name}.onnx", folder / f"{name}_close_up.onnx")
    facts = json.loads((folder / "model.json").read_text())
    files = facts.get("files", {})
    files |= {name.replace(".", "_close_up."): one for name, one in files.items()}
    facts |= {"close_up_size": size, "files": files}
    (folder / "model.json").write_text(json.dumps(facts))
    return folder


def sample_prompts(count: int, image_size: int, seed: int = 0) -> Prompts:
    """Return boxes like those of a street scene, in model pixels: small and all over the image."""
    generator = np.random.default_rng(seed)
    centre = generator.uniform(0.05, 0.95, (count, 2)) * image_size
    half = generator.lognormal(np.log(0.02), 0.7, (count, 2)) * image_size
    corners = np.stack([centre - half, centre + half], 1).clip(0, image_size)
    points = np.concatenate([corners, np.zeros((count, 1, 2))], 1).astype(np.float32)
    label = np.array([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING], np.int32)
    return Prompts(points, np.tile(label, (count, 1)), np.zeros(count, np.int64))
