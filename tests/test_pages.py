"""What the pages promise exists: links, paths, commands, options, modules, rooms."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from flows.cli.main import cli
from lab.tools.cli_reference import PAGE

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "sam2_core/weights/README.md"]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in sorted(PAGES)}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_paths_and_links_of_a_page_lead_somewhere(name: str) -> None:
    page, text = ROOT / name, TEXTS[name]
    named = re.findall(r"\b((?:flows|tasks|sam2_core|lab|tests|docs|deploy)/[\w/-]+\.\w+)\b", text)
    assert not [one for one in {*named} if not (ROOT / one).exists()]
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def shown() -> list[str]:
    """Commands in code, without comments and prompts; cli.md is generated."""
    found = set()
    for text in (text for name, text in TEXTS.items() if name != "docs/cli.md"):
        lines = [line for line in text.splitlines() if line.startswith("autolabel ")]
        found |= {line.split(" #")[0].strip() for line in lines}
        found |= set(re.findall(r"`(autolabel [^`]+)`", text))
    return sorted(found)


@pytest.mark.parametrize("line", shown())
def test_the_command_is_there_with_its_options(line: str) -> None:
    words = re.sub(r"[\\|]+\S*", "", line).split()[1:]  # of `up|down` the first
    command: click.Command = cli
    while words and words[0][0] != "-" and isinstance(command, click.Group):
        context = click.Context(command)
        inner = command.get_command(context, words[0])
        if inner is None and command.name == "review":  # `review DATASET`
            inner = command.get_command(context, "open")
        assert inner, f"no command {words[0]}"
        command = inner
        words.pop(0)
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}


def test_the_modules_that_pages_run_are_there() -> None:
    named = {one for text in TEXTS.values() for one in re.findall(r"python -m ([\w.]+)", text)}
    assert not [one for one in named if not importlib.util.find_spec(one)]


def test_the_reference_of_the_command_line_is_current() -> None:
    """In a process of its own: a command keeps the help option of whoever calls it first."""
    code = "from lab.tools.cli_reference import reference; print(reference(), end='')"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    assert PAGE.read_text() == told.stdout.decode(), "run: python -m lab.tools.cli_reference"


@pytest.mark.parametrize("package", ["flows", "tasks"])
def test_the_rooms_of_the_page_are_the_layers_of_import_linter(package: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (
        one["layers"] for one in settings["contracts"] if one.get("containers") == [package]
    )
    _, _, table = TEXTS["docs/ARCHITECTURE.md"].partition(f"| `{package}/`")
    rows = [line for line in table.partition("\n\n")[0].splitlines()[2:] if line.startswith("|")]
    rooms = [set(re.findall(r"`(\w+)`", row.split(" | ")[0])) for row in rows]
    assert rooms == [set(re.split(r"\s*[|:]\s*", one)) for one in layers]
