"""The wheel by itself, where nothing else is, by the words of `docs/installing.md` alone."""

import json
import os
import re
import shutil
import signal
import subprocess

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
def test_a_wheel_is_installed_used_and_removed_as_the_page_says(tmp_path, python):
    own_uv = REPOSITORY / ".uv" / "bin" / "uv"
    uv = own_uv if own_uv.exists() else shutil.which("uv")
    if not (uv and works(python)):
        pytest.skip(f"no {python} here, or no uv, which builds and installs")
    home, wheels = tmp_path / "home", os.environ.get("AUTOLABEL_TEST_WHEELS")  # a release's
    if not wheels:
        wheels = str(tmp_path / "wheels")
        build = [uv, "--quiet", "build", "--wheel", "--out-dir", wheels]
        subprocess.run(build, cwd=REPOSITORY, check=True)
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").symlink_to(uv)
    network = {one for one in os.environ if re.match("UV_|SSL_|.*_proxy", one, re.I)}
    own = {name: os.environ[name] for name in network} | {
        "HOME": str(home), "PATH": f"{home}/.local/bin:{tmp_path}/bin:/usr/bin:/bin",
        "UV_FIND_LINKS": wheels, "UV_PYTHON": shutil.which(python), "UV_QUIET": "1",
        "UV_SYSTEM_CERTS": "1", "UV_CACHE_DIR": cache.strip(),
    }  # fmt: skip
    write_image(tmp_path / "frames" / "0.jpg", 1, (240, 320))
    page = (REPOSITORY / "docs" / "installing.md").read_text()
    use, remove = (block.splitlines() for block in re.findall("```\n(.*?)```", page, re.S))

    def run(line: str) -> str:
        command = [*line.partition("#")[0].split()]
        if command[:2] == ["autolabel", "review"]:
            return look(command)
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def look(command: list[str]) -> str:
        """Open the App until it says where it is, and end it by Ctrl-C."""
        # What runs in the background of a shell script ignores Ctrl-C, and so would its children.
        heeding = ["env", "--default-signal=INT", *command]
        with subprocess.Popen(
            heeding, cwd=tmp_path, env=own, stdout=subprocess.PIPE, text=True
        ) as app:
            said = next(line for line in app.stdout if "leads to the queue" in line)
            app.send_signal(signal.SIGINT)
            assert app.wait(120) == 0
        return said

    for line in use:
        run(line)
    assert json.loads((tmp_path / "coco/annotations/instances.json").read_text())["images"]
    assert (home / ".cache" / "autolabel" / "mongodb").exists()
    python = f"{home}/.local/share/uv/tools/sam2-autolabel/bin/python"
    run(f"{python} -c 'from flows.server.deployments import described; assert described()'")
    for line in remove:
        run(line)
    # What uv keeps of its own.
    assert [one for one in home.rglob("*") if one.is_file() and "uv" not in one.parts] == []
    assert (tmp_path / "labels" / "manifests").is_dir()
