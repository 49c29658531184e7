"""The step after a sequence's labels are complete: which of them show one object."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.observe.progress import TRACK
from tasks.pipeline.fill_gaps import Filled, fill_gaps
from tasks.pipeline.outcome import SequenceOutcome, with_tracks
from tasks.pipeline.run_context import Job
from tasks.store.manifests import add_to_report, withdrawn_if_damaged
from tasks.store.tracks import FrameTracks, read_tracks, write_tracks
from tasks.tracks.linking import make_tracks
from tasks.types import FrameRef
from tasks.wording import counted

log = logging.getLogger(__name__)


def track_sequence(job: Job, outcome: SequenceOutcome) -> SequenceOutcome:
    """Make the tracks of a complete sequence, unless they are there; fill gaps if asked to.

    While chunks of other shards are missing there is nothing to do: whoever declares the sequence
    complete makes them. Two that do so at the same moment write equal bytes.

    Raises:
        AutolabelError: storage cannot be used, or labels are damaged.

    """
    manifest = outcome.manifest
    if manifest is None or not job.tracks:
        return outcome
    if job.context.processes:
        done: SequenceOutcome = job.context.processes.run(track_sequence, outcome)
        return done
    started = time.perf_counter()
    stored = read_tracks(job.out_uri, manifest)
    if stored:
        facts = stored.made
    else:
        with withdrawn_if_damaged(job.out_uri, manifest):
            made = make_tracks(job.out_uri, manifest, job.fill_gaps, job.context.fresh)
        filled, why_not = fill_gaps(job, made.gaps)
        facts = made.made | _gaps(job, filled, made.no_gaps + why_not)
        more = [(one.frame, one.boxes, one.masks) for one in filled]
        write_tracks(job.out_uri, manifest, _with_filled(made.frames, filled), facts, more)
        if job.fill_gaps:
            add_to_report(job.out_uri, manifest, {"gaps": facts["gaps"]})
    seconds = outcome.seconds | {TRACK: time.perf_counter() - started}
    outcome = replace(with_tracks(outcome, facts), tracked_now=not stored, seconds=seconds)
    log.info("%s", counted(outcome.tracks, "track"))
    return outcome


def _gaps(job: Job, filled: Sequence[Filled], why_not: Counter[str]) -> dict[str, Any]:
    """Masks that were missing along tracks: how many were made, and why the others were not."""
    if not job.fill_gaps:
        return {}
    made = sum(len(one.gaps) for one in filled)
    return {"gaps": {"filled": made, "not_filled": dict(sorted(why_not.items()))}}


def _with_filled(
    frames: Iterable[tuple[FrameRef, FrameTracks]], filled: Sequence[Filled]
) -> Iterator[tuple[FrameRef, FrameTracks]]:
    """Put the tracks of filled gaps after those of each frame's own labels."""
    more = {(one.frame.camera, one.frame.index): one.gaps for one in filled}
    for frame, tracks in frames:
        gaps = more.get((frame.camera, frame.index), ())
        ids = np.array([gap.track_id for gap in gaps], np.int64)
        labels = (*tracks.labels, *(gap.label for gap in gaps))
        yield frame, FrameTracks(np.concatenate([tracks.ids, ids]), labels)
