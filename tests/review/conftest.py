"""A dataset to review, from real artifacts."""

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.dataset import schema
from tasks.load import into_fiftyone as load
from tasks.load.prepare import prepare_dataset
from tasks.review.queue import build_queue
from tasks.store.manifests import write_manifest
from tests.load.test_into_fiftyone import store
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


@pytest.fixture
def one_frame(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of one frame with three labels, in the queue, for the reviewer `tester`."""
    from tests.review.test_app import three_labels

    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    name = f"frame-{uuid.uuid4().hex[:8]}"
    manifest = store(tmp_path / "out", [three_labels(tmp_path)])
    manifest = replace(manifest, frames_uri=str(tmp_path / "images"))
    write_manifest(str(tmp_path / "out"), manifest)
    prepare_dataset(name, out_uri=str(tmp_path / "out"))
    load.load_sequence(name, str(tmp_path / "out"), manifest)
    build_queue(schema.open_dataset(name), 10)
    return name
