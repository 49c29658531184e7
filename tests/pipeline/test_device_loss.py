"""A device that is lost in a run: the loop ends, nothing is recorded, nobody waits."""

from pathlib import Path

import numpy as np
import pytest

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, DeviceLostError, MachineError
from tasks.masks.segment import segment_frames
from tasks.store.retry import is_transient
from tasks.types import FrameRef
from tests.sam2_core.host_device import host_gpu

MICRO = Path(__file__).parents[1] / "data" / "micro"


@pytest.mark.timeout(120)
def test_frames_behind_a_lost_device_are_no_answers(tmp_path):
    gpu = host_gpu()
    folder = ModelFolder.open(MICRO, tmp_path)
    segmenter = Segmenter(OnnxRuntimeCudaBackend(folder, gpu, ["CPUExecutionProvider"]))
    copy, copies = gpu.device.copy, []

    def copy_until_lost(*arguments):
        copies.append(arguments)
        if len(copies) > 60:
            raise MachineError("CUDA: cudaMemcpyAsync failed with cudaErrorIllegalAddress")
        copy(*arguments)

    gpu.device.copy = copy_until_lost
    boxes = Boxes([[10, 10, 60, 60]], [1], ("car",))
    frames = [(FrameRef("drive", n, 0, "", f"{n}.jpg"), boxes) for n in range(40)]
    done = []
    with pytest.raises(MachineError, match="lost to this process"):
        done.extend(segment_frames(segmenter, frames, lambda _: np.zeros((100, 100, 3), np.uint8)))
    assert all(one.failure is None for one in done)
    assert len(done) < 40
    with pytest.raises(DeviceLostError):
        segmenter.run([segmenter.prepare(np.zeros((100, 100, 3), np.uint8), boxes)])


def test_a_chain_of_causes_that_leads_back_into_itself_ends():
    first, second = DeviceLostError("lost"), RuntimeError("again")
    first.__cause__, second.__cause__ = second, first
    assert not is_transient(first)
