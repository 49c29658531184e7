"""The device's kernels, compiled for the host: frames into what networks take."""

import numpy as np
import pytest

from tests.sam2_core.host_device import host_gpu


def frame(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def gpu():
    return host_gpu()


@pytest.mark.parametrize("left_top", [(0, 0), (7, 5)])
@pytest.mark.parametrize("size_hw", [(720, 1280), (100, 333), (40, 70), (368, 640)])
def test_letterboxes_are_those_of_opencv(gpu, size_hw, left_top):
    cv2 = pytest.importorskip("cv2")
    height, width = 368, 640
    left, top = left_top
    scale = min((height - top) / size_hw[0], (width - left) / size_hw[1])
    scaled = (max(1, int(size_hw[1] * scale)), max(1, int(size_hw[0] * scale)))
    image = frame(*size_hw)
    target = gpu.pinned(3 * height * width * 4)
    staged = [gpu.stage(image)]
    places = [(left, top, *scaled)]
    gpu.run(lambda: gpu.letterboxes(staged, places, target.address, (height, width)))
    found = target.as_array(np.float32, (3, height, width))
    expected = np.full((height, width, 3), 114, np.uint8)
    expected[top : top + scaled[1], left : left + scaled[0]] = cv2.resize(image, scaled)[:, :, ::-1]
    apart = np.abs(found - expected.transpose(2, 0, 1))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.02
    assert np.array_equal(found, np.rint(found))
