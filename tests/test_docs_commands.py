"""Every command that a page shows exists, with the options that it shows."""

import importlib.util
import re
from pathlib import Path

import click
import pytest

from flows.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "BENCHMARKS.md", ROOT / "DECISIONS.md", ROOT / "CHANGELOG.md"]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "sam2_core" / "weights" / "README.md"]


def shown() -> list[str]:
    """Commands in code, without comments and prompts."""
    found = set()
    for page in PAGES:
        text = page.read_text()
        for line in [*re.findall(r"`(autolabel [^`]+)`", text), *text.splitlines()]:
            if line.startswith("autolabel "):
                found.add(line.split(" #")[0].strip())
    return sorted(found)


@pytest.mark.parametrize("line", shown())
def test_the_command_is_there(line: str) -> None:
    words = re.sub(r"[\\|]+\S*", "", line).split()[1:]  # of `up|down` the first
    command: click.Command = cli
    while words and isinstance(command, click.Group):
        word = words.pop(0)
        inner = command.get_command(click.Context(command), word)
        if inner is None and command.name == "review":  # `review DATASET`
            inner = command.get_command(click.Context(command), "open")
        assert inner, f"no command {word}"
        command = inner
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}


def test_the_modules_that_pages_run_are_there() -> None:
    named = {one for page in PAGES for one in re.findall(r"python -m ([\w.]+)", page.read_text())}
    assert named
    for one in named - {"prefect.engine"}:
        assert importlib.util.find_spec(one), one
