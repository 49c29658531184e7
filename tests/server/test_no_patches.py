"""Nothing in flows changes what a library is: no module assigns into one that is not ours."""

import ast
from pathlib import Path

FLOWS = Path(__file__).resolve().parents[2] / "flows"
OURS = ("flows", "tasks", "sam2_core")
ALLOWED = {"os.environ", "sys.argv"}  # a process's own


def foreign_names(tree):
    """Names that a module imports from libraries."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if not one.name.startswith(OURS):
                    yield (one.asname or one.name).partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(OURS):
            yield from (one.asname or one.name for one in node.names)


def assigned(tree):
    """Dotted names of the attributes that a module sets."""
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            targets = [node.target]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "event.listen"}:
            targets = [ast.Attribute(node.args[0], "?")]
        for target in targets:
            for one in ast.walk(target):
                if isinstance(one, ast.Attribute):
                    yield ast.unparse(one)


def patches(source):
    tree = ast.parse(source)
    foreign = set(foreign_names(tree))
    return {one for one in assigned(tree) if one.partition(".")[0] in foreign} - ALLOWED


def test_no_module_assigns_into_a_foreign_one():
    found = {path.name: patches(path.read_text()) for path in FLOWS.rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {}
