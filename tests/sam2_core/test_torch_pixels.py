"""What PyTorch's device does with frames, on the CPU: the same code, without a GPU's memory."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")

from sam2_core.backends import torch_backend  # noqa: E402
from sam2_core.backends.torch_backend import MOST_SHRUNK, TorchPixels  # noqa: E402
from sam2_core.preprocess import StagedFrame, View, resize_square  # noqa: E402

INTERPOLATE = torch.nn.functional.interpolate


def frame(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.fixture
def pixels():
    return TorchPixels(torch.device("cpu"))


def squares_of(pixels, images, size, *, cuts=True):
    given = [pixels.given(image, size, cuts=cuts) for image in images]
    found = pixels.squares(given, size)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    return found.numpy().transpose(0, 2, 3, 1)


@pytest.mark.parametrize("size", [128, 33])
@pytest.mark.parametrize("size_hw", [(90, 161), (401, 299), (1, 1), (1, 400), (7, 3), (720, 1280)])
def test_squares_are_those_of_the_host(pixels, size_hw, size):
    height, width = size_hw
    staged = pixels.stage(frame(*size_hw))
    half = (width // 2, height // 2, width, height)
    corner = (0, 0, max(width // 3, 1), max(height // 5, 1))
    last = (width - 1, height - 1, width, height)
    views = [staged.whole(), *(View(staged, one) for one in (half, corner, last))]
    for view, square in zip(views, squares_of(pixels, views, size), strict=True):
        np.testing.assert_allclose(square, resize_square(view.cut(), size), atol=1e-3)


def test_whatever_an_encoder_is_given_becomes_the_same_square(pixels):
    image = frame(50, 70)
    grey = np.repeat(frame(40, 40)[:, :, :1], 3, 2)
    strided = frame(100, 140)[::2, ::-2]
    exact = frame(64, 64)
    by_others = StagedFrame(image).whole()
    images = [image, grey, strided, exact, resize_square(image, 64), by_others]
    expected = [resize_square(one, 64) for one in (*images[:5], image)]
    for cuts in (True, False):
        found = squares_of(pixels, images, 64, cuts=cuts)
        np.testing.assert_allclose(found, np.stack(expected), atol=1e-3)
    np.testing.assert_array_equal(found[3], exact)


def test_a_strip_that_is_too_long_for_the_device_is_resized_by_the_host(pixels, monkeypatch):
    def limited(planes, size, **how):
        assert max(planes.shape[2:]) <= MOST_SHRUNK * size[0]
        return INTERPOLATE(planes, size, **how)

    monkeypatch.setattr(torch_backend.F, "interpolate", limited)
    strip = frame(3, MOST_SHRUNK * 16 + 1)
    images = [strip, pixels.stage(strip).whole(), strip[:, :-1]]
    for image, square in zip((strip, strip, strip[:, :-1]), squares_of(pixels, images, 16),
                             strict=True):  # fmt: skip
        np.testing.assert_allclose(square, resize_square(image, 16), atol=1e-3)


def test_without_memory_the_frames_are_given_back(pixels, monkeypatch):
    staged = [pixels.stage(frame(9, 9)), pixels.stage(frame(9, 9))]

    def second_fails(*given, **how):
        if staged[1].on_device is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return INTERPOLATE(*given, **how)

    monkeypatch.setattr(torch_backend.F, "interpolate", second_fails)
    with pytest.raises(torch.OutOfMemoryError):
        pixels.squares([one.whole() for one in staged], 8)
    assert [one.on_device for one in staged] == [None, None]
