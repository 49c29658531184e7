"""Sections of `gpu_measure.py` about ONNX Runtime's CUDA provider."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import numpy as np
from gpu_common import CACHE, PRESET, TRAINED, Frame, mask_iou, median_ms, profiled, record

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from sam2_core.find_weights import Wanted
from sam2_core.load import resolve_model
from sam2_core.types import FEATURES


def exported(name: str) -> ModelFolder:
    """An fp16 export that `gpu_sections_torch.export` wrote."""
    return ModelFolder.open(Path(CACHE) / f"{name}-fp16", Path(CACHE))


def smoke() -> None:
    """The bundled model on the GPU, and the same file on the CPU."""
    import onnxruntime as ort

    record("onnxruntime", version=ort.__version__, providers=ort.get_available_providers())
    frame = Frame()
    folder = resolve_model("compact", Wanted(cache=CACHE))
    started = time.perf_counter()
    backend = OnnxRuntimeCudaBackend(folder)
    record("onnxruntime", loaded_s=round(time.perf_counter() - started, 1))
    features = backend.encode([frame.square])
    found = backend.decode(features, frame.prompts)
    again = backend.decode(backend.encode([frame.square]), frame.prompts)
    assert np.array_equal(np.asarray(found.logits), np.asarray(again.logits)), "a replay differs"
    cpu = OnnxRuntimeBackend(folder)
    expected = cpu.decode(cpu.encode([frame.square]), frame.prompts)
    iou = mask_iou(found, expected)
    apart = float(np.abs(found.predicted_iou - expected.predicted_iou).max())
    record("onnxruntime", what="compact fp32, GPU against CPU", boxes=len(iou),
           mean=float(iou.mean()), least=float(iou.min()), predicted_iou=apart)  # fmt: skip
    several = backend.encode([frame.square] * 3)
    backend.decode(several, frame.many(40))
    record("onnxruntime", what="3 images, 40 boxes", ok=True)


def times() -> None:
    """Encoder and decoder of the random export, fp16."""
    frame = Frame()
    started = time.perf_counter()
    logging.basicConfig(level=logging.INFO)
    backend = OnnxRuntimeCudaBackend(exported(PRESET))
    features = backend.encode([frame.square])
    backend.decode(features, frame.prompts)
    record("onnxruntime", first_call_s=round(time.perf_counter() - started, 1))

    def wait() -> None:
        backend.gpu.run(lambda: backend.gpu.device.synchronize(backend.gpu.stream))

    encode = median_ms(lambda: backend.encode([frame.square]), wait)
    decode = median_ms(lambda: backend.decode(features, frame.prompts), wait)
    both = median_ms(lambda: backend.decode(backend.encode([frame.square]), frame.prompts), wait)
    record("onnxruntime", preset=PRESET, boxes=len(frame.prompts), encode_ms=encode,
           decode_and_wait_ms=decode, encode_decode_to_host_ms=both)  # fmt: skip
    for name, graph in backend._graphs.items():
        rows = 1 if name == "encoder" else 136
        counts = {n: 1 if n in FEATURES or n == "image" else rows for n in graph.declared}
        bound = backend.gpu.run(lambda graph=graph, counts=counts: graph.bound(counts))
        ms = median_ms(lambda bound=bound: backend.gpu.run(bound.run), wait)
        record("onnxruntime", graph=name, graph_ms=ms)
    profiled(lambda: backend.encode([frame.square]), "onnxruntime encode")
    profiled(lambda: backend.decode(features, frame.prompts), "onnxruntime decode")


def fidelity() -> None:
    """Trained weights, fp16, against the published modules in PyTorch fp32."""
    from gpu_sections_torch import backend_of, compare

    for model in TRAINED:
        reference = backend_of(model, "fp32", "published", compiled=False)
        backend = OnnxRuntimeCudaBackend(exported(Path(model).stem))
        compare(backend, reference, "onnxruntime-cuda fp16", weights=model)


def frames() -> None:
    """Whole frames, JPEG bytes in and COCO masks out, sustained."""
    from gpu_sections_torch import sustained

    folder = exported(Path(TRAINED[0]).stem)
    backend = OnnxRuntimeCudaBackend(folder)
    for _ in range(2):
        sustained(backend, "onnxruntime-cuda compact fp16", 1)
    backend = OnnxRuntimeCudaBackend(folder.for_close_ups())
    sustained(backend, "onnxruntime-cuda compact fp16 close-ups", None)


SECTIONS = (smoke, times, fidelity, frames)
if __name__ == "__main__":
    {section.__name__: section for section in SECTIONS}[sys.argv[1]]()
