"""Device memory, streams and CUDA graphs on a real GPU: what TensorRT engines are surrounded by."""

from __future__ import annotations

import numpy as np
import pytest

from sam2_core.backends.cuda_device import CudaDevice
from sam2_core.backends.gpu import Slot
from sam2_core.types import DeviceMemoryError

pytestmark = pytest.mark.gpu


@pytest.fixture
def device():
    return CudaDevice()


def test_a_graph_replays_what_was_captured_on_what_is_there_now(device):
    stream = device.create_stream()
    source, target = (Slot(device.allocate_pinned(4096), 4096, []) for _ in range(2))
    memory = device.allocate(4096)

    def work():
        device.clear(memory, 4096, stream)
        device.copy(memory, source.address, 2048, stream)
        device.copy(target.address, memory, 4096, stream)

    target.as_array(np.uint8, (4096,))[:] = 7
    graph = device.capture(stream, work)
    device.synchronize(stream)
    assert (target.as_array(np.uint8, (4096,)) == 7).all(), "capturing does not run"
    for value in (1, 2, 3):
        source.as_array(np.uint8, (4096,))[:] = value
        device.launch(graph, stream)
        device.synchronize(stream)
        seen = target.as_array(np.uint8, (4096,))
        assert (seen[:2048] == value).all()
        assert (seen[2048:] == 0).all()


def test_more_than_there_is_is_a_device_memory_error_and_the_device_goes_on(device):
    with pytest.raises(DeviceMemoryError):
        device.allocate(1 << 50)
    assert device.allocate(1024)
