"""What the sections of `gpu_product.py` share: frames, commands, and how busy the device is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

AUTOLABEL = (sys.executable, "-c", "from flows.cli.main import main; main()")
SEQUENCES = 24
LIMIT_S = 300.0
FEW = 8  # of them, where a run is not to take long


class Busy:
    """How busy each device is, sampled by nvidia-smi while a block runs."""

    def __enter__(self) -> Busy:
        self.samples: list[tuple[float, int, int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used",
                 "--format=csv,noheader,nounits", "-lms", "100"]  # fmt: skip
        with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if self._stop.is_set():
                    break
                device, share, memory = (int(one) for one in line.split(",")[:3])
                self.samples.append((time.time(), device, share, memory))
            process.kill()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def summary(self) -> dict[str, Any]:
        """Return by device the mean share between its first and last busy sample.

        Also the longest time in between without work, and the most memory.
        """
        found: dict[str, Any] = {}
        for device in sorted({device for _, device, *_ in self.samples}):
            rows = [(when, share) for when, one, share, _ in self.samples if one == device]
            busy = [i for i, (_, share) in enumerate(rows) if share > 0]
            if not busy:
                continue
            inside = rows[busy[0] : busy[-1] + 1]
            moments = [when for when, share in inside if share > 0]
            found[f"gpu{device}"] = {
                "busy_share": round(float(np.mean([share for _, share in inside])) / 100, 3),
                "longest_idle_s": round(float(np.max(np.diff(moments), initial=0)), 2),
                "mib": max(memory for _, one, _, memory in self.samples if one == device),
            }
        return found


class Run:
    """Where everything is."""

    def __init__(self, clip: Path, out: Path, sequences: int = SEQUENCES) -> None:
        out = out.resolve()
        self.out, self.frames = out, out / f"frames-{sequences}"
        self.sequences = sequences
        self.few = out / "few"
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
        for parent, count in ((self.frames, self.sequences), (self.few, FEW)):
            for sequence in range(count):
                folder = parent / f"drive-{sequence:02d}"
                folder.mkdir(parents=True, exist_ok=True)
                for index, data in enumerate(frames):
                    file, first = folder / f"{index:06d}.jpg", parent / f"drive-00/{index:06d}.jpg"
                    if not file.exists():
                        file.hardlink_to(first) if sequence else file.write_bytes(data)

    def images(self, count: int, every: int = 12) -> list[np.ndarray]:
        import simplejpeg

        files = sorted((self.few / "drive-00").iterdir())[::every][:count]
        return [simplejpeg.decode_jpeg(file.read_bytes(), "RGB") for file in files]

    def record(self, section: str, **values: Any) -> None:
        line = json.dumps({"section": section, **values}, default=str)
        print(line, flush=True)
        with (self.out / "product.jsonl").open("a") as file:
            file.write(line + "\n")

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        return os.environ | {"AUTOLABEL_CACHE": str(self.cache)} | (more or {})

    def command(
        self, name: str, *words: str, env: dict[str, str] | None = None,
        command: Sequence[str] = AUTOLABEL, limit_s: float = LIMIT_S,
    ) -> dict[str, Any]:  # fmt: skip
        """Run `autolabel WORDS --json`; its JSON, `exit`, `wall_s`, and how busy devices were."""
        started = time.perf_counter()
        with Busy() as busy:
            try:
                done = subprocess.run(
                    [*command, *words, "--json"], capture_output=True, text=True,
                    env=self.environment(env), check=False, timeout=limit_s,
                    cwd=self.out,  # Python looks there first: never at this checkout's modules
                )  # fmt: skip
            except subprocess.TimeoutExpired as late:
                (self.out / f"{name}.log").write_bytes(late.stderr or b"")
                return {"exit": "timeout", "wall_s": limit_s, **busy.summary()}
        wall = time.perf_counter() - started
        (self.out / f"{name}.log").write_text(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if done.returncode:
            print(done.stderr[-1500:], flush=True)
        return found | {"exit": done.returncode, "wall_s": round(wall, 2), **busy.summary()}

    def label(self, name: str, *more: str, source: Path | None = None,
              env: dict[str, str] | None = None, command: Sequence[str] = AUTOLABEL,
              keep: bool = False, limit_s: float = LIMIT_S) -> dict[str, Any]:  # fmt: skip
        """Run `autolabel label`, by default of eight sequences, into a folder of this name."""
        target = self.out / "labels" / name
        if not keep:
            shutil.rmtree(target, ignore_errors=True)
        words = ("label", str(source or self.few), "--out", str(target), *more)
        return self.command(name, *words, env=env, command=command, limit_s=limit_s)


def without_torch(run: Run) -> dict[str, str]:
    """Return an environment in which PyTorch cannot be imported."""
    blocked = run.out / "no-torch"
    for name in ("torch", "torchvision"):
        (blocked / name).mkdir(parents=True, exist_ok=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('no PyTorch here')\n")
    return {"PYTHONPATH": f"{blocked}:{os.environ.get('PYTHONPATH', '')}"}


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What is worth a line of a run's summary."""
    keys = ("exit", "wall_s", "frames", "skipped", "instances", "gpu0", "gpu1", "seconds", "error")
    some = {key: found[key] for key in keys if key in found}
    some["failed"] = len(found.get("failed", ()))
    some["reasons"] = sorted({str(one.get("reason"))[:120] for one in found.get("failed", ())})[:3]
    some["model"] = {k: found.get("model", {}).get(k) for k in ("name", "backend", "precision")}
    if found.get("frames"):
        some["ms_per_frame_of_command"] = round(found["wall_s"] / found["frames"] * 1e3, 2)
    return some
