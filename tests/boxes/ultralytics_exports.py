"""Export a network of Ultralytics, and say what it finds; run by a Python that has `ultralytics`.

Arguments: a name such as yolov8n, options of the export as JSON, pictures (N, h, w, 3) RGB uint8 as
.npy, and the .onnx to write. Prints, for each picture, rows of x1, y1, x2, y2, score, class.
"""

import importlib
import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import torch

try:
    importlib.import_module("torchvision")
except RuntimeError:  # PyPI's is built for CUDA's torch; only its NMS is used
    sys.modules["torchvision"] = types.ModuleType("torchvision")
from ultralytics import RTDETR, YOLO
from ultralytics.utils.nms import TorchNMS

if not hasattr(sys.modules["torchvision"], "ops"):
    sys.modules["torchvision"].ops = types.SimpleNamespace(nms=TorchNMS.nms)
    sys.modules["torchvision"].__version__ = "0"
SIDE = 320


def give_life(net, pictures):
    """Give random weights answers that differ from place to place, with scores of 0 to 1."""
    small = torch.nn.functional.interpolate(
        torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255, (SIDE, SIDE)
    )
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
            layer.reset_running_stats()
            layer.train()
    with torch.no_grad():
        net.float()(small)
        net.eval()

        def to_scale(layer, given, answer):
            layer.weight.normal_(0, 1)
            layer.bias.fill_(-4 if layer.out_channels == 80 else 5)
            off = type(layer).forward(layer, *given) - layer.bias.reshape(-1, 1, 1)
            layer.weight.mul_(3 / off.abs().max())
            return type(layer).forward(layer, *given)

        hooks = [
            layer.register_forward_hook(to_scale)
            for layer in net.model[-1].modules()
            if isinstance(layer, torch.nn.Conv2d) and layer.bias is not None
        ]
        net(small)
        for hook in hooks:
            hook.remove()


def main(name, options, pictures, target):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    kind = RTDETR if "rtdetr" in name else YOLO
    images = np.load(pictures)
    made = kind(f"{name}.yaml")
    give_life(made.model, images)
    weights = target.with_suffix(".pt")
    made.save(str(weights))
    settings = {"format": "onnx", "imgsz": SIDE, "opset": 17, "simplify": False, **options}
    shutil.move(kind(str(weights)).export(**settings), target)
    found = {}
    for runtime in (weights, target):
        model = kind(str(runtime))
        found[runtime.suffix] = []
        for image in images:
            (result,) = model.predict(
                np.ascontiguousarray(image[:, :, ::-1]), imgsz=settings["imgsz"], rect=False,
                conf=0.01, iou=0.45, max_det=3000, device="cpu", verbose=False,
            )  # fmt: skip
            found[runtime.suffix].append(result.boxes.data.tolist())
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    _, name, options, pictures, target = sys.argv
    main(name, json.loads(options), pictures, Path(target))
