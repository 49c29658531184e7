"""Whatever happens to a source, labels and decisions stay with the content they were made for."""

import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.review.moving_source import ACTS, EDITS, MovingSource, Reviewing, steps

CHANGES = st.lists(
    st.tuples(st.sampled_from((*EDITS, *ACTS)), st.integers(0, 9), st.integers(0, 9)),
    max_size=8,
)
KINDS = st.sampled_from(("local", "memory"))
# Each kind of edit, seen by a rebuild without labels made anew, then by a run.
EVERYTHING = [(kind, 0, 4) for kind in EDITS]
EVERYTHING[2:2] = EVERYTHING[5:5] = [("rebuild", 0, 0), ("storage moves", 0, 0), ("accept", 2, 0)]
EVERYTHING += [(kind, 0, 0) for kind in ("another model", "another name")]
EVERYTHING += [("wrong clock", 0, 0), ("rewrite", 0, 0), ("another model", 0, 0)]


@pytest.fixture(scope="module")
def name(database: str) -> str:
    return f"moving {uuid.uuid4().hex[:8]}"


def walk(name: str, folder: Path, where: str, changes: list[tuple[str, int, int]]) -> None:
    unique = uuid.uuid4().hex
    root = f"memory://{unique}" if where == "memory" else str(folder / unique / "in")
    if where == "local":
        for drive in ("drive_1", "drive-1"):
            (folder / unique / "in" / drive / "CAM_FRONT").mkdir(parents=True)
    source = MovingSource(root)
    reviewing = Reviewing(name, source, folder / unique / "out")
    reviewing.forget_database()
    for kind, one, other in steps(changes):
        if kind in EDITS:
            source.edit(kind, one, other)
        else:
            reviewing.act(kind, one)
            reviewing.check()
    reviewing.check_newest()
    reviewing.check_export()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("where", ["local", pytest.param("memory", marks=pytest.mark.ci)])
def test_every_kind_of_change(name: str, folder: Path, where: str) -> None:
    walk(name, folder, where, EVERYTHING)


@pytest.mark.parametrize(
    "examples", [pytest.param(2, marks=pytest.mark.ci), pytest.param(60, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(3600)
def test_random_changes(name: str, folder: Path, examples: int) -> None:
    @settings(
        max_examples=examples, derandomize=examples < 60, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(KINDS, CHANGES)
    def check(where: str, changes: list[tuple[str, int, int]]) -> None:
        walk(name, folder, where, changes)

    check()
