"""A dataset to review, from real artifacts."""

import uuid
from pathlib import Path

import pytest

from tasks.load import sequence as load
from tasks.load.prepare import prepare_dataset
from tasks.store.manifests import write_manifest
from tests.load.test_sequence import store
from tests.review.labels import labeled_frames


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def name(database: str, out: Path) -> str:
    """A dataset of four frames with five labels each, from real artifacts."""
    name = f"review {uuid.uuid4().hex[:8]}"
    manifest = store(out, list(labeled_frames(4)))
    write_manifest(str(out), manifest)
    prepare_dataset(name, out_uri=str(out))
    load.load_sequence(name, str(out), manifest)
    return name
