"""Sequences of which something is missing: tried again while that helps, and never for ever."""

import json

import pytest
import s3fs

from flows.load_dataset import load_dataset
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.shard import label_shard
from tasks.frames import download
from tasks.store import quarantine, storage
from tasks.store.manifests import list_manifests, newest_manifests, newest_of
from tests.integration.cluster import every_frame_once
from tests.integration.dataset_rows import held
from tests.integration.runs import MICRO


@pytest.fixture
def night(terminal, under_prefect, s3, upload, tmp_path, monkeypatch):
    """Two drives on S3, and what a night does to them: plan, label every shard, plan again."""
    monkeypatch.setattr("flows.label_sequences.FIRST_PAUSE_S", 0.01)
    source, *_ = upload(2, 3)
    label = LabelParams(
        sources=(source,), out=f"{s3}/out", boxes=f"{s3}/boxes-{s3[-12:]}", model=str(MICRO),
        chunk_frames=2, load_dataset=False,
    )  # fmt: skip

    def run(**options):
        params = BackfillParams(label=label, **options)
        states = [label_shard(shard, return_state=True) for shard in plan_backfill(params).shards]
        return states, plan_backfill(params)

    run.source, run.out = source, label.out
    return run


@pytest.fixture
def lost(monkeypatch):
    """Names of frames that storage says are there and does not give."""
    names, get = set(), download._get

    def cut(uri, target, *listed):
        if uri.rpartition("/in/")[2] in names:
            raise FileNotFoundError(uri)
        return get(uri, target, *listed)

    monkeypatch.setattr(download, "_get", cut)
    return names


@pytest.mark.ci
def test_what_was_not_fetched_is_tried_again_and_then_complete(night, lost, database):
    lost.add("drive000/0001.jpg")
    (state,), plan = night()
    assert state.is_failed()
    assert "1 sequence failed: drive000: 1 file missing" in state.message
    assert (plan.up_to_date, plan.to_label, plan.partial, plan.quarantined) == (1, 1, 1, 0)
    run_key = plan.stamp.run_key
    usable = newest_of(list_manifests(night.out, run_key))
    assert {name: one.partial for name, one in usable.items()} == {
        "drive000": True, "drive001": False,
    }  # fmt: skip
    (partial,) = [one for one in newest_manifests(night.out)[0] if one.partial]
    assert (partial.sequence_id, partial.frames, partial.failed) == ("drive000", 3, 1)

    assert load_dataset("partial", night.out, run_key)["loaded"] == 2
    assert load_dataset("partial", night.out, run_key)["loaded"] == 0
    objects = {
        (row["sequence"], row["frame"]): len(row["objects"]) for row in held("partial")["rows"]
    }
    assert objects.pop(("drive000", 1), 0) == 0
    assert set(objects.values()) == {2}

    lost.clear()
    (state,), plan = night()
    assert state.is_completed()
    assert (plan.up_to_date, plan.to_label, plan.partial) == (2, 0, 0)
    assert every_frame_once(night.source, night.out, run_key) == 2
    assert not any(one.partial for one in newest_manifests(night.out)[0])
    assert load_dataset("partial", night.out, run_key)["loaded"] == 1
    assert all(len(row["objects"]) == 2 for row in held("partial")["rows"])
    assert load_dataset("partial", night.out, run_key, anew=True)["frames"] == 7
    assert all(len(row["objects"]) == 2 for row in held("partial")["rows"])


def test_one_bad_sequence_is_told_and_the_others_are_loaded(night, database):
    _, plan = night()
    run_key = plan.stamp.run_key
    fs = s3fs.S3FileSystem()
    (damaged,) = fs.glob(f"{night.out}/manifests/{run_key}/drive000@*.json")
    content = fs.cat_file(damaged)
    fs.pipe_file(damaged, content[: len(content) // 2])
    state = load_dataset("damaged", night.out, run_key, return_state=True)
    assert state.is_failed()
    assert "1 sequence loaded into damaged, 1 not: drive000: " in state.message
    assert {row["sequence"] for row in held("damaged")["rows"]} == {"drive001"}
    state = load_dataset("damaged", night.out, run_key, anew=True, return_state=True)
    assert state.is_failed()
    assert "rebuilt without 1 sequence: drive000: " in state.message


@pytest.mark.ci
def test_what_never_comes_is_given_up_with_a_report(night, lost):
    lost.add("drive000/0001.jpg")
    for number in range(1, quarantine.ATTEMPTS + 1):
        (state,), plan = night()
        assert state.is_failed()
        assert (plan.to_label, plan.quarantined) == (
            (1, 0) if number < quarantine.ATTEMPTS else (0, 1)
        )
    assert "1 sequence failed (1 of them given up)" in state.message
    assert night()[0] == []
    run_key = plan.stamp.run_key
    ((sequence_id, content_key),) = quarantine.given_up(night.out, run_key)
    case = quarantine.Case(night.out, run_key, sequence_id, content_key)
    report = json.loads(storage.read_bytes(case.report_uri))
    assert "drive000/0001.jpg" in report["reason"]
    assert report["attempts"] == quarantine.ATTEMPTS
    lost.clear()
    (state,), plan = night(retry_quarantined=True)
    assert state.is_completed()
    assert plan.up_to_date == 2


def test_files_that_are_bad_are_an_answer(night, s3):
    fs = s3fs.S3FileSystem()
    whole = fs.cat_file(f"{s3}/in/drive000/0001.jpg")
    fs.pipe_file(f"{s3}/in/drive000/0001.jpg", whole[: len(whole) // 2])
    (state,), plan = night()
    assert state.is_completed()
    assert (plan.up_to_date, plan.to_label) == (2, 0)

    fs.pipe_file(f"{s3}/in/broken.mp4", b"no video at all")
    (state,), plan = night()
    assert state.is_failed()
    assert "no frame could be decoded" in state.message
    assert (plan.up_to_date, plan.to_label, plan.quarantined) == (2, 0, 1)
