"""What modules import: no circles, and of backends only the one that labels."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from sam2_core.backend_choice import KINDS, imported
from tests.conftest import REPOSITORY
from tests.integration.runs import MICRO, write_sequence


def modules_of(root: Path) -> dict[str, Path]:
    """Files of the product's modules by their dotted names."""
    paths = [
        path for top in ("flows", "tasks", "sam2_core") for path in root.glob(f"{top}/**/*.py")
    ]
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    return dict(zip((name.removesuffix(".__init__") for name in names), paths, strict=True))


def import_statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Wherever they stand, but those that only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)):
            yield from import_statements(child)


def imports_of(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Which of the modules each one imports, inside functions too."""
    found = {name: set[str]() for name in modules}
    for name, path in modules.items():
        for statement in import_statements(ast.parse(path.read_text())):
            named = {alias.name for alias in statement.names}
            if isinstance(statement, ast.ImportFrom):
                assert not statement.level, f"{path}: a relative import"
                named = {f"{statement.module}.{alias}" for alias in named} | {statement.module}
            found[name] |= named & modules.keys() - {name}
    return found


def test_no_module_imports_itself_by_way_of_others():
    graph = imports_of(modules_of(REPOSITORY))
    assert len(graph) > 200
    for name in ("events", "set_aside"):  # the only circle that there still is
        graph[f"tasks.review.{name}"] -= {"tasks.review.actions", "tasks.review.set_aside"}
    TopologicalSorter(graph).prepare()


def test_a_circle_through_a_function_is_seen(tmp_path):
    (tmp_path / "tasks").mkdir()
    for name, other in (("a", "b"), ("b", "a")):
        code = f"def later():\n    from tasks.{other} import x\n"
        (tmp_path / "tasks" / f"{name}.py").write_text(code)
    with pytest.raises(CycleError):
        TopologicalSorter(imports_of(modules_of(tmp_path))).prepare()


@pytest.mark.parametrize("name", ["onnxruntime-cpu", "onnxruntime-cuda", "tensorrt", "triton"])
def test_a_backend_is_found_by_its_name(name):
    if name == "tensorrt":
        pytest.importorskip("tensorrt_rtx_bindings")
    assert callable(imported(KINDS[name].loader))


def test_labeling_on_onnx_runtime_imports_no_other_backend(tmp_path):
    write_sequence(tmp_path / "drive", tmp_path / "boxes", 2)
    words = [
        "label", tmp_path / "drive", "--boxes", tmp_path / "boxes", "--out", tmp_path / "out",
        "--model", MICRO, "--backend", "onnxruntime-cpu", "--no-dataset", "--json",
    ]  # fmt: skip
    code = (
        "import atexit, json, sys; from flows.cli.main import cli\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules))))\n"
        "cli(sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True
    )
    *_, last = ended.stdout.splitlines()
    labeling = set(json.loads(last))
    assert "sam2_core.backends.onnxruntime_backend" in labeling
    others = {f"sam2_core.backends.{kind.loader.partition(':')[0]}" for kind in KINDS.values()}
    others -= {f"sam2_core.backends.onnxruntime_{name}" for name in ("backend", "cuda")}
    assert not labeling & (others | {"sam2_core.serving", "torch", "tensorrt", "tritonclient"})
