"""Images and boxes into the model's square input."""

import numpy as np
import pytest

from sam2_core.preprocess import resize_square
from sam2_core.prompts import box_prompts


def antialiased_bilinear(image, size):
    """The triangle filter that PyTorch's antialias uses, in float64: an independent reference."""

    def weights(length):
        scale = length / size
        support = max(scale, 1.0)
        centres = (np.arange(size) + 0.5) * scale
        positions = np.arange(length) + 0.5
        triangle = np.maximum(1 - np.abs(positions - centres[:, None]) / support, 0)
        return triangle / triangle.sum(1, keepdims=True)

    rows, columns = weights(image.shape[0]), weights(image.shape[1])
    return np.einsum("yh,xw,hwc->yxc", rows, columns, image.astype(np.float64), optimize=True)


@pytest.mark.parametrize("shape", [(300, 500), (40, 70), (700, 90), (1, 1)])
def test_resize_is_antialiased_bilinear(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    resized = resize_square(image, 128)
    assert resized.shape == (128, 128, 3)
    assert resized.dtype == np.float32
    assert np.abs(resized - antialiased_bilinear(image, 128)).max() <= 1e-3


def test_resize_refuses_what_is_not_rgb():
    with pytest.raises(ValueError, match=r"uint16 \(4, 4, 3\)"):
        resize_square(np.zeros((4, 4, 3), np.uint16), 8)
    with pytest.raises(ValueError):
        resize_square(np.zeros((4, 4, 4), np.uint8), 8)


def test_box_prompts_scale_both_axes_and_flag_invalid_boxes():
    nan = float("nan")
    boxes = np.array(
        [
            [10, 20, 110, 220],
            [nan, 0, 1, 1],
            [50, 10, 40, 20],
            [5, 5, 5, 9],
            [500, 10, 600, 20],
            [-50, -10, 40, 1000],
            [0, 0, float("inf"), 10],
        ],
        np.float32,
    )
    prompts, rows, reasons = box_prompts(boxes, (400, 200), 1024)
    assert rows.tolist() == [0, 5]
    assert [reason.split(":")[-1].strip() for reason in reasons] == [
        "",
        "a coordinate is not a finite number",
        "inverted (right < left or bottom < top)",
        "zero area",
        "outside the image",
        "",
        "a coordinate is not a finite number",
    ]
    assert prompts.labels.tolist() == [[2, 3, -1]] * 2
    assert prompts.points_model.dtype == np.float32
    scale = np.array([1024 / 200, 1024 / 400])
    np.testing.assert_allclose(prompts.points_model[0, :2], [[10, 20], [110, 220]] * scale)
    np.testing.assert_allclose(prompts.points_model[1, :2], [[0, 0], [40, 400]] * scale)
