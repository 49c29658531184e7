"""A frame is read and uploaded once for the detector and the mask model of one process."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sam2_core.backends import gpu as process
from sam2_core.backends.cuda_network import CudaNetwork
from sam2_core.backends.kept_frames import FORGOTTEN_S, KeptFrames
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from sam2_core.preprocess import StagedFrame
from sam2_core.segmenter import Segmenter
from sam2_core.types import DeviceMemoryError
from tasks.boxes import yolox
from tasks.boxes.detector_files import resolve_detector
from tasks.boxes.yolox import Detector
from tasks.frames import images
from tests.pipeline.test_machine_errors import FRAMES, chunk_of, job_of, label_chunk
from tests.sam2_core.host_device import host_gpu
from tests.sam2_core.test_stamps import MICRO

CPU = ["CPUExecutionProvider"]
FRAME_BYTES = 64 * 64 * 3


@pytest.fixture
def labeled(tmp_path, monkeypatch, own_cache):
    """Label a chunk on host memory in place of a GPU's, keeping frames of so many bytes."""
    gpu = host_gpu()
    monkeypatch.setattr(process, "_gpu", gpu)
    monkeypatch.setattr(
        yolox, "CudaNetwork", lambda *given, **options: CudaNetwork(*given, CPU, **options)
    )
    reads, real = [], images._file_bytes
    monkeypatch.setattr(
        images, "_file_bytes", lambda frame: (reads.append(frame.index), real(frame))[1]
    )

    def label(most_bytes):
        source = tmp_path / str(most_bytes)
        (source / "drive").mkdir(parents=True)
        random = np.random.default_rng(0)
        for i in range(FRAMES):
            pixels = random.integers(0, 256, (64, 64, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(source / "drive" / f"{i}.png")
        job = job_of(source)
        job.context.detectors.load = lambda *_, **__: Detector(
            resolve_detector(job.params.detector_name), gpu
        )
        backend = OnnxRuntimeCudaBackend(ModelFolder.open(MICRO, tmp_path / "cache"), gpu, CPU)
        job.context.segmenters.load = lambda *_: Segmenter(backend, decoder_chunk=8)
        (reads.clear(), gpu.device.copied_bytes.clear())
        gpu.kept = KeptFrames(most_bytes)
        assert label_chunk(job, chunk_of(job, source)).record
        (masks,) = Path(job.params.out).glob("**/*.masks.parquet")
        columns = pq.read_table(masks).select(["rle", "predicted_iou"]).to_pylist()
        return len(reads), gpu.device.copied_bytes.count(FRAME_BYTES), columns

    return label


def test_frames_of_the_detector_are_neither_read_nor_uploaded_again(labeled):
    *once, masks = labeled(FRAMES * FRAME_BYTES)
    assert once == [FRAMES, FRAMES]
    *twice, expected = labeled(0)
    assert twice == [2 * FRAMES, 2 * FRAMES]
    *some, more = labeled(2 * FRAME_BYTES)
    assert some == [2 * FRAMES - 2, 2 * FRAMES - 2]
    assert masks == expected == more
    assert len(masks) >= FRAMES


def staged(nbytes):
    return StagedFrame(np.zeros((1, nbytes // 3, 3), np.uint8))


def test_what_does_not_fit_is_not_kept_until_the_rest_is_taken_or_forgotten():
    clock = [0.0]
    kept = KeptFrames(60, lambda: clock[0])
    frames = {name: staged(30) for name in ("first", "second", "third")}
    for name, frame in frames.items():
        kept.keep(name, frame)
    assert kept.take("third") is None
    assert kept.take("first") is frames["first"]
    kept.keep("third", frames["third"])
    assert kept.take("first") is None
    clock[0] = FORGOTTEN_S + 1
    kept.keep("fourth", staged(60))
    assert kept.take("second") is None
    assert kept.take("fourth") is not None
    kept.keep("first", frames["first"])
    kept.clear()
    assert kept.take("first") is None


def test_where_memory_is_short_no_frame_is_kept_on_the_device():
    gpu = host_gpu(memory_bytes=100_000)
    frame = gpu.stage(np.zeros((100, 200, 3), np.uint8))
    gpu.run(partial(gpu._address, frame))
    gpu.kept.keep("frame", frame)
    del frame
    with pytest.raises(DeviceMemoryError):
        gpu.memory(65_536)
    gpu.release_unused()
    assert gpu.memory(65_536).nbytes == 65_536


@pytest.mark.parametrize("used", [True, False])
def test_where_memory_is_short_pytorch_gives_back_what_its_tensors_had(monkeypatch, used):
    emptied = []
    cuda = SimpleNamespace(is_initialized=lambda: used, empty_cache=lambda: emptied.append(1))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    host_gpu().release_unused()
    assert emptied == [1] * used


def test_another_devices_frame_is_copied():
    one, other = host_gpu(), host_gpu()
    frame = one.stage(np.full((4, 5, 3), 7, np.uint8))
    assert one.staged(frame) is frame
    copy = other.staged(frame)
    assert copy is not frame
    assert np.array_equal(copy.pixels, frame.pixels)
