"""Sections of `gpu_product.py` about what goes wrong with a machine.

Faults are planted in the product's own processes by a `sitecustomize` on their path, as it reaches
those that a run starts by itself: nothing of the product knows of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu_product_run import Run, told

# In the first process of a run that has used its device for so long, its context is poisoned once;
# or reading below a folder fails with ESTALE for as long as a file lies there.
PLANTED = """
import os, sys, threading, time

def poison(marker, after_s):
    from cuda.bindings import runtime
    while "sam2_core.backends.gpu" not in sys.modules:
        time.sleep(0.1)
    from sam2_core.backends import gpu
    while gpu._gpu is None:
        time.sleep(0.1)
    time.sleep(after_s)
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    def bad():
        from sam2_core.backends.cuda_kernels import POINTER, compiled, launch
        source = 'extern "C" __global__ void bad(int* p) { *p = 1; }'
        kernel = compiled(source, ["bad"], "sm_90")["bad"]
        launch(kernel, (1, 1, 1), (1, 1, 1), ((16, POINTER),), 0)
    gpu._gpu.owner.run(bad)

def stale(folder, marker):
    import io, errno
    real = io.open
    def opening(file, *more, **named):
        if str(file).startswith(folder) and os.path.exists(marker):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(file))
        return real(file, *more, **named)
    io.open = opening
    import builtins, pathlib
    builtins.open = opening

mine = any("spawn_main" in word for word in sys.orig_argv)
if "PLANTED_POISON" in os.environ and mine:
    marker, after = os.environ["PLANTED_POISON"].split("@")
    threading.Thread(target=poison, args=(marker, float(after)), daemon=True).start()
if "PLANTED_STALE" in os.environ:
    stale(*os.environ["PLANTED_STALE"].split("@"))
"""

# Holds all memory of the device but so many GiB, until its standard input ends.
HOLDER = """
import sys
from cuda.bindings import runtime
runtime.cudaSetDevice(0)
held, least = [], int(float(sys.argv[1]) * 2**30)
while True:
    _, free, _ = runtime.cudaMemGetInfo()
    step = min(free - least, 4 << 30)
    if step < 64 << 20:
        break
    status, address = runtime.cudaMalloc(step)
    if int(status):
        break
    held.append(address)
print("holds", flush=True)
sys.stdin.read()
"""


def planted(run: Run, **faults: str) -> dict[str, str]:
    """Return an environment in which the faults happen."""
    import os

    folder = run.out / "planted"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(PLANTED)
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    return {"PYTHONPATH": path, **{f"PLANTED_{name.upper()}": one for name, one in faults.items()}}


def afterwards(run: Run, section: str, name: str, *more: str) -> None:
    """Run the same command again on a machine that is well, and count what lies there."""
    again = run.label(name, "--no-dataset", *more, keep=True)
    labels = run.out / "labels" / name
    whole = len(list(labels.glob("manifests/*/*.json")))
    run.record(section, what="again", complete=whole, failures_stored=stored_failures(labels),
               **told(again))  # fmt: skip


def stored_failures(labels: Path) -> int:
    """Frames that storage has as failed."""
    import pyarrow.parquet as pq

    count = 0
    for path in labels.glob("labels/**/*.frames.parquet"):
        table = pq.read_table(path)
        columns = [one for one in table.column_names if "reason" in one or "stage" in one]
        count += sum(bool(value) for value in table[columns[0]].to_pylist()) if columns else 0
    return count


def poison(run: Run, given: argparse.Namespace) -> None:
    """A context poisoned in the middle of a run; then the same command again."""
    for backend in given.backends.split(","):
        name, chosen = f"poisoned-{backend}", ("--backend", backend)
        if backend == "torch":  # it compiles first
            run.label("well", "--no-dataset", *chosen, limit_s=900.0)
        marker = run.out / name
        marker.unlink(missing_ok=True)
        env = planted(run, poison=f"{marker}@1.5")
        hurt = run.label(name, "--no-dataset", *chosen, env=env)
        log = (run.out / f"{name}.log").read_text()
        run.record("poison", what="hurt", poisoned=marker.exists(),
                   second_tries=log.count("once more"), **told(hurt))  # fmt: skip
        afterwards(run, "poison", name, *chosen)


def stale(run: Run, _: argparse.Namespace) -> None:
    """ESTALE below one of eight sequences' folders for the whole of a run; then it is well."""
    marker = run.out / "stale"
    marker.touch()
    env = planted(run, stale=f"{run.few / 'drive-03'}@{marker}")
    hurt = run.label("stale", "--no-dataset", env=env)
    run.record("stale", what="hurt", **told(hurt))
    marker.unlink()
    afterwards(run, "stale", "stale")


def memory(run: Run, _: argparse.Namespace) -> None:
    """Somebody else holds all memory but a few GiB: a run, and a frame of 2,000 boxes."""
    crowded = crowded_frame(run)
    for free_gib in (12.0, 4.0):
        command = [sys.executable, "-c", HOLDER, str(free_gib)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        try:
            holder.stdout.readline()
            started = time.perf_counter()
            found: dict[str, Any] = run.label(f"held-{free_gib:.0f}", "--no-dataset")
            log = (run.out / f"held-{free_gib:.0f}.log").read_text()
            run.record("memory", free_gib=free_gib, one_process="one goes on" in log,
                       s=round(time.perf_counter() - started, 1), **told(found))  # fmt: skip
            some = run.label(f"crowded-{free_gib:.0f}", "--no-dataset", "--boxes",
                             str(crowded.parent / "boxes"), source=crowded)  # fmt: skip
            run.record("memory", free_gib=free_gib, boxes=2000, **told(some))
        finally:
            holder.communicate()


def crowded_frame(run: Run) -> Path:
    """Make a sequence of 20 frames, one of them with 2,000 boxes."""
    generator = np.random.default_rng(0)
    source = sorted((run.few / "drive-00").iterdir())[:20]
    folder = run.out / "crowd" / "frames" / "drive-00"
    texts = run.out / "crowd" / "boxes" / "drive-00"
    for one in (folder, texts):
        one.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(source):
        (folder / path.name).write_bytes(path.read_bytes())
        count = 2000 if number == 10 else 16
        low = generator.uniform((0, 0), (1180, 620), (count, 2))
        high = low + generator.uniform(20, 100, (count, 2))
        rows = np.hstack([low, high]).round(1).tolist()
        lines = (" ".join(["car", "0.9", *map(str, row)]) for row in rows)
        (texts / f"{path.stem}.txt").write_text("\n".join(lines) + "\n")
    return run.out / "crowd" / "frames"
