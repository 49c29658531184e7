"""A dataset to review, from real artifacts."""

import uuid
from pathlib import Path

import pytest

from tasks.review.queue import build_queue
from tests.review.labels import labeled_frames, three_labels
from tests.review.reviewed import load_run


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def name(database: str, out: Path) -> str:
    """A dataset of four frames with five labels each, from real artifacts."""
    name = f"review {uuid.uuid4().hex[:8]}"
    load_run(name, out, labeled_frames(4))
    return name


@pytest.fixture
def one_frame(database: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of one frame with three labels, in the queue, for the reviewer `tester`."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    name = f"frame-{uuid.uuid4().hex[:8]}"
    build_queue(load_run(name, out, [three_labels(tmp_path)]), 10)
    return name
