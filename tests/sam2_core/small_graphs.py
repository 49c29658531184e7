"""A model folder that keeps the ONNX contract and is too small to segment anything.

Every output depends on every input, so that a mixed-up image, prompt or buffer changes a number.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from sam2_core.types import BOX_BOTTOM_RIGHT, BOX_TOP_LEFT, FORMAT_VERSION, POINT_PADDING, Prompts

SIZE, WIDTH = 64, 8
FACTS = {"preset": "micro", "image_size": SIZE, "checkpoint_sha256": "0" * 64,
         "graph": "restructured", "precision": "fp32",
         "format_version": FORMAT_VERSION}  # fmt: skip


_ENCODER = """<ir_version: 9, opset_import: ["" : 18]>
encoder (float[B,3,64,64] image)
    => (float[B,8,4,4] embedding, float[B,1,16,16] high_res_s0, float[B,2,8,8] high_res_s1) {
    coarse = AveragePool<kernel_shape = [16,16], strides = [16,16]>(image)
    fine   = AveragePool<kernel_shape = [4,4], strides = [4,4]>(image)
    middle = AveragePool<kernel_shape = [8,8], strides = [8,8]>(image)
    embedding = Conv(coarse, kernel)  high_res_s0 = Conv(fine, kernel_s0)
    high_res_s1 = Conv(middle, kernel_s1)
}"""
# Features of each prompt's image, its points weighted by their labels, and a mask prompt.
_DECODER = """<ir_version: 9, opset_import: ["" : 18]>
decoder (float[IMAGES,8,4,4] embedding, float[IMAGES,1,16,16] high_res_s0,
         float[IMAGES,2,8,8] high_res_s1, float[P,K,2] points, int32[P,K] labels,
         int64[P] image_index MASK)
    => (float[P,1,16,16] logits, float[P] predicted_iou, float[P] object_score, float[P] stability)
<int64[3] rest = {1,2,3}, int64[1] last = {2}, int64[2] of_points = {1,2},
 int64[4] column = {-1,1,1,1}> {
    own    = Gather(embedding, image_index)    mean    = ReduceMean<keepdims = 1>(own, rest)
    own_s1 = Gather(high_res_s1, image_index)  mean_s1 = ReduceMean<keepdims = 1>(own_s1, rest)
    own_s0 = Gather(high_res_s0, image_index)
    kinds = Cast<to = 1>(labels)               kinds_3d = Unsqueeze(kinds, last)
    weighted = Mul(points, kinds_3d)
    prompt = ReduceSum<keepdims = 0>(weighted, of_points)
    prompt_4d = Reshape(prompt, column)
    context = Add(mean, mean_s1)               shift = Add(context, prompt_4d)
    plain = Add(own_s0, shift)                 logits = LOGITS
    predicted_iou = ReduceMean<keepdims = 0>(logits, rest)
    object_score = ReduceMax<keepdims = 0>(logits, rest)
    stability = ReduceMin<keepdims = 0>(logits, rest)
}"""


def save(path: Path, text: str, **weights: np.ndarray) -> None:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)


def write_encoder(path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    kernels = {
        name: generator.normal(size=(channels, 3, 1, 1)).astype(np.float32) / 100
        for name, channels in (("kernel", WIDTH), ("kernel_s0", WIDTH // 8), ("kernel_s1", 2))
    }
    save(path, _ENCODER, **kernels)


def write_decoder(path: Path, masks: bool = False, images: int | str = "B") -> None:
    text = _DECODER.replace("IMAGES", str(images))
    text = text.replace("MASK", ", float[P,1,16,16] mask_input" if masks else "")
    save(path, text.replace("LOGITS", "Add(plain, mask_input)" if masks else "Identity(plain)"))


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
