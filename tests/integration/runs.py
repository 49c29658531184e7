"""Running `autolabel` as a user does: a process of its own, with an empty home."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from tasks.store import storage

REPOSITORY = Path(__file__).resolve().parents[2]
# Of this process, in which commands may have run.
OURS = ("FIFTYONE_", "PREFECT_", "PYTHONSAFEPATH")
MICRO = REPOSITORY / "tests" / "data" / "micro"


class Home:
    """An empty home with its own cache and database; the API may be one that is up already."""

    def __init__(self, folder: Path, prefect_api: str = "", **more: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        self.environment = kept | {
            "HOME": str(folder),
            "AUTOLABEL_CACHE": str(folder / "cache"),
            "AUTOLABEL_DATABASE_DIR": str(folder / "mongodb"),
            "OMP_NUM_THREADS": "1",
            **({"PREFECT_API_URL": prefect_api} if prefect_api else {}),
            **more,
        }

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        command = [Path(sys.executable).parent / "autolabel", *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=REPOSITORY, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    def run(
        self, *arguments: str | Path, code: int = 0, timeout: float = 240
    ) -> tuple[dict[str, Any], str]:
        """Run to the end; returns the object of `--json` ({} without) and what stderr got."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=timeout)
        assert process.returncode == code, (process.returncode, errors[-3000:])
        return (json.loads(output) if output.strip() else {}), errors

    def label(self, *arguments: str | Path, code: int = 0) -> tuple[dict[str, Any], str]:
        """`autolabel label ... --json` with the micro model."""
        return self.run("label", *arguments, "--model", MICRO, "--json", code=code)

    def datasets(self, *names: str) -> list[dict[str, Any]]:
        """What the datasets of this home hold; see dataset_rows.py."""
        script = [sys.executable, "-m", "tests.integration.dataset_rows", *names]
        result = subprocess.run(
            script, cwd=REPOSITORY, env=self.environment, text=True, capture_output=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr[-3000:]
        return json.loads(result.stdout.splitlines()[-1])


def write_image(path: Path, seed: int = 0, size_hw: tuple[int, int] = (96, 160)) -> Path:
    """Write a small JPEG with something in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (*size_hw, 3), np.uint8)
    noise[20:60, 30:90] = (200, 40, 40)
    path.write_bytes(simplejpeg.encode_jpeg(noise, quality=80))
    return path


def write_boxes(path: Path, lines: list[str]) -> Path:
    """Write a box file of lines `label score x1 y1 x2 y2`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_sequence(folder: Path, boxes: Path, frames: int, per_frame: int = 2) -> None:
    """Write frames and boxes for them."""
    for index in range(frames):
        name = f"{index:04d}"
        write_image(folder / f"{name}.jpg", index)
        lines = [f"car 0.9 {20 + 3 * n} {15 + index % 7} {100 + n} 70" for n in range(per_frame)]
        write_boxes(boxes / folder.name / f"{name}.txt", lines)


def files_below(folder: Path) -> dict[str, bytes]:
    """Every artifact of a run: path below its storage and content; reports hold times.

    What a process was writing when it was killed has a hidden name, and is no artifact.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.relative_to(folder).parts[0] in {"labels", "manifests", "tracks"}
        and not (path.name.startswith(".") and path.suffix == ".tmp")
    }


def no_space_for(part, monkeypatch):
    """Let the disk be full for local files whose path has this part."""
    write_whole = storage._write_local

    def disk(path, data):
        if part in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, data)

    monkeypatch.setattr(storage, "_write_local", disk)
