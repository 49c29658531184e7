"""Nothing in flows changes what a library is: no module assigns into one that is not ours."""

import ast

import pytest

from tests.conftest import REPOSITORY

OURS = ("flows", "tasks", "sam2_core")
ALLOWED = {"os.environ", "sys.argv"}  # a process's own


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "flows").rglob("*.py")), ids=lambda one: one.stem
)
def test_no_module_assigns_into_a_foreign_one(path):
    foreign, assigned = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [one for one in node.names if not (module or one.name).startswith(OURS)]
            foreign |= {(one.asname or one.name).partition(".")[0] for one in names}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            assigned.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "event.listen"}:
            assigned.add(ast.unparse(node.args[0]))
    assert {one for one in assigned if one.partition(".")[0] in foreign} <= ALLOWED
