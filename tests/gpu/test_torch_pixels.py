"""Frames cut and resized by PyTorch on a real GPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from sam2_core.backends.torch_backend import TorchBackend  # noqa: E402
from sam2_core.backends.torch_pixels import MOST_SHRUNK, TorchPixels  # noqa: E402
from sam2_core.preprocess import resize_square  # noqa: E402
from sam2_core.resolve import Wanted, resolve_weights  # noqa: E402
from sam2_core.segmenter import Segmenter  # noqa: E402
from sam2_core.types import Boxes  # noqa: E402
from sam2_core.views import View  # noqa: E402

pytestmark = pytest.mark.gpu


def frame(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("size", [256, 33])
def test_squares_are_those_of_the_host(size):
    pixels = TorchPixels(torch.device("cuda"))
    assert pixels.usable()
    staged = [pixels.stage(frame(720, 1280)), pixels.stage(frame(3, MOST_SHRUNK * size))]
    regions = [(0, 0, 1280, 720), (3, 5, 41, 88), (1279, 0, 1280, 720), (1000, 700, 1280, 720)]
    views = [*(View(staged[0], region) for region in regions), staged[1].whole()]
    found = pixels.squares([pixels.given(one, size, cuts=True) for one in views], size)
    for view, square in zip(views, found.cpu().numpy(), strict=True):
        expected = resize_square(view.cut(), size).transpose(2, 0, 1)
        np.testing.assert_allclose(square, expected, atol=1e-2)


@pytest.mark.parametrize("compiled", [False, True])
def test_masks_are_those_of_frames_that_the_host_resizes(tmp_path, compiled):
    wanted = Wanted("fp32", "restructured", tmp_path)
    backend = TorchBackend(resolve_weights("random:micro"), wanted, "cuda", compiled=compiled)
    images = [frame(90, 161, seed) for seed in range(6)]
    boxes = [Boxes([[10, 10, 80, 70], [-5, -5, 30, 20]], np.ones(2), ("car", "bus"))] * 6
    with Segmenter(backend) as segmenter:
        assert isinstance(segmenter.prepare(images[0], boxes[0]).images_model[0], View)
        found = segmenter.segment(images, boxes)
        backend._cuts = False
        expected = segmenter.segment(images, boxes)
    for one, other in zip(found, expected, strict=True):
        for row in range(2):
            assert (one.to_array(row) != other.to_array(row)).sum() <= 2


def test_a_second_process_finds_itself_warm(tmp_path):
    wanted = Wanted("fp16", "restructured", tmp_path)
    first = TorchBackend(resolve_weights("random:micro"), wanted, "cuda", compiled=True)
    image, boxes = frame(90, 161), Boxes([[10, 10, 80, 70]], np.ones(1), ("car",))
    with Segmenter(first) as segmenter:
        segmenter.segment([image], [boxes])
    used = set(first._graphs.captured)
    second = TorchBackend(resolve_weights("random:micro"), wanted, "cuda", compiled=True)
    second.warm_up()
    assert set(second._graphs.captured) == used
