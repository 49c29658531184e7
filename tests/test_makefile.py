"""`make` on a machine that has no Python that fits says so in one line, and lists its targets."""

import shutil
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

MAKE = shutil.which("make")
OLD = """#!/bin/sh
case "$2" in *sys.exit*) exit 1;; esac
echo 3.9.1
"""
pytestmark = pytest.mark.skipif(MAKE is None, reason="no make on the PATH")


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which nothing is installed, and a PATH with nothing."""
    (tmp_path / "tests").mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "tests/requirements-dev.lock"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    return tmp_path


def make(checkout, *words):
    environment = {"PATH": str(checkout / "bin"), "HOME": str(checkout)}
    return subprocess.run(
        [MAKE, *words], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("target", ["setup", "demo", "test"])
@pytest.mark.parametrize(("python", "found"), [(OLD, "3.9.1"), ("", "none")])
def test_an_old_python_or_none_is_told_first(checkout, target, python, found):
    if python:
        (checkout / "bin" / "python3").write_text(python)
        (checkout / "bin" / "python3").chmod(0o755)
    done = make(checkout, target)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("make: ")]
    assert said == [
        f"sam2-autolabel needs Python 3.11, 3.12 or 3.13 and found {found}: install one, or name "
        "it: make PYTHON=/path/to/python3.12"
    ]
    assert done.stdout == ""
    assert not (checkout / ".venv").exists()
    assert not (checkout / ".uv").exists()


def test_help_is_what_make_does_by_itself(checkout):
    done = make(checkout)
    assert done.returncode == 0
    for target in ("help", "demo", "test", "clean"):
        assert f"\n  make {target} " in f"\n{done.stdout}"


def test_clean_needs_python_alone(checkout):
    (checkout / "bin" / "python3").symlink_to(sys._base_executable)
    built = (".venv", ".uv", ".mypy_cache", "flows/site", "tasks/store/__pycache__")
    for name in built:
        (checkout / name).mkdir(parents=True)
    done = make(checkout, "clean")
    assert (done.returncode, done.stdout) == (0, "")
    assert not any((checkout / name).exists() for name in built)
    (checkout / ".cache" / "autolabel").mkdir(parents=True)  # what only the command can clear
    assert make(checkout, "clean").stdout.endswith(f": {checkout}/.cache/autolabel\n")
    assert (checkout / "Makefile").exists()


def test_an_active_environment_removes_itself(checkout):
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").symlink_to(sys._base_executable)
    (checkout / "bin").rmdir()
    (checkout / "bin").symlink_to(programs)
    done = make(checkout, "clean")
    assert (done.returncode, done.stderr) == (0, "")
    assert not programs.exists()


def test_what_takes_minutes_is_told_before_it_begins(checkout):
    (checkout / "bin" / "python3").symlink_to(sys._base_executable)
    lines = make(checkout, "-n", "demo").stdout.splitlines()
    (told,) = (at for at, line in enumerate(lines) if "a minute or two" in line)
    assert lines[told].startswith("echo ")
    assert "requirements.lock" in lines[told + 1]
