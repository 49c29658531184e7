"""The tables of docs/ARCHITECTURE.md say what the tree, the modules and import-linter say."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Cells of the table whose first column begins so, without its two first lines."""
    lines = PAGE.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith(f"| {heading}"))
    table = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return table


def rooms(package: str) -> list[set[str]]:
    return [set(re.findall(r"`(\w+)`", first)) for first, *_ in rows(f"`{package}/`")]


def on_disk(package: str, *, modules: bool) -> set[str]:
    here = ROOT / package
    found = [one.relative_to(here).parts for one in here.rglob("*") if one.is_file()]
    folders = {parts[0] for parts in found if len(parts) > 1 and "__pycache__" not in parts}
    files = {one.stem for one in here.glob("*.py")} if modules else set()
    return (folders | files) - {"__init__"}


@pytest.mark.parametrize("package", ["flows", "tasks"])
def test_the_rooms_are_those_of_the_tree_in_the_order_that_import_linter_holds(
    package: str,
) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (
        one["layers"] for one in settings["contracts"] if one.get("containers") == [package]
    )
    assert rooms(package) == [set(re.split(r"\s*[|:]\s*", one)) for one in layers]
    assert set().union(*rooms(package)) == on_disk(package, modules=True)


def test_the_folders_of_the_model_are_those_of_the_tree() -> None:
    assert set().union(*rooms("sam2_core")) == on_disk("sam2_core", modules=False)


@pytest.mark.parametrize("row", rows("question"), ids=lambda row: row[3].strip("`"))
def test_a_newcomers_question_leads_to_the_code(row: list[str]) -> None:
    folder, file, name = (cell.strip("`") for cell in row[1:])
    defined = ast.parse((ROOT / folder / file).read_text()).body
    assert name in {
        one.name for one in defined if isinstance(one, ast.FunctionDef | ast.ClassDef)
    }, f"{folder}/{file} does not define {name}"


PAGES = [ROOT / "README.md", ROOT / "DECISIONS.md", ROOT / "BENCHMARKS.md"]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "sam2_core" / "weights" / "README.md"]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paths_and_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"\b((?:flows|tasks|sam2_core|tests|docs|deploy)/[\w/-]+\.\w+)\b", text)
    links = re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", text)
    assert page.name != "ARCHITECTURE.md" or len(set(named)) > 20
    assert not [one for one in {*named} if not (ROOT / one).exists()]
    assert not [one for one, _ in links if not (page.parent / one).exists()]
    for target, anchor in links:
        assert not anchor or anchor in anchors(page.parent / target if target else page), anchor
