"""Labels of one version are equal: what changes masks or boxes has to raise `LABELS_VERSION`.

`python -m tests.integration.test_labels_version` records them, after the version was raised or
the bundled models were replaced.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_masks

from flows.run import label
from sam2_core.labels_version import LABELS_VERSION
from tasks.evaluate.evaluate import EXAMPLES
from tasks.export.run import Choice, Frames
from tasks.export.types import ExportNotes
from tasks.pipeline.params import LabelParams

GOLDEN = Path(__file__).parents[1] / "data" / "golden_labels.json"
DRIVE = EXAMPLES / "street-a"
# Two CPUs round differently: 1 pixel on an outline, a hundredth of a pixel in a box.
LEAST_IOU, MOST_PX = 0.99, 0.1
TIDIED = {"clean_masks": 0.01, "overlap": "depth", "fill_gaps": 1}
RUNS = {
    "detected": {"frames": "0:2"},
    "detected and tidied": {"frames": "0:3", **TIDIED},
    "imported and followed": {"frames": "0:2", "follow": True},
}


def boxes_with_gaps(folder):
    """Write the drive's true boxes; two of three objects are missing after the first frame."""
    truth = json.loads((DRIVE / "truth.json").read_text())
    truth["annotations"] = [
        found
        for found in truth["annotations"]
        if found["image_id"] == 1 or found["track_id"] % 3 == 0
    ]
    path = folder / "boxes.json"
    path.write_text(json.dumps(truth))
    return str(path)


def labels_of(run, folder):
    """Label, and return what made the labels and those of each frame."""
    options = dict(RUNS[run])
    if "follow" in options:
        options["boxes"] = boxes_with_gaps(folder)
    params = LabelParams(
        sources=str(DRIVE / "images"), out=str(folder / "out"), load_dataset=False,
        model="compact", backend="onnxruntime-cpu", precision="fp32", **options,
    )  # fmt: skip
    label(params)
    frames = Frames(params.out, Choice(), None, pictures=False, notes=ExportNotes())
    (manifest,) = frames.manifests
    stamp = manifest.stamp
    assert stamp.code == stamp.model.code_version == LABELS_VERSION
    found = [
        [
            {
                "label": instance.label,
                "box_xyxy_px": np.round(instance.box_xyxy_px, 2).tolist(),
                "rle": instance.rle.decode(),
            }
            for instance in frame.instances
        ]
        for frame in sorted(frames, key=lambda frame: frame.index)
    ]
    return {"detector": stamp.detector, "model": stamp.model.checkpoint_sha256, "frames": found}


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=[pytest.mark.ci] if "follow" in options else [])  # 10 s a frame
        for run, options in RUNS.items()
    ],
)
def test_labels_of_a_version_are_equal(run, tmp_path, own_cache):
    golden = json.loads(GOLDEN.read_text())
    again = "record tests/data/golden_labels.json anew, as this file's first lines say"
    assert golden["version"] == LABELS_VERSION, f"the version was raised: {again}"
    before, now = golden["runs"][run], labels_of(run, tmp_path)
    if "boxes" not in now["detector"]:
        assert before["detector"] == now["detector"], f"the detector is another one: {again}"
    assert before["model"] == now["model"], f"the model is another one: {again}"
    changed = "labels changed under the same version: raise LABELS_VERSION, or mend the change"
    for frame_before, frame_now in zip(before["frames"], now["frames"], strict=True):
        assert [found["label"] for found in frame_before] == [
            found["label"] for found in frame_now
        ], changed
        for was, found in zip(frame_before, frame_now, strict=True):
            moved_px = np.abs(np.subtract(was["box_xyxy_px"], found["box_xyxy_px"])).max()
            assert moved_px <= MOST_PX, changed
            masks = [[{"size": [720, 1280], "counts": item["rle"]}] for item in (was, found)]
            assert coco_masks.iou(*masks, [0])[0, 0] >= LEAST_IOU, changed


if __name__ == "__main__":
    recorded = {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as temporary:
            recorded[name] = labels_of(name, Path(temporary))
    GOLDEN.write_text(json.dumps({"version": LABELS_VERSION, "runs": recorded}, indent=1) + "\n")
    sys.exit(0)
