"""The tests that CHANGELOG.md names for findings exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
ROWS = [
    row
    for row in (TESTS.parent / "CHANGELOG.md").read_text().splitlines()
    if row.startswith("| ") and "::" in row
]


def test_every_finding_names_tests_that_are_there() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        file = ""
        for module, test in re.findall(r"`([\w/]*(?:\.py)?)::(\w+)`", row):
            file = module or file
            defined = ast.parse((TESTS / file).read_text()).body
            names = {one.name for one in defined if isinstance(one, ast.FunctionDef)}
            assert test in names, f"{file} has no {test}"
