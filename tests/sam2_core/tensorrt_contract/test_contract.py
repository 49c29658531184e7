"""Every TensorRT name that the backend uses exists in the real API, with these arguments.

mypy holds the source against stubs made from the signatures in the real bindings, of TensorRT 11
and 10. What a check of this kind could miss, a name on an object whose type is unknown, the
mutation test finds: each used name is misspelled, or removed from the API, and must be noticed.
This proves that the calls exist, not that engines run.
"""

from __future__ import annotations

import ast
import copy
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .bindings import describe
from .stubs import StubWriter

pytestmark = pytest.mark.ci
ROOT = Path(__file__).parents[3]
SOURCES = [
    path
    for path in sorted((ROOT / "sam2_core").rglob("*.py"))
    if re.search(r"^\s*(import|from) tensorrt\b", path.read_text(), re.MULTILINE)
]
CONFIG = """[mypy]
strict = True
warn_unused_ignores = False
[mypy-tensorrt]
ignore_errors = True
[mypy-cuda.*,onnxruntime.*,cv2.*]
ignore_missing_imports = True
follow_imports = skip
"""


@dataclass
class Contract:
    """One version of the API, and mypy over it."""

    api: dict[str, Any]
    folder: Path

    def errors(self, files: list[Path], api: dict[str, Any] | None = None) -> dict[str, list[str]]:
        """mypy's errors by file name."""
        stub = self.folder / "stub" / "tensorrt.pyi"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(StubWriter(api or self.api).text())
        config = self.folder / "mypy.ini"
        config.write_text(CONFIG)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir",
             self.folder.parent / "mypy-cache", "--no-error-summary", *files],
            check=False, cwd=ROOT, capture_output=True, text=True, timeout=250,
            env={**os.environ, "MYPYPATH": f"{stub.parent}:{ROOT}"},
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout + done.stderr
        found: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            path, number, rest = line.split(":", 2)
            found.setdefault(Path(path).name, []).append(f"{number}:{rest}")
        return found


@pytest.fixture(scope="module", params=[11, 10], ids=["tensorrt11", "tensorrt10"])
def contract(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contract:
    folder = tmp_path_factory.mktemp(f"tensorrt{request.param}")
    return Contract(describe(request.param, folder), folder)


def vocabulary(api: dict[str, Any]) -> set[str]:
    """Every name of the API: classes, methods, properties, enum members, keyword arguments."""
    names = {"OnnxParser", "__version__", *api["functions"]}
    for name, cls in api["classes"].items():
        for part in (cls, *cls["nested"].values()):
            members = [member for member, _ in part["members"]]
            names |= {name, *part["methods"], *part["properties"], *part["nested"], *members}
            for doc in part["methods"].values():
                names |= set(re.findall(r"[(,] *(\w+):", doc))
    return names - {"self", "__init__"}


def used_names(source: str, known: set[str]) -> list[tuple[int, int, str]]:
    """(line, column, name) of each attribute and keyword argument that is a name of the API."""
    uses = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in known:
            # An attribute's node ends with its name.
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            uses.append((node.end_lineno, node.end_col_offset - len(node.attr), node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            uses += [
                (keyword.lineno, keyword.col_offset, keyword.arg)
                for keyword in node.keywords
                if keyword.arg in known
            ]
    return sorted(set(uses))


def misspelled(source: str, line: int, column: int, name: str) -> str:
    lines = source.splitlines(keepends=True)
    text = lines[line - 1]
    assert text[column : column + len(name)] == name
    lines[line - 1] = text[:column] + name + "_misspelled" + text[column + len(name) :]
    return "".join(lines)


def test_the_backend_uses_only_what_the_real_api_has(contract: Contract) -> None:
    assert contract.errors(SOURCES) == {}


def test_every_misspelled_name_is_noticed(contract: Contract) -> None:
    known = vocabulary(contract.api)
    mutants: dict[str, str] = {}
    folder = contract.folder / "mutants"
    folder.mkdir()
    used = set()
    for path in SOURCES:
        source = path.read_text()
        for line, column, name in used_names(source, known):
            mutant = folder / f"mutant_{len(mutants):03d}.py"
            mutant.write_text(misspelled(source, line, column, name))
            mutants[mutant.name] = f"{path.name}:{line} {name}"
            used.add(name)
    # What an engine cannot do without: the walk found the source, not an empty folder.
    assert {"execute_async_v3", "set_tensor_address", "USER_MANAGED", "refit_from_file"} <= used
    noticed = contract.errors([folder / name for name in mutants])
    assert [where for name, where in mutants.items() if name not in noticed] == []


def without(api: dict[str, Any], name: str) -> dict[str, Any]:
    """The API after a version that dropped this name everywhere."""
    reduced = copy.deepcopy(api)
    reduced["classes"].pop(name, None)
    reduced["functions"] = [kept for kept in reduced["functions"] if kept != name]
    for cls in list(reduced["classes"].values()):
        for part in (cls, *cls["nested"].values()):
            for kind in ("methods", "properties", "nested"):
                part[kind].pop(name, None)
            part["members"] = [member for member in part["members"] if member[0] != name]
            for method, doc in part["methods"].items():
                part["methods"][method] = re.sub(rf"([(,] *){name}:", r"\1renamed_argument:", doc)
    return reduced


def unnoticed_removals(contract: Contract, names: list[str]) -> list[str]:
    return [name for name in names if not contract.errors(SOURCES, without(contract.api, name))]


def test_a_removed_method_enum_class_or_argument_is_noticed(contract: Contract) -> None:
    names = ["set_device_memory", "USER_MANAGED", "strategy"]
    assert unnoticed_removals(contract, names) == []


@pytest.mark.slow
def test_every_removed_name_is_noticed(contract: Contract) -> None:
    known = vocabulary(contract.api)
    used = {name for path in SOURCES for _, _, name in used_names(path.read_text(), known)}
    # Also names of our own or Python's objects in these files: the misspelling test covers each.
    ours = {
        "__version__", "address", "allocate", "boxes", "context", "dtype", "itemsize", "append",
        "pop", "max", "min", "name", "nbytes", "output_shapes", "serialize", "shape", "write",
    }  # fmt: skip
    assert unnoticed_removals(contract, sorted(used - ours)) == []
