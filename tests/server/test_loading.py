"""What a dataset lacks of labels that are there, and how it is found out."""

import uuid

import pytest

from flows.params import LabelParams
from flows.plan.shards import Piece, ShardParams
from flows.server import loading
from flows.server.shard_runs import ending
from tasks.dataset import database_access
from tasks.load.into_fiftyone import load_sequence, prepare_dataset
from tasks.observe.progress import LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.store.manifests import write_manifest
from tests.load.test_into_fiftyone import store
from tests.review.labels import STAMP, labeled_frames


@pytest.fixture
def shards(monkeypatch):
    """What Prefect would say of the run's shards; those that have not ended have nothing left."""
    found = []
    monkeypatch.setattr(loading, "runs_of", lambda *_: iter(found))
    monkeypatch.setattr(loading, "sequences_in_flight", lambda *_: {("under way", "k")})
    return found


def test_the_database_tells_what_a_dataset_lacks(database: str, tmp_path, shards):
    out, name = str(tmp_path / "out"), f"loading {uuid.uuid4().hex[:8]}"
    manifest = store(tmp_path / "out", list(labeled_frames(2)))
    write_manifest(out, manifest)
    params = LabelParams(sources=["/frames"], out=out, dataset=name)
    assert loading.to_load(params, STAMP.run_key) == {manifest.sequence_id}
    prepare_dataset(name, out_uri=out)
    load_sequence(name, out, manifest)
    assert loading.to_load(params, STAMP.run_key) == set()
    unwanted = params.model_copy(update={"load_dataset": False})
    assert loading.lacked(unwanted, STAMP.run_key) == set()


@pytest.mark.parametrize("away", [True, False])
def test_shards_tell_it_where_the_database_cannot_be_asked(tmp_path, monkeypatch, shards, away):
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Completed, Running

    if away:
        nobody = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50"
        monkeypatch.setenv("FIFTYONE_DATABASE_URI", nobody)
        monkeypatch.setattr(database_access, "ANSWER_TIMEOUT_MS", 50)
    else:
        monkeypatch.delenv("FIFTYONE_DATABASE_URI", raising=False)
        monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path / "none"))
    label = LabelParams(sources=["/frames"], out="/out", dataset="drives")

    def shard(name, state, **of_label):
        given = label.model_copy(update=of_label)
        pieces = [Piece(one, f"/frames/{one}", "k", 1) for one in (name, "under way")]
        params = ShardParams(label=given, run_key="key", pieces=pieces).model_dump(mode="json")
        shards.append(FlowRun(flow_id=uuid.uuid4(), parameters={"params": params}, state=state))

    failed = SequenceOutcome("drive", frames=3, error="MemoryError", stage=LOAD)
    lacks = ending([failed], "3 frames", 0, "drives")
    shard("lacking", lacks)
    shard("of another dataset", lacks, dataset="another")
    shard("loaded", Completed(message="3 frames, 4 masks"))
    shard("running", Running())
    assert loading.lacked(label, "key") is None
    assert loading.to_load(label, "key") == {"lacking"}
