"""Boxes, clicks, masks to refine and detectors on ONNX Runtime's CUDA provider, beside the CPU."""

import numpy as np
import pytest

from sam2_core.backends.gpu import process_gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from sam2_core.types import Prompts
from tasks.boxes.detector_files import resolve_detector
from tasks.boxes.yolox import Detector
from tests.boxes.test_detect_on_gpu import street
from tests.sam2_core.small_graphs import sample_prompts
from tests.sam2_core.test_onnxruntime_cuda import DATA, assert_same, images

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["boxes", "clicks", "masks"])
def test_a_gpu_decodes_what_the_cpu_decodes(tmp_path, batch, kind):
    folder = ModelFolder.open(DATA / "micro", tmp_path)
    backends = OnnxRuntimeCudaBackend(folder), OnnxRuntimeBackend(folder)
    given = sample_prompts(20, 128)
    points, labels = given.points_model, given.labels
    if kind == "clicks":
        points, labels = points[:, [0, 1, 0, 1, 2]], np.int32([[1, 0, 1, 1, -1]] * 20)
    logits = np.random.default_rng(0).normal(0, 2, (20, 32, 32)).astype(np.float32)
    prompts = Prompts(points, labels, np.arange(20) % batch, logits if kind == "masks" else None)
    for _ in range(2):  # captured, and replayed
        on_gpu, on_cpu = (one.decode(one.encode(images(batch)), prompts) for one in backends)
        assert_same(on_gpu, on_cpu)


def test_a_gpu_detects_what_the_cpu_detects():
    file, pictures = resolve_detector("compact"), [street(seed) for seed in range(9)]
    found = []
    for detector in (Detector(file), Detector(file, process_gpu())):
        given = [detector.letterbox(picture) for picture in pictures]
        found.append(detector.detect(given, min_score=0.02))
    for cpu, gpu in zip(*found, strict=True):
        assert abs(len(cpu) - len(gpu)) <= 1  # one may lie at the least score
        if cpu.labels == gpu.labels:
            np.testing.assert_allclose(gpu.scores, cpu.scores, atol=0.02)
            np.testing.assert_allclose(gpu.xyxy_px, cpu.xyxy_px, atol=2)
