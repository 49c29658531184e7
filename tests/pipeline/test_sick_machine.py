"""A machine that fails while another sequence works: the shard's sequences are not at fault."""

import errno
import logging

import pytest

from flows import shard
from flows.params import LabelParams
from flows.plan.shards import ShardParams
from flows.shard import note_failures
from sam2_core.trust.certify import UncertifiedEngineError
from sam2_core.types import AutolabelError, DeviceMemoryError, MachineError
from tasks.frames.discover import FoundSequence
from tasks.observe.progress import DETECT, LOAD, SEGMENT
from tasks.pipeline.device_processes import ProcessDiedError
from tasks.pipeline.outcome import SequenceOutcome, with_error
from tasks.store import quarantine, storage


def storage_error(cause):
    with pytest.raises(AutolabelError) as told, storage.explained("read", "/in/drive/0.jpg"):
        raise cause
    return told.value


class AnswerError(OSError):
    """A server's answer, which its client calls EIO."""

    status = 400


MACHINES = [
    storage_error(OSError(errno.ESTALE, "Stale file handle")),
    storage_error(OSError(errno.ENOSPC, "No space left on device")),
    OSError(errno.EIO, "Input/output error"),
    MemoryError(),
    DeviceMemoryError("the GPU has no memory left"),
    MachineError("CUDA: cudaMemcpyAsync failed with cudaErrorNotReady"),
    ProcessDiedError("the process 7 that worked on this ended with exit code -11"),
]
SEQUENCES = [
    AutolabelError("drive: another table"),
    storage_error(AnswerError(errno.EIO, "Bad Request")),
    KeyError("boxes"),
]


@pytest.mark.parametrize("error", [*MACHINES, *SEQUENCES], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("alone", [True, False])
def test_only_a_sequence_is_given_up(tmp_path, error, alone):
    outcome = with_error(SequenceOutcome("drive"), SEGMENT, error)
    assert outcome.machine == outcome.for_another_worker == (error in MACHINES)
    works = [] if alone else [SequenceOutcome("other", frames=3)]
    label = LabelParams(sources=(str(tmp_path),), out=str(tmp_path / "out"))
    pieces = [
        FoundSequence(sequence_id=one.sequence_id, frames_uri="x", planned_key="c" * 20, planned=3)
        for one in (outcome, *works)
    ]
    # As many shards of one long sequence, or as many nights.
    given_up = [
        note_failures(
            ShardParams(label=label, run_key="key", pieces=tuple(pieces)),
            [outcome, *works],
            f"run-{number}",
        )
        for number in range(quarantine.ATTEMPTS)
    ]
    assert sum(given_up) == len(quarantine.given_up(label.out, "key")) == (error in SEQUENCES)


def test_a_failure_that_cannot_be_noted_fails_no_shard(tmp_path, monkeypatch, caplog):
    away = storage_error(ConnectionError("Could not connect"))

    def note(*_, **__):
        raise away

    monkeypatch.setattr(quarantine, "note_failure", note)
    monkeypatch.setattr(shard, "get_run_logger", lambda: logging.getLogger("shard"))
    label = LabelParams(sources=(str(tmp_path),), out=str(tmp_path / "out"))
    piece = FoundSequence(sequence_id="drive", frames_uri="x", planned_key="c" * 20, planned=3)
    failed = with_error(SequenceOutcome("drive"), SEGMENT, AutolabelError("drive: another table"))
    assert note_failures(ShardParams(label=label, run_key="k", pieces=(piece,)), [failed], "1") == 0
    assert "drive: not counted: cannot read" in caplog.text


def test_a_refused_engine_and_a_dataset_that_is_full_are_not_for_another_worker():
    refused = with_error(SequenceOutcome("a"), DETECT, UncertifiedEngineError("may not label"))
    full = with_error(SequenceOutcome("a"), LOAD, OSError(errno.ENOSPC, "full"))
    assert (refused.machine, refused.for_another_worker) == (True, False)
    assert (full.machine, full.for_another_worker) == (True, False)


def test_a_shard_waits_longer_each_time_and_not_for_ever():
    from flows.server.given_back import pause_after
    from flows.server.prefect_runs import MOST_STARTS

    waits = [pause_after(starts).total_seconds() for starts in range(1, MOST_STARTS + 1)]
    assert waits[:4] == [10, 20, 40, 80]
    assert waits[-1] == max(waits) == 600
