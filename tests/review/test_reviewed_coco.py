"""The COCO file of an export of decisions can be measured by, whatever was decided."""

import json

import numpy as np
from pycocotools import mask as coco_mask

from tasks.dataset.coco_truth import load_truth
from tasks.review.export import coco_of


def test_labels_without_a_mask_are_no_instances(tmp_path):
    mask = np.zeros((20, 30), np.uint8, order="F")
    mask[5:10, 5:15] = 1
    sample = {"frame_uri": "/in/0.jpg", "frame_key": "0", "review_status": "done",
              "metadata": {"width": 30, "height": 20}}  # fmt: skip
    rows = [
        {"frame_key": "0", "label": "car", "decision": decision, "area_px": int(one.sum()),
         "size_hw": [20, 30], "rle": coco_mask.encode(one)["counts"].decode(),
         "box_xyxy_px": [5.0, 5.0, 15.0, 10.0] if one.any() else [float("nan")] * 4}
        for decision, one in (("accepted", mask), ("accepted", mask * 0), ("rejected", mask))
    ]  # fmt: skip
    (tmp_path / "coco.json").write_text(json.dumps(coco_of([sample], rows)))
    (image,) = load_truth(tmp_path / "coco.json").images
    assert image.area_px.tolist() == [50]
