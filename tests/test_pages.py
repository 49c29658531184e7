"""What the pages promise exists: links, paths, commands, options, modules, rooms."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from flows.cli.main import cli
from sam2_core.types import AutolabelError

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


# Examples that stop here, and where; every other one is understood as it is. `installing.md` is run
# line by line by tests/integration/test_wheel.py, each command by the tests of its own.
STOPS = {
    "RUN_OR_DATASET --format FORMAT": "'FORMAT' is not one of",  # a synopsis
    "nightly --off": "no Prefect server",  # it acts as soon as it is read
    "old.json": "does not exist",
    "server.pem": "does not exist", "repository repository": "does not exist",
}  # fmt: skip


def shown() -> list[str]:
    """Commands in code, without comments and what the shell does."""
    found = set()
    for text in TEXTS.values():
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            lines = re.sub(r"(^| )#.*", "", block.replace("\\\n", " "), flags=re.MULTILINE)
            found |= set(re.findall(r"(?<![-\w])(autolabel [^|>;&)\n]*[^|>;&)\s])", lines))
        found |= {f"`{one}" for one in re.findall(r"`(autolabel [^`]+)`", text)}
    return sorted(found)


def refusal(words: list[str]) -> str:
    """Have a command line read with the values of its options, and run nothing; say what is wrong.

    "partial" where it lacks arguments, as it may in a sentence.
    """
    command: click.Command = cli
    try:
        context = command.make_context("autolabel", words)
        while isinstance(command, click.Group):
            words = [*context._protected_args, *context.args]
            name, command, words = command.resolve_command(context, words)
            context = command.make_context(name, words, parent=context)
    except (click.MissingParameter, click.BadOptionUsage, click.exceptions.NoArgsIsHelpError):
        return "partial"
    except (click.ClickException, AutolabelError) as error:
        return str(error)
    except click.exceptions.Exit:  # of --help
        pass
    return ""


@pytest.mark.parametrize("line", shown())
def test_a_command_is_understood_with_all_that_it_is_given(line: str) -> None:
    words = shlex.split(re.sub(r"[\\|]+\S*", "", line.lstrip("`")))[1:]  # of `up|down` the first
    said = refusal(words)
    if line[0] == "`":  # in a sentence, with capitals in the place of a value
        assert said in {"", "partial"} or re.search(r"'[A-Z]+'( is not| does not|\.$)", said)
    else:
        stop = next((why for part, why in STOPS.items() if part in line), "")
        assert stop in said if stop else not said


def test_the_modules_that_pages_run_are_there() -> None:
    named = {one for text in TEXTS.values() for one in re.findall(r"python -m ([\w.]+)", text)}
    assert not [one for one in named if not importlib.util.find_spec(one)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as the site has them, made in a process of its own: a command keeps the help option
    of its first caller."""
    folder = tmp_path_factory.mktemp("site") / "pages"
    subprocess.run([sys.executable, "docs/build.py", folder], cwd=ROOT, check=True)
    return folder


def test_links_of_the_site_lead_to_pages_pictures_and_headings_in_it(site: Path) -> None:
    for page in site.glob("*.md"):
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            linked = site / target if target else page
            assert linked.exists(), f"{page.name} links {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


def test_the_site_has_the_help_of_every_command_and_leads_to_it(site: Path) -> None:
    assert (
        "[`autolabel label --help`](cli.md#autolabel-label)" in (site / "labeling.md").read_text()
    )
    reference = (site / "cli.md").read_text()
    assert "\n## autolabel review report\n\n```text\nUsage: autolabel review report " in reference
    for name in cli.list_commands(click.Context(cli)):
        assert f"\n## autolabel {name}\n" in reference


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
