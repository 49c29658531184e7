"""Nothing of ours changes what a library is: no module assigns into one that is not ours."""

import ast

import pytest

from tests.conftest import REPOSITORY

OURS = ("flows", "tasks", "sam2_core")
# What Python and PyTorch offer to be set.
ALLOWED = {
    "os.environ",
    "sys.argv",
    "sys.excepthook",
    "torch.backends.cudnn.allow_tf32",
    "torch._dynamo.config.recompile_limit",
}


def foreign_assignments(source):
    foreign, assigned = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [one for one in node.names if not (module or one.name).startswith(OURS)]
            foreign |= {(one.asname or one.name).partition(".")[0] for one in names}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            assigned.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "event.listen"}:
            assigned.add(ast.unparse(node.args[0]))
    return {one for one in assigned if one.partition(".")[0] in foreign} - ALLOWED


def test_a_patch_would_be_seen():
    source = "import rich.live as live, prefect\nlive.Live = 1\nsetattr(prefect, "
    source += "'flow', 2)"
    assert foreign_assignments(source) == {"live.Live", "prefect"}


@pytest.mark.parametrize("room", OURS)
def test_no_module_assigns_into_a_foreign_one(room):
    paths = (REPOSITORY / room).rglob("*.py")
    found = {path: foreign_assignments(path.read_text()) for path in paths}
    assert found
    assert not {path: names for path, names in found.items() if names}
