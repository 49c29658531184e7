"""Measure everything on a GPU: sections in processes of their own, each with its time limit.

    python lab/tools/gpu_measure.py --frames FOLDER --out OUT [SECTION ...]

FOLDER holds street.jpg and street.npy (boxes, float32 (N, 4) in pixels), and sceneN.jpg/.npy for
fidelity, measured with the checkpoints that MEASURE_TRAINED names and the bundled one. Each
result is a line of OUT/results.jsonl as soon as it is there; profiles lie beside it. Compilation,
exports and the fidelity of torch run side by side first, then the sections one after another.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAINED = os.environ.get("MEASURE_TRAINED", "compact")
TORCH, ORT = "gpu_sections_torch.py", "gpu_sections_onnxruntime.py"
# Name: script, its arguments, seconds. What takes no times runs beside the compilations.
PREPARE = {
    "compile": (TORCH, ["prepare", "outlines"], 200),
    "compile-peers": (TORCH, ["prepare", "peers"], 200),
    "fidelity": (TORCH, ["fidelity"], 200),
    "export-compact": (TORCH, ["export", *TRAINED.split(",")], 250),
    "export": (TORCH, ["export", "random:base_plus"], 250),
}
SECTIONS = {
    "onnxruntime-smoke": (ORT, ["smoke"], 60),
    "onnxruntime-times": (ORT, ["times"], 90),
    "torch": (TORCH, ["components"], 90),
    "frames": (TORCH, ["frames"], 100),
    "peers": (TORCH, ["peers"], 150),
    "onnxruntime-fidelity": (ORT, ["fidelity"], 60),
    "onnxruntime-frames": (ORT, ["frames"], 60),
    "counts": (TORCH, ["counts"], 90),
}


def start(name: str, script: str, arguments: list[str], out: Path) -> subprocess.Popen[bytes]:
    """Start a section, its output in a file of its own."""
    log = (out / f"{name}.log").open("wb")
    command = [sys.executable, "-X", "faulthandler", str(HERE / script), *arguments]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Wait for a section, ending it at its limit."""
    try:
        code = process.wait(max(limit_s, 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"ended after its limit of {limit_s:.0f} s"
    return "" if code == 0 else f"exit {code}"


def report(name: str, problem: str, started: float, out: Path) -> None:
    """Say how a section went; the end of its log when it failed."""
    print(f"[{name}: {problem or 'ok'}, {time.monotonic() - started:.0f} s]", flush=True)
    if problem:
        print((out / f"{name}.log").read_text(errors="replace")[-3500:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join([*PREPARE, *SECTIONS])}")
    given = parser.parse_args()
    os.environ |= {
        "MEASURE_FRAMES": str(given.frames), "MEASURE_OUT": str(given.out),
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = given.sections or [*PREPARE, *SECTIONS]
    running = {name: start(name, *PREPARE[name][:2], given.out)
               for name in chosen if name in PREPARE}  # fmt: skip
    began = time.monotonic()
    for name, process in running.items():
        limit = PREPARE[name][2] - (time.monotonic() - began)
        report(name, finish(process, limit), began, given.out)
    for name in chosen:
        if name in SECTIONS:
            script, arguments, limit = SECTIONS[name]
            began = time.monotonic()
            report(name, finish(start(name, script, arguments, given.out), limit), began, given.out)
    results = given.out / "results.jsonl"
    print(results.read_text() if results.is_file() else "no results")


if __name__ == "__main__":
    main()
