"""Build every graph for TensorRT-RTX, without a GPU, and print the table of BENCHMARKS.md.

    python -m lab.tools.tensorrt_table [--for sm89] [--cache FOLDER] MODEL[@fp32] ...

MODEL as for `autolabel label`; graphs for close-ups and for whole frames where it has both.
"""

import argparse
import json
from pathlib import Path

from sam2_core.backends.tensorrt_backend import build_all, network_engine
from sam2_core.cache import cache_folder
from sam2_core.find_weights import Wanted
from sam2_core.load import resolve_model
from tasks.boxes.detectors import resolve_detector

KINDS = {
    "attention": "fused attention",
    "gemm": "matrix products",
    "normalization": "normalisations",
}
PRECISIONS = {"Half": "fp16", "Float": "fp32"}


def row(name: str, path: Path) -> str:
    facts = json.loads(path.with_suffix(".json").read_text())
    kernels = facts["kernels"]
    made = [
        ", ".join(f"{n} {PRECISIONS[key.split()[1]]}" for key, n in kernels.items() if kind in key)
        for kind in KINDS
    ]
    size = f"{facts['engine_bytes'] / 1e6:.1f}"
    cells = [name, f"{facts['build_s']:.1f}", size, *made, str(sum(kernels.values()))]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--for", dest="target", default="sm89")
    parser.add_argument("--cache", type=Path)
    asked = parser.parse_args()
    print(f"| graph | parse and build, s | MB | {' | '.join(KINDS.values())} | kernels |")
    print(f"|{'---|' * 7}")
    for model in asked.models:
        name, _, precision = model.partition("@")
        folder = resolve_model(name, Wanted(precision or "fp16", cache=asked.cache))
        for close_ups in (True, False) if folder.facts.get("close_up_size") else (False,):
            built = build_all(folder.for_close_ups(close_ups), asked.target, lambda _: None)
            for graph, path in built.items():
                what = f"{name}{' close-ups' * close_ups}, {precision or 'fp16'}: {graph}"
                print(row(what, path), flush=True)
    data, engines = resolve_detector("compact").read(), cache_folder(asked.cache) / "engines"
    print(row("detector", network_engine(data, asked.target, engines)))


if __name__ == "__main__":
    main()
