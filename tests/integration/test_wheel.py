"""The wheel by itself: installed where nothing else is, it labels and exports."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.conftest import REPOSITORY
from tests.integration.runs import write_image

# Those that it promises and this machine has; the environment of the tests is one of them.
PYTHONS = [f"python3.{minor}" for minor in (11, 12, 13)]


def works(python: str) -> bool:
    found = shutil.which(python)
    return bool(found) and subprocess.run([found, "-c", ""], check=False).returncode == 0


@pytest.mark.ci
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", PYTHONS)
def test_an_installed_wheel_labels_and_exports(tmp_path, python):
    own_uv = REPOSITORY / ".uv" / "bin" / "uv"
    uv = own_uv if own_uv.exists() else shutil.which("uv")
    if not (uv and works(python)):
        pytest.skip(f"no {python} here, or no uv, which builds and installs")
    place = tmp_path / "installed"

    def by_uv(*words: object) -> None:
        subprocess.run([uv, "--quiet", *map(str, words)], cwd=REPOSITORY, check=True)

    docs_site = [sys.executable, REPOSITORY / "lab" / "tools" / "docs_site.py"]
    subprocess.run(docs_site, check=True)
    by_uv("build", "--wheel", "--out-dir", tmp_path / "dist")
    by_uv("venv", "--python", shutil.which(python), place)
    by_uv("pip", "install", "--python", place / "bin/python", *(tmp_path / "dist").glob("*.whl"))
    own = {"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    write_image(tmp_path / "frames" / "0.jpg", 1, (240, 320))

    def autolabel(*words: str) -> dict:
        command = [place / "bin" / "autolabel", *words, "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, check=True)
        return json.loads(done.stdout)

    assert autolabel("label", "frames", "--out", "labels")["frames"] == 1
    autolabel("export", "labels", "--format", "coco", "--to", "coco")
    pages = [place / "bin" / "autolabel", "docs", "--no-browser"]
    start = subprocess.run(pages, cwd=tmp_path, env=own, capture_output=True, check=True, text=True)
    assert "Instance masks" in Path(urlparse(start.stdout.strip()).path).read_text()
    assert json.loads((tmp_path / "coco/annotations/instances.json").read_text())["images"]
