"""A worker's engine that fails certification: nothing is labeled, fetched or given up for it."""

from dataclasses import replace

import pytest

from flows.params import LabelParams
from flows.plan.shards import Piece, ShardParams
from flows.shard import note_failures
from sam2_core.machine_errors import is_machine_error
from sam2_core.trust.certificate import UncertifiedEngineError
from tasks.masks.model import choose_model
from tasks.observe.progress import DOWNLOAD, SEGMENT
from tasks.pipeline.outcome import outcome_so_far, with_error
from tasks.store import quarantine
from tasks.store.artifacts import complete_chunk
from tests.pipeline.test_machine_errors import chunk_of, job_of, label_chunk, source  # noqa: F401
from tests.planted_graphs import plant


def test_a_refused_engine_labels_nothing_and_no_sequence_is_at_fault(source, monkeypatch):  # noqa: F811
    job = job_of(source, imported=True)
    plant(source / "micro", "red and blue swapped", suffix="")
    model = choose_model(str(source / "micro"), "onnxruntime-cpu")
    job = replace(job, model=model, stamp=replace(job.stamp, model=model.stamp))
    chunk = chunk_of(job, source)
    with pytest.raises(UncertifiedEngineError, match="may not label") as refused:
        label_chunk(job, chunk)
    assert is_machine_error(refused.value)
    assert complete_chunk(job.out_uri, chunk) is None
    monkeypatch.setattr(
        "tasks.frames.download.download", None
    )  # the next sequence is not even fetched
    with pytest.raises(UncertifiedEngineError, match="may not label"):
        label_chunk(job, chunk)
    outcome = with_error(outcome_so_far("drive", []), DOWNLOAD, refused.value)
    assert outcome.transient
    assert outcome.stage == SEGMENT  # wherever the sequence was
    label = LabelParams(sources=(str(source / "drive"),), out=str(source / "out"))
    piece = Piece(
        sequence_id="drive", frames_uri=str(source / "drive"), content_key="c" * 20, frames=6
    )
    shard = ShardParams(label=label, run_key=job.stamp.run_key, pieces=(piece,))
    for attempt in range(quarantine.ATTEMPTS + 1):
        assert note_failures(shard, [outcome], f"run-{attempt}") == 0
    assert not quarantine.listed(job.out_uri, job.stamp.run_key)
