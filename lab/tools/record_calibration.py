"""Make the pictures that engines are held against, and what PyTorch says to them.

    python lab/tools/record_calibration.py            # pictures and answers
    python lab/tools/record_calibration.py --answers  # answers to the pictures that are there

writes sam2_core/trust/streets/, and reference*.json beside the bundled model and tests' micro
one. Run it again when the pictures, the bundled weights or the definition of a close-up change.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from sam2_core.find_weights import BUNDLED_GRAPHS, resolve_weights
from sam2_core.mask_geometry import size_class
from sam2_core.trust.calibration import bundled_calibration, file_name
from sam2_core.trust.torch_judge import torch_answers

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "sam2_core" / "trust" / "streets"
# Seeds that no training has seen, sizes (h, w), and how many boxes of each class of size.
SCENES = ((90_100_004, (1280, 1920)), (90_100_013, (960, 1280)))
WANTED = {"small": 2, "medium": 3, "large": 3}


def record_pictures() -> None:
    import simplejpeg

    from lab.scenes import render_scene

    PICTURES.mkdir(exist_ok=True)
    boxes: dict[str, list[list[float]]] = {}
    for number, (seed, size_hw) in enumerate(SCENES):
        scene = render_scene(seed, size_hw)
        name = f"street-{number}.jpg"
        (PICTURES / name).write_bytes(simplejpeg.encode_jpeg(scene.image, quality=85))
        chosen: list[list[float]] = []
        for size, count in WANTED.items():
            fitting = [one for one in scene.instances if size_class(one.area_px) == size]
            every = np.linspace(0, len(fitting) - 1, min(count, len(fitting))).round().astype(int)
            chosen += [[float(v) for v in fitting[i].box_xyxy_px] for i in every]
        boxes[name] = chosen
        print(name, len(chosen), "boxes of", len(scene.instances))
    (PICTURES / "boxes.json").write_text(json.dumps(boxes, indent=1) + "\n")


def record_answers() -> None:
    compact = ROOT / "sam2_core" / "weights" / "compact" / BUNDLED_GRAPHS
    micro = ROOT / "tests" / "data" / "micro"
    calibration = bundled_calibration()
    for name, folder, kinds in (
        ("compact", compact, (True, False)), ("random:micro", micro, (False,))
    ):  # fmt: skip
        weights = resolve_weights(name)
        for close_ups in kinds:
            answers = torch_answers(
                weights.load(), calibration, close_ups=close_ups, checkpoint_sha256=weights.sha256
            )
            answers.write(folder / file_name(close_ups=close_ups))
            print(folder / file_name(close_ups=close_ups))


if __name__ == "__main__":
    if "--answers" not in sys.argv:
        record_pictures()
    record_answers()
