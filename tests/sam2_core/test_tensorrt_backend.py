"""The TensorRT backend's own logic: the real builder, and a stand-in for what needs the GPU.

What is under test is real: engines, buckets, padding, buffers, streams, graphs, caches. That
engines run was never tried (docs/BENCHMARKS.md).
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sam2_core import backend_choice
from sam2_core.backends.device_owner import DeviceOwner
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.load import load_backend
from sam2_core.types import AutolabelError, DeviceMemoryError, Prompts
from tasks.boxes.detector_files import resolve_detector
from tasks.boxes.yolox import Detector
from tests.onnx_file import write_yolox
from tests.sam2_core import fake_tensorrt
from tests.sam2_core.fake_cuda_device import FakeDevice
from tests.sam2_core.small_graphs import SIZE, with_close_ups, write_model

BOXES, IMAGES = (1, 8, 16), (1, 2)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return engines of all tests: each is built once."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture
def trt(monkeypatch, built):
    fake_tensorrt.install(monkeypatch, built)
    names = fake_tensorrt.MODULES
    yield SimpleNamespace(**{name: importlib.import_module(one) for name, one in names.items()})
    for full in names.values():
        sys.modules.pop(full, None)


@pytest.fixture(scope="module")
def model(built):
    return ModelFolder.open(write_model(built / "model"), built / "cache")


def build(trt, model, engines, buckets=None, target="sm89"):
    buckets = buckets or trt.engines.Buckets(BOXES, IMAGES)
    return {
        kind: trt.engines.build_engine(
            model.graph(kind), kind, target=target, engines_dir=engines, buckets=buckets
        )
        for kind in trt.backend.graphs_of(model)
    }  # fmt: skip


def opened(device=None):
    return Gpu(device or FakeDevice(), DeviceOwner("fake"), "cpu")


def load(trt, model, built, device=None, buckets=None):
    buckets = buckets or trt.engines.Buckets(BOXES, IMAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trt.backend, "buckets_for", lambda _: buckets)
        patch.setattr(trt.backend, "engines_folder", lambda _: built)
        return trt.backend.load_tensorrt(model, opened(device))


def images(count, seed=0):
    return list(np.random.default_rng(seed).integers(0, 255, (count, SIZE, SIZE, 3), np.uint8))


def prompts(count, frames=1, points=3, masks=False, seed=0):
    generator = np.random.default_rng(seed)
    return Prompts(
        generator.uniform(0, SIZE, (count, points, 2)).astype(np.float32),
        generator.integers(0, 4, (count, points)).astype(np.int32),
        generator.integers(0, frames, count),
        generator.normal(size=(count, SIZE // 4, SIZE // 4)).astype(np.float32) if masks else None,
    )


def assert_same(got, expected):
    assert len(got.predicted_iou) == len(expected.predicted_iou)
    for name in ("predicted_iou", "object_score", "stability"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-5)
    for row, (mask, reference) in enumerate(zip(got.logits, expected.logits, strict=True)):
        np.testing.assert_allclose(mask, reference, rtol=1e-4, atol=1e-4, err_msg=str(row))


def reference(model, frames, asked):
    backend = OnnxRuntimeBackend(ModelFolder.open(model.path, model.cache), threads=1)
    return backend.decode(backend.encode(frames), replace(asked, mask_logits=None))


@pytest.mark.parametrize("frames", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 16, 17, 37])
def test_rows_and_images_stay_together_in_any_bucket(trt, model, built, frames, count):
    backend = load(trt, model, built)
    given, asked = images(frames), prompts(count, frames)
    got = backend.decode(backend.encode(given), asked)
    assert_same(got, reference(model, given, asked))


def test_a_detector_runs_on_an_engine_in_batches(trt, tmp_path, built):
    rows = np.random.default_rng(0).uniform(-1, 1, (84, 6)).astype(np.float32)
    rows[:, 4:] = np.abs(rows[:, 4:])
    path = write_yolox(tmp_path / "detector.onnx", rows, 64, 1, ["car"])
    file = resolve_detector(str(path))
    device = FakeDevice()
    gpu, engines = opened(device), built
    on_engine, on_cpu = Detector(file, gpu, engines=engines), Detector(file)
    on_engine.warm_up()
    assert len(device.graphs) == 3  # one for each number of images
    frames = np.random.default_rng(1).integers(0, 255, (11, 40, 90, 3), np.uint8)
    found = on_engine.detect([on_engine.letterbox(frame) for frame in frames])
    (expected,) = on_cpu.detect([on_cpu.letterbox(frames[0])])
    assert len(expected) > 1
    assert len(found) == len(frames)
    for boxes in found:
        np.testing.assert_allclose(boxes.xyxy_px, expected.xyxy_px, atol=1e-3)
        np.testing.assert_allclose(boxes.scores, expected.scores, atol=1e-5)
    (graph,) = (engines / "networks").glob("*.onnx")
    assert len(list(engines.glob(f"sm89-*/{graph.stem}-*.engine"))) == 1


def test_points_and_masks_go_through_the_same_door(trt, model, built):
    backend = load(trt, model, built)
    given = images(2)
    features = backend.encode(given)
    clicks = prompts(6, 2, points=5)
    assert_same(backend.decode(features, clicks), reference(model, given, clicks))
    refined = prompts(7, 2, masks=True)
    got, plain = backend.decode(features, refined), reference(model, given, refined)
    for row in range(7):
        np.testing.assert_allclose(
            got.logits[row], plain.logits[row] + refined.mask_logits[row], rtol=1e-4, atol=1e-4
        )


def test_nothing_is_allocated_after_the_first_frame_and_graphs_are_replayed(trt, model, built):
    device = FakeDevice()
    backend = load(trt, model, built, device)
    backend.warm_up()
    graphs = len(device.graphs)
    assert graphs == len(IMAGES) + len(BOXES)
    for _ in range(2):
        backend.decode(backend.encode(images(1)), prompts(20))
    allocated, launched = len(device.blocks), device.launches
    for seed in range(5):
        result = backend.decode(backend.encode(images(1, seed)), prompts(20, seed=seed))
        del result
    assert len(device.blocks) == allocated
    assert len(device.graphs) == graphs
    assert device.launches == launched + 5 * 3  # encoder, 16 boxes, 8 boxes


STANDS_FOR = {
    "Engine": "ICudaEngine", "Context": "IExecutionContext", "Runtime": "Runtime",
    "RuntimeConfig": "IRuntimeConfig", "RuntimeCache": "IRuntimeCache",
}  # fmt: skip


@pytest.mark.parametrize("name", STANDS_FOR)
def test_the_stand_in_takes_the_arguments_that_the_library_takes(name):
    library = getattr(fake_tensorrt.real, STANDS_FOR[name])
    for called, ours in vars(getattr(fake_tensorrt, name)).items():
        if inspect.isfunction(ours) and not called.startswith("_"):
            theirs = getattr(library, called).__doc__
            assert all(f"{one}: " in theirs for one in inspect.signature(ours).parameters), theirs


def test_what_cannot_be_captured_runs_without_a_graph_and_says_so(
    trt, model, built, monkeypatch, caplog
):
    monkeypatch.setattr(fake_tensorrt.Context, "capturable", False)
    device = FakeDevice()
    backend, given, asked = load(trt, model, built, device), images(2), prompts(5, 2)
    assert_same(backend.decode(backend.encode(given), asked), reference(model, given, asked))
    assert not device.graphs
    assert "without a CUDA graph" in caplog.text


def test_kernels_of_captured_shapes_are_kept_for_the_next_process(trt, model, built):
    load(trt, model, built).warm_up()
    kept = {path: path.read_bytes() for path in built.rglob("*.kernels")}
    assert {path.name.split("-")[0] for path in kept} >= {"decoder_single", "encoder"}
    load(trt, model, built).warm_up()
    assert all(path.read_bytes().startswith(before) for path, before in kept.items())


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "engine_sha256"),
        (lambda path: said(path, target="sm120"), "its target is sm120, and here it is sm89"),
        (lambda path: said(path, library="TensorRT-RTX 1.6"), r"its library is .* 1\.6, and here"),
    ],
)
def test_an_engine_that_is_damaged_or_of_elsewhere_is_refused(trt, model, tmp_path, harm, why):
    engines = build(trt, model, tmp_path)
    harm(engines["encoder"])
    with pytest.raises(AutolabelError, match=rf"encoder-.*engine cannot be used: .*{why}"):
        load(trt, model, tmp_path)


def said(path, **facts):
    described = path.with_suffix(".json")
    described.write_text(json.dumps(json.loads(described.read_text()) | facts))


def test_a_shape_outside_the_profile_is_refused(trt, model, built):
    decoder = load(trt, model, built)._graphs["decoder"]
    with pytest.raises(AutolabelError, match=r"takes points of \(1, 1, 2\) to \(16, 16, 2\), not"):
        decoder.bound(dict.fromkeys(decoder.declared, 1) | {"points": 17}).run()


def test_a_gpu_that_the_library_has_no_kernels_for_is_refused_in_a_sentence(trt, monkeypatch):
    monkeypatch.setattr(FakeDevice, "capability", "sm90")
    with pytest.raises(AutolabelError, match=r"no kernels for sm90, .*--backend torch or onnxr"):
        trt.engines.target_of(FakeDevice())


def test_a_full_device_is_a_device_memory_error(trt, model, built):
    needed = FakeDevice()
    load(trt, model, built, needed)
    taken = (1 << 40) - needed.left
    for short in (1, taken // 2, taken - 1):
        device = FakeDevice(memory_bytes=taken - short)
        with pytest.raises(DeviceMemoryError):
            load(trt, model, built, device)


def test_without_tensorrt_the_error_says_what_to_do(monkeypatch, model):
    monkeypatch.setattr(backend_choice, "has_tensorrt", lambda: False)
    with pytest.raises(AutolabelError, match=r"make setup EXTRAS=tensorrt.*another backend"):
        load_backend(str(model.path), "tensorrt")


def test_close_ups_have_engines_and_buckets_of_their_own(trt, model, built, tmp_path):
    copy = with_close_ups(model.path, tmp_path / "copy", SIZE)
    folder = ModelFolder.open(copy, tmp_path / "cache").for_close_ups()
    assert trt.backend.graphs_of(folder) == ("encoder", "decoder")
    buckets = trt.backend.buckets_for(folder)
    assert buckets.images == buckets.boxes == (8, 16, 32, 64)
    backend = load(trt, folder, built, buckets=buckets)
    assert backend.info.close_ups
    frames = images(70)
    asked = replace(prompts(70), image_index=np.arange(70))
    assert_same(backend.decode(backend.encode(frames), asked), reference(model, frames, asked))


DECODER = [("embedding", (-1, 256, 64, 64)), ("points", (-1, -1, 2)), ("labels", (-1, -1))]


def test_an_input_outside_the_contract_is_refused(trt):
    with pytest.raises(AutolabelError, match=r"'extra'.*not part of the ONNX contract"):
        trt.engines.profile_for([*DECODER, ("extra", (-1,))], "decoder", trt.engines.Buckets())
