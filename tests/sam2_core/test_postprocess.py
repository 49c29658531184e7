"""Masks from low-resolution logits, against full-resolution upsampling and pycocotools."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from sam2_core.postprocess import EMPTY, NOT_FINITE, encode_masks, finish
from sam2_core.types import LowResMasks

GRID = 64


def upsample(logits, size_hw):
    """Bilinear, align_corners=False, whole image, float32 in PyTorch's order of operations."""

    def axis(grid, size):
        scale = np.float32(grid) / np.float32(size)
        source = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        source = np.maximum(source, 0)
        low = np.minimum(source.astype(int), grid - 1)
        return low, np.minimum(low + 1, grid - 1), source - low.astype(np.float32)

    x0, x1, wx = axis(logits.shape[1], size_hw[1])
    y0, y1, wy = axis(logits.shape[0], size_hw[0])
    wide = logits[:, x0] * (1 - wx) + logits[:, x1] * wx
    return wide[y0] * (1 - wy)[:, None] + wide[y1] * wy[:, None]


def random_logits(seed, smooth, offset, grid=GRID):
    noise = np.random.default_rng(seed).standard_normal((grid, grid))
    spectrum = np.fft.fft2(noise)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(grid), np.fft.fftfreq(grid)))
    field = np.fft.ifft2(spectrum * np.exp(-((frequency * smooth) ** 2))).real
    return (field / field.std() + offset).astype(np.float32)


def assert_exact(logits, size_hw, strings, area):
    for index, window in enumerate(logits):
        reference = upsample(window, size_hw) > 0
        expected = coco.encode(np.asfortranarray(reference.astype(np.uint8)))
        assert strings[index] == expected["counts"]
        assert area[index] == reference.sum()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    smooth=st.floats(0, 30),
    offset=st.floats(-3, 3),
    height=st.integers(1, 300),
    width=st.integers(1, 300),
)
def test_masks_equal_those_of_full_upsampling(seed, smooth, offset, height, width):
    logits = np.stack([random_logits(seed + i, smooth, offset) for i in range(3)])
    strings, area, _ = encode_masks(logits, (height, width))
    assert_exact(logits, (height, width), strings, area)


def test_masks_equal_torch_at_camera_size():
    torch = pytest.importorskip("torch")
    logits = np.stack([random_logits(s, s * 3, s / 4 - 1.5, 256) for s in range(12)])
    size_hw = (1280, 1920)
    strings, _, _ = encode_masks(logits, size_hw)
    full = torch.nn.functional.interpolate(torch.from_numpy(logits)[:, None], size=size_hw,
                                           mode="bilinear", align_corners=False)  # fmt: skip
    for text, values in zip(strings, full[:, 0].numpy(), strict=True):
        ours = coco.decode({"size": list(size_hw), "counts": text}).astype(bool)
        differ = ours != (values > 0)
        assert np.abs(values[differ]).max(initial=0) < 1e-5  # only where it is zero to rounding
        assert differ.sum() < 5


@pytest.mark.parametrize("width", [1, 63, 64, 65, 128, 130])
def test_many_masks_of_any_width_equal_full_upsampling(width):
    """Widths around a word's bits, more masks than are packed at once."""
    generator = np.random.default_rng(width)
    logits = generator.normal(size=(70, 9, width)).astype(np.float16)
    logits[3], logits[4] = 1, -1
    size_hw = (20, 2 * width + 1)
    strings, area, _ = encode_masks(logits, size_hw)
    assert_exact(logits.astype(np.float32), size_hw, strings, area)


def test_memory_does_not_grow_with_noise():
    """Noise has border in nearly every cell; the memory of 20 noisy masks is bounded."""
    noise = np.random.default_rng(3).normal(size=(20, 256, 256)).astype(np.float32)
    encode_masks(noise[:1], (480, 640))
    tracemalloc.start()
    strings, _, _ = encode_masks(noise, (480, 640))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80e6 + sum(map(len, strings))
    alone, _, _ = encode_masks(noise[11:12], (480, 640))
    assert strings[11] == alone[0]


def test_rows_stay_in_the_callers_order():
    good, bad = random_logits(1, 10, 0), np.full((GRID, GRID), np.nan, np.float32)
    empty = np.full((GRID, GRID), -3, np.float32)
    scores = np.array([0.9, 0.8, 0.7], np.float32)
    low_res = LowResMasks(np.stack([good, bad, empty]), scores, scores * 2, scores / 2)
    masks = finish(
        low_res, (50, 60), np.array([1, 3, 4]), ["invalid box: zero area", "", "x", "", ""]
    )
    assert masks.reasons == ("invalid box: zero area", "", "x", NOT_FINITE, EMPTY)
    assert masks.predicted_iou.tolist() == [0, scores[0], 0, 0, scores[2]]
    assert masks.object_score.tolist() == [0, scores[0] * 2, 0, 0, scores[2] * 2]
    assert masks.area_px[[0, 2, 3, 4]].tolist() == [0, 0, 0, 0]
    for index in (0, 2, 3, 4):
        assert coco.area({"size": [50, 60], "counts": masks.rle[index]}) == 0
    assert_exact([good], (50, 60), [masks.rle[1]], [masks.area_px[1]])
