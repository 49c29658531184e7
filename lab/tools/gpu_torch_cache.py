"""Times the torch backend's compiler cache on a CUDA device: first frame cold and warm, steady.

`PYTHONPATH=. python lab/tools/gpu_torch_cache.py [MODEL] [BOXES]`. Each first frame is one of a new
process: with an empty cache folder, then with what that one left.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEADY = 50


def first_and_steady(model: str, boxes: int, cache: Path) -> dict[str, float]:
    """Load a model, label one frame, then many; returns seconds, milliseconds and MiB."""
    started = time.perf_counter()
    import numpy as np

    from sam2_core.backends.torch_backend import TorchBackend
    from sam2_core.find_weights import Wanted, resolve_weights
    from tests.sam2_core.small_graphs import sample_prompts

    wanted = Wanted("fp16", "restructured", cache)
    backend = TorchBackend(resolve_weights(model, wanted), wanted, "cuda", compiled=True)
    size = backend.info.image_size
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3)).astype(np.uint8)
    prompts = sample_prompts(boxes, size)
    times = [time.perf_counter()]
    for count in (1, STEADY):
        for _ in range(count):
            backend.decode(backend.encode([image]), prompts)
        times.append(time.perf_counter())
    kept = sum(path.stat().st_size for path in (cache / "torch").rglob("*") if path.is_file())
    return {
        "load_s": round(times[0] - started, 1), "first_frame_s": round(times[1] - times[0], 1),
        "steady_ms": round(1000 * (times[2] - times[1]) / STEADY, 2), "mib": round(kept / 2**20),
    }  # fmt: skip


def main() -> None:
    """Time a cold and a warm process; prints one JSON object each."""
    model = sys.argv[1] if len(sys.argv) > 1 else "random:base_plus"
    boxes = sys.argv[2] if len(sys.argv) > 2 else "136"
    if len(sys.argv) > 3:
        print(json.dumps(first_and_steady(model, int(boxes), Path(sys.argv[3]))))
        return
    with tempfile.TemporaryDirectory() as cache:
        for what in ("cold", "warm"):
            command = [sys.executable, __file__, model, boxes, cache]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(what, done.stdout.strip())


if __name__ == "__main__":
    main()
