"""What the sections of `gpu_measure.py` share: inputs, clocks, and results that survive a crash."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.preprocess import resize_square
from sam2_core.prompts import box_prompts
from sam2_core.types import Boxes, LowResMasks, Prompts

OUT = Path(os.environ.get("MEASURE_OUT", "."))
FRAMES = Path(os.environ.get("MEASURE_FRAMES", "."))
CACHE = Path(os.environ.get("MEASURE_CACHE", "/tmp/autolabel-measure"))
PRESET = os.environ.get("MEASURE_PRESET", "base_plus")
# Trained weights for fidelity: checkpoints of the compact preset, or those that are bundled.
TRAINED = os.environ.get("MEASURE_TRAINED", "compact").split(",")


def record(section: str, **values: Any) -> None:
    """Append one line to the results at once: a section that is killed later loses nothing."""
    line = json.dumps({"section": section, **values}, default=str)
    print(line, flush=True)
    with (OUT / "results.jsonl").open("a") as file:
        file.write(line + "\n")


def decoded_rgb(data: bytes) -> np.ndarray:
    """Decode a JPEG as the product does."""
    import simplejpeg

    return simplejpeg.decode_jpeg(data, "RGB")


class Frame:
    """A JPEG with boxes: NAME.jpg and NAME.npy, float32 (N, 4) in the image's pixels."""

    def __init__(self, name: str = "street", image_size: int = 1024) -> None:
        self.data = (FRAMES / f"{name}.jpg").read_bytes()
        self.xyxy = np.load(FRAMES / f"{name}.npy").astype(np.float32)
        self.image = decoded_rgb(self.data)
        self.size_hw = self.image.shape[:2]
        self.square = resize_square(self.image, image_size)
        self.boxes = boxes_of(self.xyxy)
        self.prompts = prompts_of(self.xyxy, self.size_hw, image_size)

    def many(self, count: int, image_size: int = 1024) -> Prompts:
        """Return `count` boxes: the frame's, over and over."""
        rows = np.arange(count) % len(self.xyxy)
        return prompts_of(self.xyxy[rows], self.size_hw, image_size)


def boxes_of(xyxy: np.ndarray) -> Boxes:
    """Boxes with nothing known about them."""
    return Boxes(xyxy, np.ones(len(xyxy), np.float32), ("object",) * len(xyxy))


def prompts_of(xyxy: np.ndarray, size_hw: tuple[int, int], image_size: int) -> Prompts:
    """Box prompts of one image."""
    return box_prompts(xyxy, size_hw, image_size)[0]


def median_ms(work: Callable[[], object], wait: Callable[[], object], repeats: int = 30) -> float:
    """Wall time of `work` until the device is done."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - started)
    return round(float(np.median(times) * 1e3), 3)


def mask_iou(first: LowResMasks, second: LowResMasks) -> np.ndarray:
    """IoU of masks on the mask grid; two empty ones agree."""
    a, b = first.logits > 0, second.logits > 0
    union = (a | b).sum((1, 2))
    return np.where(union > 0, (a & b).sum((1, 2)) / np.maximum(union, 1), 1.0)


def agreement(iou: np.ndarray, large: np.ndarray) -> dict[str, Any]:
    """Mean and low IoU of all masks, and of those over 32x32 pixels of the image."""
    found: dict[str, Any] = {"masks": len(iou), "large": int(large.sum())}
    for name, some in (("all", iou), ("large", iou[large])):
        if len(some):
            values = some.mean(), np.percentile(some, 1), some.min()
            found[name] = {
                key: round(float(v), 6)
                for key, v in zip(("mean", "p1", "min"), values, strict=True)
            }
    return found


def profiled(work: Callable[[], object], name: str, rounds: int = 5) -> None:
    """Write the kernels of `work` by their time (torch.profiler sees ONNX Runtime's, too)."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            work()
        torch.cuda.synchronize()
    events = [e for e in profiler.key_averages() if e.device_time_total > 0]
    events.sort(key=lambda e: -e.device_time_total)
    total = sum(e.device_time_total for e in events) / rounds / 1e3
    lines = [f"{total:9.3f} ms per run in all"]
    lines += [
        f"{e.device_time_total / rounds / 1e3:9.4f} ms {e.count / rounds:6.1f} x {e.key[:150]}"
        for e in events[:45]
    ]
    with (OUT / "profiles.txt").open("a") as file:
        file.write(f"=== {name}\n" + "\n".join(lines) + "\n")
    record("profile", name=name, kernels_ms=round(total, 3))
