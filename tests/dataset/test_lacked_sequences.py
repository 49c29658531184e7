"""What a dataset lacks of labels that are there, and how it is found out."""

import uuid

import pytest

from tasks.dataset import database
from tasks.dataset.schema import lacked_sequences
from tasks.load.into_fiftyone import load_sequence, prepare_dataset
from tasks.store.manifests import write_manifest
from tests.load.test_into_fiftyone import store
from tests.review.labels import STAMP, labeled_frames


def test_the_database_tells_what_a_dataset_lacks(database: str, tmp_path):
    out, name = str(tmp_path / "out"), f"loading {uuid.uuid4().hex[:8]}"
    manifest = store(tmp_path / "out", list(labeled_frames(2)))
    write_manifest(out, manifest)
    assert lacked_sequences(name, out, STAMP.run_key) == {manifest.sequence_id}
    prepare_dataset(name, out_uri=out)
    load_sequence(name, out, manifest)
    assert lacked_sequences(name, out, STAMP.run_key) == set()
    assert lacked_sequences(None, out, STAMP.run_key) == set()


@pytest.mark.parametrize("away", [True, False])
def test_what_cannot_be_asked_from_here_is_not_known(tmp_path, monkeypatch, away):
    if away:
        nobody = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50"
        monkeypatch.setenv("FIFTYONE_DATABASE_URI", nobody)
        monkeypatch.setattr(database, "ANSWER_TIMEOUT_MS", 50)
    else:
        monkeypatch.delenv("FIFTYONE_DATABASE_URI", raising=False)
        monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path / "none"))
    assert lacked_sequences("drives", "/out", "key") is None
