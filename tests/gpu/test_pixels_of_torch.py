"""Frames cut and resized by PyTorch on a real GPU."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")

from sam2_core.backends.device_owner import DEVICE_OWNER  # noqa: E402
from sam2_core.backends.torch_backend import (  # noqa: E402
    MOST_SHRUNK,
    TorchBackend,
    TorchPixels,
)
from sam2_core.find_weights import Wanted, resolve_weights  # noqa: E402
from sam2_core.preprocess import View, resize_square  # noqa: E402
from sam2_core.segmenter import Segmenter  # noqa: E402
from sam2_core.types import Boxes  # noqa: E402

pytestmark = pytest.mark.gpu


def frame(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("size", [256, 33])
def test_squares_are_those_of_the_host(size):
    pixels = TorchPixels(torch.device("cuda"))
    staged = [pixels.stage(frame(720, 1280)), pixels.stage(frame(3, MOST_SHRUNK * size))]
    regions = [(0, 0, 1280, 720), (3, 5, 41, 88), (1279, 0, 1280, 720), (1000, 700, 1280, 720)]
    views = [*(View(staged[0], region) for region in regions), staged[1].whole()]
    found = pixels.squares([pixels.given(one, size, cuts=True) for one in views], size)
    for view, square in zip(views, found.cpu().numpy(), strict=True):
        expected = resize_square(view.cut(), size).transpose(2, 0, 1)
        np.testing.assert_allclose(square, expected, atol=1e-2)


WANTED = ("fp32", "restructured")
BOXES = Boxes([[10, 10, 80, 70], [-5, -5, 30, 20]], np.ones(2), ("car", "bus"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where one encoder and one decoder are compiled for all tests: each takes long."""
    return tmp_path_factory.mktemp("cache")


def loaded(cache, *, compiled=True):
    return TorchBackend(resolve_weights("random:micro"), Wanted(*WANTED, cache), "cuda",
                        compiled=compiled)  # fmt: skip


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        for row in range(len(BOXES.labels)):
            assert (one.to_array(row) != other.to_array(row)).sum() <= 2


@pytest.mark.parametrize(("compiled", "count"), [(False, 6), (True, 1)])
def test_masks_are_those_of_frames_that_the_host_resizes(cache, compiled, count):
    backend = loaded(cache, compiled=compiled)
    images = [frame(90, 161, seed) for seed in range(count)]
    with Segmenter(backend) as segmenter:
        assert isinstance(segmenter.prepare(images[0], BOXES).images_model[0], View)
        found = segmenter.segment(images, [BOXES] * count)
        backend._cuts = False
        expected = segmenter.segment(images, [BOXES] * count)
    assert_same(found, expected)


def test_a_second_process_finds_itself_warm(cache):
    first = loaded(cache)
    with Segmenter(first) as segmenter:
        segmenter.segment([frame(90, 161)], [BOXES])
    used = set(first._graphs.captured)
    second = loaded(cache)
    second.warm_up()
    assert set(second._graphs.captured) == used


def test_frames_are_staged_and_waited_for_while_graphs_are_captured(cache):
    first, second = loaded(cache), loaded(cache)
    images = [frame(90, 161, seed) for seed in range(3)]

    def label(number):
        found = []
        while not captured.is_set() or not found:
            second.stage(images[number])
            found.append(segmenter.segment([images[number]], [BOXES])[0])
        return found

    captured = threading.Event()
    with Segmenter(first) as segmenter, ThreadPoolExecutor(3) as pool:
        expected = [segmenter.segment([image], [BOXES])[0] for image in images]
        labeling = [pool.submit(label, number) for number in range(3)]
        try:
            for _ in range(10):
                second.warm_up()
                second._on_device(second._graphs.release)
        finally:
            captured.set()
        for one, several in zip(expected, labeling, strict=True):
            found = several.result()
            assert_same(found, [one] * len(found))
    assert DEVICE_OWNER.lost is None
