"""A stranger's working folder: no command runs a Python file of it, nor takes settings from it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cluster import free_port
from tests.integration.runs import MICRO, Home, write_sequence
from tests.sam2_core.serving.conftest import needs_triton

FRAMES = 20  # more than are labeled without Prefect's server
# What our processes, Python itself and libraries import; the folder of one name has an __init__.
PLANTED = (
    "tasks", "flows/__init__", "sam2_core", "numpy", "sitecustomize", "usercustomize", "prefect",
    "multiprocessing", "pickle", "signal", "fiftyone", "supervisor", "uvicorn", "model", "sqlite3",
    "pymongo", "bson",
)  # fmt: skip
MARK = "import os; open(os.environ['PLANTED_RAN'], 'a').write(f'{__file__}\\n')\n"


class Visit:
    """Commands in a folder that somebody else wrote."""

    def __init__(self, folder: Path):
        self.folder, self.ran = folder / "theirs", folder / "ran"
        self.out, self.boxes = folder / "out", folder / "boxes"
        self.home = Home(
            folder / "home of R&D (café) @=+~",
            PLANTED_RAN=str(self.ran),
            AUTOLABEL_DEVICE_PROCESSES="1",
            BROWSER="true",
        )
        for name in PLANTED:
            path = (self.folder / name).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(MARK)
        write_sequence(self.folder / "drives" / "drive", self.boxes, FRAMES)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        command = [Path(sys.executable).parent / "autolabel", *map(str, words)]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.home.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *words: str | Path, until: str = "") -> str:
        """Run to the end, or until a line has some words; returns what it said."""
        said = ""
        with self.start(*words) as process:
            for line in process.stdout:
                said += line
                if until and until in line:
                    process.send_signal(signal.SIGTERM)
                    until = ""
        assert not until, said
        return said

    def labels(self) -> list[str | Path]:
        return ["drives", "--out", self.out, "--boxes", self.boxes, "--model", MICRO]


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    visit = Visit(tmp_path_factory.mktemp("visit"))
    yield visit
    visit.run("down")


@pytest.fixture
def unharmed(visit):
    """Nothing of the folder has run when the test ends; a plain Python would have run it."""
    yield visit
    ran = visit.ran.read_text() if visit.ran.exists() else ""
    visit.ran.unlink(missing_ok=True)
    assert ran == ""
    subprocess.run(
        [sys.executable, "-m", "tasks"], cwd=visit.folder, env=visit.home.environment, check=False
    )
    assert visit.ran.exists()
    visit.ran.unlink()


@pytest.mark.ci
def test_labeling_with_a_server_and_processes_of_its_own(unharmed):
    said = unharmed.run("label", *unharmed.labels(), "--dataset", "visited")
    assert f"{FRAMES} frames" in said


@pytest.mark.ci
def test_reviewing(unharmed):
    unharmed.run("label", *unharmed.labels(), "--dataset", "visited")
    unharmed.run("review", "visited", "--port", "0", until="leads to the queue")


@pytest.mark.ci
def test_a_workstation_and_what_it_is_given_to_do(unharmed):
    said = unharmed.run("up", "--prefect-port", str(free_port()), "--app-port", str(free_port()))
    assert "up in" in said
    elsewhere = [one if one != unharmed.out else f"{unharmed.out}-2" for one in unharmed.labels()]
    said = unharmed.run("backfill", *elsewhere, "--no-dataset", "--wait")
    assert "1 of 1" in said, said
    assert "stopped" in unharmed.run("down")


@pytest.mark.ci
def test_serving(unharmed):
    needs_triton()
    unharmed.run("serve", MICRO, "--port", "0", until="Ctrl-C ends it")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env", "export prefect_logging_config_path=evil.yml"),
        ("prefect.toml", "[logging]\nconfig_path = 'evil.yml'"),
        (".env", "#" * (2 << 20)),
        ("pyproject.toml", "a=" + 3000 * "["),
        ("pyproject.toml", '[tool."\\u0070refect".logging]\nconfig_path = "evil.yml"'),
    ],
)
def test_settings_of_prefect_are_not_taken_from_the_working_folder(tmp_path, name, text):
    home, ran = Home(tmp_path / "home"), tmp_path / "ran"
    (tmp_path / name).write_text(text)
    evil = f'version: 1\nhandlers: {{x: {{"()": os.system, command: touch {ran}}}}}\n'
    (tmp_path / "evil.yml").write_text(evil + "loggers: {prefect: {handlers: [x]}}\n")
    command = [Path(sys.executable).parent / "autolabel", "status"]
    done = subprocess.run(
        command, cwd=tmp_path, env=home.environment, capture_output=True, text=True, check=False
    )
    assert not ran.exists()
    assert done.returncode == 2
    assert re.fullmatch(rf"error: \S*{re.escape(name)} has settings for Prefect.*\n", done.stderr)
