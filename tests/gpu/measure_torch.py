"""Fidelity and times of the torch backend on a GPU, in one run.

    python tests/gpu/measure_torch.py IMAGE.jpg BOXES.npy [--preset base_plus] [--profile]

BOXES.npy holds float32 (N, 4) boxes in the image's pixels. Random weights: speed does not depend on
them, fidelity does and is judged with trained ones elsewhere.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sam2_core.backends.torch_backend import TorchBackend
from sam2_core.frame_loop import FrameJob, FrameLoop
from sam2_core.preprocess import box_prompts, resize_square
from sam2_core.resolve import Wanted, resolve_weights
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, PendingMasks, Prompts


def decoded_rgb(data: bytes) -> np.ndarray:
    try:
        import simplejpeg

        return simplejpeg.decode_jpeg(data, "RGB")
    except ImportError:
        import cv2

        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1].copy()


def median_ms(work, repeats=30, warm=3) -> float:
    """Wall time of `work` followed by a device synchronisation."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return float(np.median(times) * 1e3)


def graph_ms(graph, repeats=30) -> float:
    """Device time of one replay of a captured graph."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return float(np.median(times))


def mask_iou(first, second) -> np.ndarray:
    a, b = np.asarray(first, np.float32) > 0, np.asarray(second, np.float32) > 0
    union = (a | b).sum((1, 2))
    return np.where(union > 0, (a & b).sum((1, 2)) / np.maximum(union, 1), 1.0)


def repeated(prompts: Prompts, images: int) -> Prompts:
    index = np.repeat(np.arange(images), len(prompts))
    return Prompts(np.tile(prompts.points_model, (images, 1, 1)),
                   np.tile(prompts.labels, (images, 1)), index)  # fmt: skip


def components(backend, square, prompts, result, label) -> None:
    started = time.perf_counter()
    features = backend.encode([square])
    backend.decode(features, prompts)
    result[f"{label} first call s"] = time.perf_counter() - started
    print(result, flush=True)
    result[f"{label} encode b1 ms/image"] = median_ms(lambda: backend.encode([square]))
    result[f"{label} decode {len(prompts)} ms"] = median_ms(
        lambda: backend.decode_later(features, prompts)
    )
    for (kind, images, count), captured in backend._graphs.items():
        result[f"{label} device {kind} b{images} p{count} ms"] = graph_ms(captured.graph)


def sustained(backend, data, boxes, result, label, encoder_batch, frames=200) -> None:
    jobs = [FrameJob(i, lambda: decoded_rgb(data), boxes) for i in range(frames)]
    with Segmenter(
        BoxShapedMasks(backend), decoder_chunk=136, encoder_batch=encoder_batch
    ) as segmenter:
        list(FrameLoop(segmenter, jobs[:12], readers=8, encoders=4))
        torch.cuda.synchronize()
        loop = FrameLoop(segmenter, jobs, readers=8, encoders=4)
        started = time.perf_counter()
        done = [r for r in loop if r.masks is not None]
        elapsed = time.perf_counter() - started
    assert len(done) == frames, "frames failed"
    result[f"{label} sustained ms/frame"] = elapsed / frames * 1e3
    result[f"{label} stages ms/frame"] = {
        stage: round(seconds / frames * 1e3, 2) for stage, seconds in loop.times.seconds().items()
    }


def profiled(backend, square, prompts, folder: Path, label: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    features = backend.encode([square])
    works = {
        "encode": lambda: backend.encode([square]),
        "decode": lambda: backend.decode_later(features, prompts),
    }
    for kind, work in works.items():
        work()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(5):
                work()
            torch.cuda.synchronize()
        table = profiler.key_averages().table(sort_by="cuda_time_total", row_limit=40,
                                              max_name_column_width=110)  # fmt: skip
        (folder / f"profile-{label}-{kind}.txt").write_text(table)


class BoxShapedMasks:
    """A backend whose results are exchanged for masks that fill their boxes, after all its work.

    Random weights give noise: hundreds of thousands of runs a mask, which no trained model has.
    The device computes and copies everything as always; only what post-processing reads differs.
    """

    def __init__(self, backend) -> None:
        self.backend, self.info, self.encode = backend, backend.info, backend.encode
        self._shapes = {}

    def shapes(self, prompts: Prompts) -> np.ndarray:
        key = prompts.points_model.tobytes()
        if key not in self._shapes:
            grid = self.info.image_size // 4
            corners = prompts.points_model[:, :2] / 4
            centre, half = corners.mean(1), np.maximum(np.diff(corners, axis=1)[:, 0] / 2, 0.5)
            cell = np.arange(grid, dtype=np.float32) + 0.5
            dx = (cell - centre[:, :1]) / half[:, :1]
            dy = (cell - centre[:, 1:]) / half[:, 1:]
            distance = dy[:, :, None] ** 4 + dx[:, None, :] ** 4
            ripple = np.sin(5 * np.arctan2(dy[:, :, None], dx[:, None, :]))
            self._shapes[key] = (4 * (1 - distance) + ripple).clip(-20, 20).astype(np.float16)
        return self._shapes[key]

    def decode_later(self, features, prompts: Prompts):
        pending = self.backend.decode_later(features, prompts)
        shapes = self.shapes(prompts)
        return PendingMasks(len(prompts), lambda: replace(pending.wait(), logits=shapes))


def attempt(part, *arguments) -> None:
    """Run a part; a failure is printed and the rest goes on, for device time is dear."""
    started = time.perf_counter()
    try:
        part(*arguments)
    except Exception:
        traceback.print_exc()
    print(f"[{part.__name__}: {time.perf_counter() - started:.1f} s]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("image", type=Path)
    parser.add_argument("boxes", type=Path)
    parser.add_argument("--preset", default="base_plus")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--encoder-batches", default="1")
    given = parser.parse_args()
    faulthandler.dump_traceback_later(200, repeat=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    data = given.image.read_bytes()
    xyxy = np.load(given.boxes)
    boxes = Boxes(xyxy, np.ones(len(xyxy)), ("object",) * len(xyxy))
    image = decoded_rgb(data)
    cuda = given.device == "cuda"
    device_name = torch.cuda.get_device_name() if cuda else "cpu"
    result: dict[str, object] = {"device": device_name, "torch": torch.__version__}
    weights = resolve_weights(f"random:{given.preset}")
    reference = TorchBackend(weights, Wanted("fp32", "published"), given.device)
    size = reference.info.image_size
    square = resize_square(image, size)
    found = box_prompts(xyxy, image.shape[:2], size)
    prompts = Prompts(found.points_model, found.labels, np.zeros(len(found.rows), np.int64))
    expected = reference.decode(reference.encode([square]), prompts)
    for precision, graph, compiled in (("fp16", "restructured", cuda),):
        label = f"{graph} {precision} {'compiled' if compiled else 'eager'}"
        backend = TorchBackend(weights, Wanted(precision, graph), given.device, compiled=compiled)
        started = time.perf_counter()
        ours = backend.decode(backend.encode([square]), prompts)
        print(f"first call (compilation): {time.perf_counter() - started:.1f} s", flush=True)
        iou = mask_iou(ours.logits, expected.logits)
        result[f"{label} IoU mean/p1/min"] = [
            round(float(v), 5) for v in (iou.mean(), np.percentile(iou, 1), iou.min())
        ]
        result[f"{label} max |predicted IoU difference|"] = float(
            np.abs(ours.predicted_iou - expected.predicted_iou).max()
        )
        if compiled:
            attempt(components, backend, square, prompts, result, label)
            print(result, flush=True)
            for batch in map(int, given.encoder_batches.split(",")):
                attempt(sustained, backend, data, boxes, result, f"{label} b{batch}", batch)
                print(result, flush=True)
            if given.profile:
                attempt(profiled, backend, square, prompts, given.out, graph)
    faulthandler.cancel_dump_traceback_later()
    (given.out / "torch.json").write_text(json.dumps(result, indent=1, default=str))
    for name, value in result.items():
        print(f"{name:60} {value if not isinstance(value, float) else round(value, 3)}")


if __name__ == "__main__":
    main()
