"""The step after a sequence's labels are complete: which of them show one object."""

from __future__ import annotations

import time
from dataclasses import replace

from tasks.observe.progress import TRACK
from tasks.pipeline.chunk import Job
from tasks.pipeline.outcome import SequenceOutcome
from tasks.store.manifests import withdrawn_if_damaged
from tasks.store.tracks import read_tracks, write_tracks
from tasks.tracks.sequence import make_tracks


def track_sequence(job: Job, outcome: SequenceOutcome) -> SequenceOutcome:
    """Make the tracks of a complete sequence, unless they are there.

    While chunks of other shards are missing there is nothing to do: whoever declares the sequence
    complete makes them. Two that do so at the same moment write equal bytes.

    Raises:
        AutolabelError: storage cannot be used, or labels are damaged.

    """
    manifest = outcome.manifest
    if manifest is None or not job.tracks:
        return outcome
    started = time.perf_counter()
    stored = read_tracks(job.out_uri, manifest)
    if stored:
        facts = stored.made
    else:
        with withdrawn_if_damaged(job.out_uri, manifest):
            made = make_tracks(job.out_uri, manifest)
        write_tracks(job.out_uri, manifest, made.frames, made.made)
        facts = made.made
    tracks = sum(one["tracks"] for one in facts["measures"].values())
    seconds = outcome.seconds | {TRACK: time.perf_counter() - started}
    return replace(outcome, tracks=tracks, seconds=seconds)
