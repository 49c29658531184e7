"""Whether the formats' own tools read our exports: python -m lab.tools.read_back.

Each tool is installed from its package index into an environment of its own that uv makes (none of
them fits ours: other NumPy, other OpenCV). t4-devkit on PyPI is older than the fields of automatic
labels; --t4 names a checkout of a newer one. Nothing is downloaded twice. Exit code 1: a tool did
not read what was labeled.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask

from lab.tools.read_back_with import MOTS_CLASSES, SEQUENCES
from tasks.export.run import export
from tests.export.labeled_runs import NOTHING, owned, run_of, truth

FORMATS = ("coco", "yolo", "cityscapes", "mots", "davis", "t4", "cvat", "label-studio")
TOOLS = {
    "t4_devkit": ["colorama", "click"],
    "nuscenes_devkit": ["nuscenes-devkit"],
    "trackeval": ["trackeval"],
    "cityscapesscripts": ["cityscapesscripts", "setuptools"],
    "label_studio_sdk": ["label-studio-sdk"],
    "datumaro": ["datumaro"],
    "ultralytics": ["ultralytics"],
}


def make(folder: Path) -> None:
    run = run_of(folder, SEQUENCES, tracks=True)
    arrays = {}
    for seed, name in enumerate(SEQUENCES):
        frames = truth(folder, name, seed=seed)
        arrays[f"{name}.masks"] = np.array(
            [[coco_mask.decode(rle) for *_, rle in one] for one in frames]
        )
        arrays[f"{name}.owner"] = np.array([owned(one) for one in frames])
        arrays[f"{name}.mots_owner"] = np.array([owned(one, MOTS_CLASSES) for one in frames])
        arrays[f"{name}.labels"] = np.array([[label for label, *_ in one] for one in frames])
    np.savez_compressed(folder / "truth.npz", **arrays)
    for name in FORMATS:
        export(run, name, str(folder / name), NOTHING)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", nargs="*", default=list(TOOLS), help="default: all")
    parser.add_argument("--t4", help="folder of a checkout of t4-devkit, 0.8 or newer")
    given = parser.parse_args()
    if given.t4:
        TOOLS["t4_devkit"].append(given.t4)
    else:
        print("t4_devkit: not tried, name a checkout with --t4")
        given.tools = [one for one in given.tools if one != "t4_devkit"]
    failed = False
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        for tool in given.tools:
            packages = [word for one in TOOLS[tool] for word in ("--with", one)]
            script = Path(__file__).with_name("read_back_with.py")
            command = ["uv", "run", "-q", "--isolated", "--no-project", "--python", sys.executable]
            command += [*packages, "python", str(script), tool, name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            failed |= done.returncode != 0
            told = done.stderr if done.returncode else done.stdout.splitlines()[-1]
            print(f"{tool}: {'FAILED: ' if done.returncode else ''}{told.strip()}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
