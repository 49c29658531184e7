"""The detector as a GPU runs it, on host memory: batches, frames scaled on the device."""

import numpy as np
import onnxruntime as ort
import pytest

from sam2_core.backends.cuda_network import CudaNetwork
from sam2_core.backends.onnx_batches import in_batches
from tasks.boxes import yolox
from tasks.boxes.detector_files import resolve_detector, with_prompt
from tasks.boxes.yolox import Detector
from tests.boxes.foreign_graphs import FORMS
from tests.onnx_file import write_yolox
from tests.sam2_core.host_device import host_gpu

CPU = ["CPUExecutionProvider"]


@pytest.fixture(scope="module")
def file():
    return resolve_detector("compact")


@pytest.fixture
def on_host(monkeypatch):
    """Networks of a GPU, on ONNX Runtime's CPU."""

    def network(*given, **options):
        return CudaNetwork(*given, CPU, **options)

    monkeypatch.setattr(yolox, "CudaNetwork", network)
    return host_gpu()


def street(seed, size_hw=(360, 640)):
    """A grey street with a few dark boxes that look like cars to no one but give scores."""
    random = np.random.default_rng(seed)
    image = random.normal(120, 20, (*size_hw, 3)).clip(0, 255).astype(np.uint8)
    for _ in range(6):
        y, x = (random.integers(0, max(1, side - 40)) for side in size_hw)
        image[y : y + 60, x : x + 100] = random.integers(0, 256, 3)
    return image


@pytest.mark.ci
def test_images_in_a_batch_give_what_each_gives_alone(file):
    image = street(0, (736, 1280)).transpose(2, 0, 1)[None].astype(np.float32)
    plain = ort.InferenceSession(str(file.path), providers=CPU).run(None, {"images": image})[0]
    two = ort.InferenceSession(in_batches(file.path.read_bytes()), providers=CPU)
    both = two.run(None, {"images": np.concatenate([image, image[:, :, ::-1]])})[0]
    np.testing.assert_allclose(both[:1], plain, atol=1e-3)


def test_a_gpu_finds_what_the_cpu_finds(file, on_host):
    images = [street(seed) for seed in range(3)]
    found = []
    for detector in (Detector(file), Detector(file, on_host)):
        given = [detector.letterbox(image) for image in images]
        found.append(detector.detect(given, min_score=0.02))
    assert sum(map(len, found[0])) > 0
    for cpu, gpu in zip(*found, strict=True):
        assert cpu.labels == gpu.labels
        np.testing.assert_allclose(gpu.scores, cpu.scores, atol=5e-3)
        np.testing.assert_allclose(gpu.xyxy_px, cpu.xyxy_px, atol=1)


@pytest.mark.parametrize(
    ("form", "batch"), [("columns", 1), ("nms", 4), *[(form, "open") for form in FORMS]]
)
def test_foreign_forms_run_on_a_gpu_as_on_the_cpu(tmp_path, on_host, form, batch):
    image = ("input" if form == "rfdetr" else "images", [batch, 3, 64, 64])
    path = FORMS[form][0](tmp_path / "foreign.onnx", image=image)
    file = resolve_detector(with_prompt(str(path), None, "car, truck, person"))
    found = []
    for detector in (Detector(file), Detector(file, on_host)):
        given = [detector.letterbox(street(seed, (30, 64))) for seed in range(5)]
        found.append(detector.detect(given))
    for cpu, gpu in zip(*found, strict=True):
        assert gpu.labels == cpu.labels == ("truck", "car")
        np.testing.assert_allclose(gpu.xyxy_px, cpu.xyxy_px, atol=0.01)


def test_many_frames_and_little_memory(tmp_path, on_host, monkeypatch):
    from tests.boxes.test_detect import NAMES, ROWS

    path = write_yolox(tmp_path / "known.onnx", ROWS, classes=NAMES)
    detector = Detector(resolve_detector(str(path)), on_host)
    images = [detector.letterbox(np.full((64, 64, 3), n, np.uint8)) for n in range(11)]
    expected = detector.detect(images)
    assert len(expected) == 11
    # Nine frames do not fit at once: fewer at a time do.
    gpu = host_gpu(memory_bytes=500_000)
    tight = Detector(resolve_detector(str(path)), gpu)
    again = [tight.letterbox(np.full((64, 64, 3), n, np.uint8)) for n in range(11)]
    for one, other in zip(tight.detect(again), expected, strict=True):
        np.testing.assert_array_equal(one.xyxy_px, other.xyxy_px)
