"""Masks without a model."""

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from lab.baselines import baseline_masks
from sam2_core.mask_geometry import mask_iou
from sam2_core.types import Boxes

H, W = 120, 160


def test_grabcut_beats_the_box_on_a_plain_disk():
    image = np.full((H, W, 3), 40, np.uint8)
    cv2.circle(image, (80, 60), 30, (220, 60, 60), -1)
    disk = (image[..., 0] > 128).astype(np.uint8)
    boxes = Boxes([[50, 30, 111, 91], [np.nan, 0, 5, 5]], [1, 1], ("car", "car"))
    true = coco_mask.encode(np.asfortranarray(disk))["counts"]
    ious = {}
    for method in ("box", "grabcut"):
        masks = baseline_masks(image, boxes, method)
        ious[method] = mask_iou(masks.rle[0], true, (H, W))
        assert masks.reasons == ("", "no pixel inside the image")
    assert ious["box"] == pytest.approx(np.pi / 4, abs=0.03)
    assert ious["grabcut"] > 0.97
