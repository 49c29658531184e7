"""Measure the whole product on a GPU: `label` as its users run it, faults, fidelity, start-up.

    python tests/tools/gpu_product.py --clip VIDEO --out OUT [SECTION ...]

VIDEO is any driving clip; its frames become JPEGs of eight sequences. Every section prints one line
of JSON a result and appends it to OUT/product.jsonl; what a command writes lies beside it.

    parity    masks and boxes of the GPU's graphs against float32 on the CPU, on frames of the clip
    stages    milliseconds of each stage in a process, without Prefect, storage and the database
    label     the command, several times: failures, seconds, frames/s, how busy the device was
    lone      the same where PyTorch cannot be imported
    first     seconds from the command to the first labeled frame, twice: the second one is warm
    faults    a poisoned device context, and memory that somebody else holds
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

AUTOLABEL = (sys.executable, "-c", "from flows.cli.main import main; main()")
SEQUENCES = 8


class Busy:
    """How busy the device is, sampled by nvidia-smi while a block runs."""

    def __enter__(self) -> Busy:
        self.samples: list[tuple[float, int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used",
                 "--format=csv,noheader,nounits", "-lms", "100"]  # fmt: skip
        with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if self._stop.is_set():
                    break
                share, memory = (int(one) for one in line.split(",")[:2])
                self.samples.append((time.time(), share, memory))
            process.kill()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def summary(self) -> dict[str, float]:
        """Mean share between the first and the last busy sample, and the most memory."""
        shares = [share for _, share, _ in self.samples]
        busy = [i for i, share in enumerate(shares) if share > 0]
        if not busy:
            return {}
        inside = shares[busy[0] : busy[-1] + 1]
        memory = max(memory for *_, memory in self.samples)
        return {"busy_share": round(float(np.mean(inside)) / 100, 3), "gpu_mib": memory}


class Run:
    """Where everything is."""

    def __init__(self, clip: Path, out: Path) -> None:
        self.out, self.frames = out, out / "frames"
        out.mkdir(parents=True, exist_ok=True)
        self.cache = out / "cache"
        if not self.frames.is_dir():
            self._cut(clip)

    def _cut(self, clip: Path) -> None:
        import cv2

        video, frames = cv2.VideoCapture(str(clip)), []
        while True:
            there, frame = video.read()
            if not there:
                break
            frames.append(cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes())
        for sequence in range(SEQUENCES):
            folder = self.frames / f"drive-{sequence}"
            folder.mkdir(parents=True)
            for index, data in enumerate(frames):
                (folder / f"{index:06d}.jpg").write_bytes(data)

    def images(self, count: int, every: int = 12) -> list[np.ndarray]:
        import simplejpeg

        files = sorted((self.frames / "drive-0").iterdir())[::every][:count]
        return [simplejpeg.decode_jpeg(file.read_bytes(), "RGB") for file in files]

    def record(self, section: str, **values: Any) -> None:
        line = json.dumps({"section": section, **values}, default=str)
        print(line, flush=True)
        with (self.out / "product.jsonl").open("a") as file:
            file.write(line + "\n")

    def label(self, name: str, *more: str, env: dict[str, str] | None = None,
              command: Sequence[str] = AUTOLABEL) -> dict[str, Any]:  # fmt: skip
        """Run the command; returns its JSON with `exit`, `wall_s` and how busy the device was."""
        target = self.out / "labels" / name
        shutil.rmtree(target, ignore_errors=True)
        source = [] if any(one.startswith("--source=") for one in more) else [str(self.frames)]
        source += [one.removeprefix("--source=") for one in more if one.startswith("--source=")]
        options = [one for one in more if not one.startswith("--source=")]
        command = [*command, "label", *source, "--out", str(target), "--json", *options]
        environment = os.environ | {"AUTOLABEL_CACHE": str(self.cache)} | (env or {})
        started = time.perf_counter()
        with Busy() as busy:
            done = subprocess.run(command, capture_output=True, text=True, env=environment,
                                  check=False, timeout=400)  # fmt: skip
        wall = time.perf_counter() - started
        (self.out / f"{name}.log").write_text(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if done.returncode:
            print(done.stderr[-1500:], flush=True)
        found |= {"exit": done.returncode, "wall_s": round(wall, 2), **busy.summary()}
        return found


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


def parity(run: Run) -> None:
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
    for backend, precision in (("onnxruntime-cuda", "fp16"), ("onnxruntime-cuda", "fp32")):
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

    data = (run.frames / "drive-0" / "000040.jpg").read_bytes()
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


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What is worth a line of a run's summary."""
    keys = ("exit", "wall_s", "frames", "instances", "busy_share", "gpu_mib", "seconds", "error")
    some = {key: found[key] for key in keys if key in found}
    some["failed"] = len(found.get("failed", ()))
    some["reasons"] = sorted({str(one.get("reason"))[:120] for one in found.get("failed", ())})[:3]
    some["model"] = {k: found.get("model", {}).get(k) for k in ("name", "backend", "precision")}
    if found.get("frames"):
        some["ms_per_frame_of_command"] = round(found["wall_s"] / found["frames"] * 1e3, 2)
    return some


