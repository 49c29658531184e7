"""Measure the whole product on a GPU: `label` as its users run it, faults, fidelity, start-up.

    python lab/tools/gpu_product.py --clip VIDEO --out OUT [--repeats N] [SECTION ...]

VIDEO is any driving clip; its frames become JPEGs of 8 and of 24 sequences. Every section prints
one line of JSON a result and appends it to OUT/product.jsonl; what a command writes lies beside.

    parity     masks and boxes of the GPU's graphs against float32 on the CPU, on frames of the clip
    stages     milliseconds of each stage in a process, without Prefect, storage and the database
    label      the command on 8 sequences, repeatedly: failures, seconds, how busy the device was
    lone       the same where PyTorch cannot be imported
    sustained  `bench --pipeline` over 24 sequences with FiftyOne, for numbers of processes
    first      seconds from the command to the first labeled frame; the second one is warm
    compilation, large   Meta's base_plus by its size on PyTorch, 135 given boxes a frame of
               1920x1280 (--street, --boxes): the first run, which compiles; then
               `bench --pipeline`
    spy, spy-large   who holds Python's lock in each process of a run (needs py-spy)
    fleet      `up`, all sequences by `backfill` on the workers, repeatedly; idle between shards
    poison     a poisoned device context in the middle of a run
    stale      ESTALE from one file system while frames are read
    memory     a frame of 2,000 boxes and a run while somebody else holds the device's memory
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu_product_faults import memory, poison, stale
from gpu_product_fleet import fleet
from gpu_product_large import compilation, large
from gpu_product_run import SEQUENCES, Run, told, without_torch
from gpu_product_spy import spy, spy_large


def close_up_masks(run: Run, backend: Any, images: list[Any], boxes: list[Any]) -> list[Any]:
    from sam2_core.segmenter import Segmenter

    with Segmenter(backend) as segmenter:
        return segmenter.segment(images, boxes)


def ious(first: Any, second: Any) -> tuple[np.ndarray, np.ndarray]:
    """IoU of each mask, and its area in the second."""
    from pycocotools import mask as coco_mask

    values = []
    for a, b in zip(first.rle, second.rle, strict=True):
        one, other = ({"size": list(first.size_hw), "counts": rle} for rle in (a, b))
        values.append(float(coco_mask.iou([one], [other], [0])[0, 0]) if a != b else 1.0)
    return np.array(values), np.array(second.area_px)


def agreement(iou: np.ndarray, area: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = {"masks": len(iou)}
    for name, some in (("all", iou), ("over_32", iou[area > 32 * 32])):
        if len(some):
            found[name] = [round(float(v), 5) for v in
                           (some.mean(), np.percentile(some, 1), some.min())]  # fmt: skip
    return found


def parity(run: Run, given: argparse.Namespace) -> None:
    """Masks of the same boxes on GPU and CPU; boxes of the detector on both."""
    from sam2_core.load import load_backend
    from tasks.boxes.detectors import load_detector

    images = run.images(10)
    cpu, gpu = load_detector("compact"), load_detector("compact", backend="onnxruntime-cuda")
    expected = [cpu.detect([cpu.letterbox(image)])[0] for image in images]
    found = gpu.detect([gpu.letterbox(image) for image in images])
    apart = [abs(a.xyxy_px - b.xyxy_px).max() for a, b in zip(expected, found, strict=True)
             if len(a) == len(b) and len(a)]  # fmt: skip
    run.record("parity", what="boxes", cpu=[len(b) for b in expected],
               gpu=[len(b) for b in found], px=[round(float(one), 3) for one in apart])  # fmt: skip
    reference = close_up_masks(run, load_backend("compact", "onnxruntime-cpu", "fp32"), images,
                               expected)  # fmt: skip
    for backend, precision in itertools.product(given.backends.split(","), ("fp16", "fp32")):
        started = time.perf_counter()
        loaded = load_backend("compact", backend, precision)
        seconds = time.perf_counter() - started
        masks = close_up_masks(run, loaded, images, expected)
        pairs = [ious(one, other) for one, other in zip(masks, reference, strict=True)]
        iou, area = (np.concatenate(column) for column in zip(*pairs, strict=True))
        run.record("parity", what=f"{backend} {precision}", load_s=round(seconds, 2),
                   **agreement(iou, area))  # fmt: skip


def timed(work: Callable[[], object], repeats: int) -> float:
    work()
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    return round((time.perf_counter() - started) / repeats * 1e3, 3)


def stages(run: Run) -> None:
    """What each stage takes, alone: the device's, and a CPU thread's."""
    import simplejpeg

    from sam2_core.load import load_backend
    from sam2_core.segmenter import Segmenter
    from tasks.boxes.detectors import load_detector

    data = (run.few / "drive-00" / "000040.jpg").read_bytes()
    image = simplejpeg.decode_jpeg(data, "RGB")
    detector = load_detector("compact", backend="onnxruntime-cuda")
    eight = [detector.letterbox(image)] * 8
    boxes = detector.detect(eight[:1])[0]
    backend = load_backend("compact", "onnxruntime-cuda", "fp16")
    segmenter = Segmenter(backend)
    prepared = segmenter.prepare(image, boxes)
    (masks,) = segmenter.segment([image], [boxes])
    low = segmenter.run([prepared])[0]
    four = [segmenter.prepare(image, boxes) for _ in range(4)]
    run.record(
        "stages", boxes=len(boxes), masks=len(masks),
        jpeg_ms=timed(lambda: simplejpeg.decode_jpeg(data, "RGB"), 20),
        prepare_ms=timed(lambda: segmenter.prepare(image, boxes), 20),
        detector_8_ms=timed(lambda: detector.detect(eight), 20),
        detector_1_ms=timed(lambda: detector.detect(eight[:1]), 20),
        masks_1_ms=timed(lambda: segmenter.run([prepared]), 20),
        masks_4_ms=timed(lambda: segmenter.run(four), 20),
        finish_ms=timed(lambda: segmenter.finish(prepared, low), 20),
    )  # fmt: skip
    try:
        import torch
        from torchvision.io import decode_jpeg

        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        some = [tensor] * 16
        run.record("stages", nvjpeg_16_ms=timed(
            lambda: (decode_jpeg(some, device="cuda"), torch.cuda.synchronize()), 10))  # fmt: skip
    except Exception as error:
        run.record("stages", nvjpeg=repr(error)[:200])


def label(run: Run, given: argparse.Namespace) -> None:
    """The command as it is, FiftyOne included."""
    for backend in given.backends.split(","):
        for number in range(given.repeats):
            name = f"label-{backend}-{number}"
            found = run.label(name, "--dataset", name, "--backend", backend)
            run.record("label", number=number, **told(found))


def lone(run: Run, given: argparse.Namespace) -> None:
    """The same without PyTorch."""
    env = without_torch(run)
    for number in range(given.repeats):
        found = run.label(f"lone-{number}", "--dataset", f"lone-{number}", env=env)
        run.record("lone", number=number, **told(found))


def sustained(run: Run, given: argparse.Namespace) -> None:
    """Rates of the middle of a longer run, by how many processes share the device."""
    for number, count in enumerate(given.processes.split(",")):
        env = {"AUTOLABEL_DEVICE_PROCESSES": count} if count else {}
        for dataset in ((), ("--dataset", f"sustained-{number}")):
            if not dataset and not given.without_dataset:
                continue
            name = f"sustained-{count or 'default'}-{'with' if dataset else 'without'}"
            picture = run.out / f"{name}.png"
            words = ("bench", "--pipeline", str(run.frames), "--plot", str(picture), *dataset)
            found = run.command(name, *words, env=env)
            for curve in ("curves", "busy"):
                found.pop(curve, None)
            run.record("sustained", processes=count, dataset=bool(dataset), **found)


def first(run: Run, given: argparse.Namespace) -> None:
    """One frame, from the command to its end, and the first of many."""
    for backend in given.backends.split(","):
        for number in range(max(given.repeats, 2)):
            found = run.label(f"first-{backend}-{number}", "--no-dataset", "--frames", "0:1",
                              "--backend", backend, source=run.few / "drive-00")  # fmt: skip
            run.record("first", number=number, **told(found))


SECTIONS: dict[str, Callable[[Run, argparse.Namespace], None]] = {
    "parity": parity, "stages": lambda run, _: stages(run), "label": label,
    "lone": lone, "sustained": sustained, "first": first, "large": large, "fleet": fleet,
    "compilation": compilation, "spy": spy, "spy-large": spy_large,
    "poison": poison, "stale": stale, "memory": memory,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clip", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="of 124 frames each")
    parser.add_argument("--backends", default="onnxruntime-cuda", help="for `parity`, `label`, "
                        "`first` and `poison`: onnxruntime-cuda,torch")  # fmt: skip
    parser.add_argument(
        "--processes",
        default="",
        help="for `sustained` and `large`: numbers, A,B,C; `spy-large`: one",
    )
    parser.add_argument("--without-dataset", action="store_true",
                        help="for `sustained`: also so, for `fleet`: so")  # fmt: skip
    parser.add_argument("--without-torch", action="store_true", help="for `fleet`")
    parser.add_argument("--shard-minutes", type=float, help="for `fleet`, where not the default's")
    parser.add_argument("--street", type=Path, help="for `large`: a picture of a street")
    parser.add_argument("--boxes", type=Path, help="its boxes, lines of `label score x1 y1 x2 y2`")
    parser.add_argument("--workers", type=int, help="for `fleet`")
    parser.add_argument("sections", nargs="*", default=["parity", "stages", "label"])
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # sections end what they started
    run = Run(given.clip, given.out, given.sequences)
    for section in given.sections:
        started = time.perf_counter()
        try:
            SECTIONS[section](run, given)
        except Exception as error:
            import traceback

            traceback.print_exc()
            run.record(section, error=repr(error)[:500])
        print(f"[{section}: {time.perf_counter() - started:.1f} s]", flush=True)


if __name__ == "__main__":
    main()
