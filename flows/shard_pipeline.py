"""A shard's pieces on their way through the tasks; see `flows.pipeline` for how stages overlap."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from flows.cli.summary import SequenceOutcome
from flows.pipeline import AHEAD, InFlight, buffered, outcome_of
from flows.plan.run import SequencePlan
from flows.plan.shards import Piece, ShardParams
from tasks.frames.discover import Discovered
from tasks.observe.progress import LOAD
from tasks.pipeline import stopping
from tasks.pipeline.chunk import Job
from tasks.pipeline.piece import PieceRef, label_piece_task, load_stored_task
from tasks.pipeline.sequence import Closed, LabeledSequence, may_yet_come
from tasks.store.manifests import Manifest
from tasks.types import FrameSelection, SequenceRef

PASSES = 3
FIRST_PAUSE_S = 5.0

log = logging.getLogger(__name__)


class PieceInFlight(InFlight):
    """A piece of a shard."""

    def __init__(self, piece: Piece) -> None:
        sequence = SequenceRef(piece.sequence_id, piece.frames_uri)
        super().__init__(SequencePlan(Discovered(sequence, ())))
        self.piece = piece

    @property
    def worth_another_pass(self) -> bool:
        """Whether what went wrong may well go right in a moment."""
        failures = [failure for one in self.labeled for failure in one.failures]
        failures += self.done.unopened if self.done else ()
        return self.transient or self.stage == LOAD or any(map(may_yet_come, failures))


def label_pieces(
    job: Job, shard: ShardParams, on_piece: Callable[[Piece], object] = lambda _: None
) -> list[SequenceOutcome]:
    """Label every piece, then again those that failed for a passing reason.

    Retrying a request has a limit of seconds; a shard lives for minutes and can wait for storage to
    come back.
    """
    outcomes: dict[Piece, SequenceOutcome] = {}
    todo: list[Piece] = list(shard.pieces)
    for attempt in range(1, PASSES + 1):
        again: list[Piece] = []
        for item, outcome in _one_pass(job, shard, todo):
            outcomes[item.piece] = outcome
            on_piece(item.piece)
            if item.worth_another_pass:
                again.append(item.piece)
        todo = again
        if not todo or stopping.requested() or attempt == PASSES:
            break
        pause_s = FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311
        log.warning("%d sequences failed for a passing reason: again in %.0f s", len(todo), pause_s)
        time.sleep(pause_s)
    return [outcomes[piece] for piece in shard.pieces if piece in outcomes]


def _one_pass(
    job: Job, shard: ShardParams, pieces: Iterable[Piece]
) -> Iterator[tuple[PieceInFlight, SequenceOutcome]]:
    label = shard.label
    begin = partial(_submit_label, job, FrameSelection.parse(label.frames), label.chunk_frames)
    load = partial(_submit_load, label.out, label.dataset_name, _loaded(shard))
    items = (PieceInFlight(piece) for piece in pieces if not stopping.requested())
    for item in buffered(buffered(items, begin, ahead=AHEAD), load, ahead=1):
        yield item, outcome_of(item)


def _loaded(shard: ShardParams) -> set[str]:
    """Prepare the dataset, if one is wanted; return the manifests that it holds already."""
    label = shard.label
    if not label.dataset_name:
        return set()
    from tasks.dataset.record import loaded_manifests
    from tasks.load.prepare import prepare_dataset

    prepare_dataset(label.dataset_name, shard.cameras, label.out)
    return loaded_manifests(label.dataset_name)


def _submit_label(
    job: Job, selection: FrameSelection, chunk_frames: int, item: PieceInFlight
) -> None:
    ref = PieceRef(item.plan.found.sequence, item.piece.chunks, selection, chunk_frames)
    item.pending = [label_piece_task.submit(job, ref, item.name)]


def _submit_load(out_uri: str, dataset: str | None, loaded: set[str], item: PieceInFlight) -> None:
    """Load what is complete now."""
    for done in item.results("label"):
        if isinstance(done, Manifest):
            item.done = LabeledSequence((), Closed(done, (), 0, {}))
        else:
            item.done, item.labeled = done, done.labeled
    manifest = item.done.closed.manifest if item.done and item.done.closed else None
    if dataset and manifest and manifest.version not in loaded:
        item.pending = [load_stored_task.submit(dataset, out_uri, manifest, item.name)]