def label(run: Run, repeats: int) -> None:
    """The command as it is, FiftyOne included."""
    for number in range(repeats):
        found = run.label(f"label-{number}", "--dataset", f"measured-{number}")
        run.record("label", number=number, **told(found))


def lone(run: Run, repeats: int) -> None:
    """The same without PyTorch."""
    blocked = run.out / "no-torch"
    for name in ("torch", "torchvision"):
        (blocked / name).mkdir(parents=True, exist_ok=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('no PyTorch here')\n")
    env = {"PYTHONPATH": f"{blocked}:{os.environ.get('PYTHONPATH', '')}"}
    for number in range(repeats):
        found = run.label(f"lone-{number}", "--no-dataset", "--backend", "onnxruntime", env=env)
        run.record("lone", number=number, **told(found))


def first(run: Run, repeats: int) -> None:
    """One frame, from the command to its end."""
    for number in range(max(repeats, 2)):
        found = run.label(f"first-{number}", "--no-dataset", "--frames", "0:1",
                          f"--source={run.frames / 'drive-0'}")  # fmt: skip
        run.record("first", number=number, **told(found))


POISON = """
import sys, threading, time
after_s, architecture = float(sys.argv[1]), sys.argv[2]
def poison():
    time.sleep(after_s)
    from cuda.bindings import runtime
    from sam2_core.backends.cuda_kernels import compiled, launch, POINTER
    from sam2_core.backends.device_owner import device_owner
    def bad():
        source = 'extern "C" __global__ void bad(int* p) { *p = 1; }'
        kernel = compiled(source, ["bad"], architecture)["bad"]
        launch(kernel, (1, 1, 1), (1, 1, 1), ((16, POINTER),), 0)
    device_owner().run(bad)
threading.Thread(target=poison, daemon=True).start()
sys.argv = ["autolabel", *sys.argv[3:]]
from flows.cli.main import main
main()
"""


def faults(run: Run) -> None:
    """A context poisoned in the middle of a run; then the same command again, undisturbed."""
    poisoned = [sys.executable, "-c", POISON, "16", "sm_90"]
    hurt = run.label("poisoned", "--no-dataset", command=poisoned)
    run.record("faults", what="poisoned after 16 s", **told(hurt))
    labels = run.out / "labels" / "poisoned"
    kept = run.out / "labels" / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    if labels.is_dir():
        labels.rename(kept)
    manifests = len(list(kept.glob("manifests/*/*.json")))
    environment = os.environ | {"AUTOLABEL_CACHE": str(run.cache)}
    done = subprocess.run(
        [*AUTOLABEL, "label", str(run.frames), "--out", str(kept), "--json", "--no-dataset"],
        capture_output=True, text=True, env=environment, check=False, timeout=400,
    )  # fmt: skip
    again = (
        json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr[-500:]}
    )
    run.record("faults", what="again", complete_before=manifests, exit=done.returncode,
               frames=again.get("frames"), skipped=again.get("skipped"),
               failed=len(again.get("failed", ())))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clip", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("sections", nargs="*", default=["parity", "stages", "label"])
    given = parser.parse_args()
    run = Run(given.clip, given.out)
    repeated = {"label": label, "lone": lone, "first": first}
    for section in given.sections:
        started = time.perf_counter()
        try:
            if section in repeated:
                repeated[section](run, given.repeats)
            else:
                {"parity": parity, "stages": stages, "faults": faults}[section](run)
        except Exception as error:
            import traceback

            traceback.print_exc()
            run.record(section, error=repr(error)[:500])
        print(f"[{section}: {time.perf_counter() - started:.1f} s]", flush=True)


if __name__ == "__main__":
    main()
