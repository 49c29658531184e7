"""Fidelity and times of ONNX Runtime's CUDA backend, against PyTorch fp32, in one run.

    python tests/gpu/measure_onnxruntime.py IMAGE.jpg BOXES.npy MODEL_FOLDER [--preset base_plus]

MODEL_FOLDER is an fp16 export of the same seeded random weights (`random:PRESET`).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
from pathlib import Path

import numpy as np
import torch
from measure_torch import attempt, decoded_rgb, mask_iou, median_ms, profiled, sustained

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from sam2_core.backends.torch_backend import TorchBackend
from sam2_core.preprocess import box_prompts, resize_square
from sam2_core.resolve import Wanted, resolve_weights
from sam2_core.types import Boxes, PendingMasks, Prompts


class Later(OnnxRuntimeCudaBackend):
    """With `decode_later`, as the measurements call it; it has waited already."""

    def decode_later(self, features, prompts):
        decoded = self.decode(features, prompts)
        return PendingMasks(len(prompts), lambda: decoded)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("image", type=Path)
    parser.add_argument("boxes", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--preset", default="base_plus")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    faulthandler.dump_traceback_later(150, repeat=True)
    data, xyxy = given.image.read_bytes(), np.load(given.boxes)
    boxes = Boxes(xyxy, np.ones(len(xyxy)), ("object",) * len(xyxy))
    image = decoded_rgb(data)
    result: dict[str, object] = {"device": torch.cuda.get_device_name()}
    backend = Later(ModelFolder.open(given.model, Path("/tmp/cache")))
    square = resize_square(image, backend.info.image_size)
    found = box_prompts(xyxy, image.shape[:2], backend.info.image_size)
    prompts = Prompts(found.points_model, found.labels, np.zeros(len(found.rows), np.int64))

    def fidelity() -> None:
        weights = resolve_weights(f"random:{given.preset}")
        reference = TorchBackend(weights, Wanted("fp32", "published"), "cuda")
        expected = reference.decode(reference.encode([square]), prompts)
        ours = backend.decode(backend.encode([square]), prompts)
        iou = mask_iou(ours.logits, expected.logits)
        worst = np.percentile(iou, 1)
        result["IoU mean/median/p1"] = [float(v) for v in (iou.mean(), np.median(iou), worst)]

    def times() -> None:
        def encode_and_wait():
            backend.encode([square])
            backend._device.synchronize(backend._stream)

        result["encode ms"] = median_ms(encode_and_wait)
        features = backend.encode([square])
        result["decode 135 with masks on the host ms"] = median_ms(
            lambda: backend.decode(features, prompts)
        )
        graph = backend._graphs["decoder_single"]
        counts = {n: 1 if n in ("embedding", "high_res_s0", "high_res_s1") else 136
                  for n in graph.tensors}  # fmt: skip

        def run():
            graph.run(counts)
            backend._device.synchronize(backend._stream)

        result["decoder graph ms"] = median_ms(run)

    attempt(fidelity)
    print(result, flush=True)
    attempt(times)
    print(result, flush=True)
    attempt(profiled, backend, square, prompts, given.out, "onnxruntime")
    attempt(sustained, backend, data, boxes, result, "onnxruntime-cuda fp16", 1)
    (given.out / "onnxruntime.json").write_text(json.dumps(result, indent=1, default=str))
    for name, value in result.items():
        print(f"{name:60} {value}")
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
