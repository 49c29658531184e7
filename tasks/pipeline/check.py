"""The step after all chunks of a sequence: its report, and the manifest that makes it complete."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tasks.observe.progress import CHECK
from tasks.pipeline.chunk import ChunkState, stored_chunk
from tasks.pipeline.open import Opened
from tasks.pipeline.outcome import SequenceOutcome, complete_before, outcome_so_far
from tasks.pipeline.run_context import Job
from tasks.store import manifests
from tasks.store.artifacts import Chunk
from tasks.store.manifests import Manifest
from tasks.store.reports import report_of
from tasks.wording import counted

FAILURES_LOGGED = 20

log = logging.getLogger(__name__)


def check_sequence(
    job: Job, opened: Opened, blocks: Sequence[Sequence[ChunkState]]
) -> SequenceOutcome:
    """Sum up a sequence's chunks, write its report, and declare it complete.

    With frames that could not be fetched, or a camera's video that could not be opened, its
    manifest is a partial one: the next run tries those again. While chunks of other shards are
    missing it is not declared; if two shards end together, both write the same manifest.
    """
    part, found = opened.part, opened.part.found
    if part.manifest:
        return complete_before(part)
    started = time.perf_counter()
    states = [state for block in blocks for state in block]
    others = _of_others(job, opened.rest)
    together = sorted([*states, *(others or ())], key=lambda one: one.chunk.stem)
    outcome = outcome_so_far(part.name, together, opened.failures)
    for one in outcome.failures[:FAILURES_LOGGED]:  # the report has all of them
        log.info("%s failed in %s: %s", one.uri.rpartition("/")[2], one.stage, one.reason)
    if len(outcome.failures) > FAILURES_LOGGED:
        log.info("%d more frames failed", len(outcome.failures) - FAILURES_LOGGED)
    frames = counted(outcome.frames, "frame")
    if others is None:
        log.info("%s, %s, the rest of it is done by other shards", frames, outcome.masks)
        return outcome
    log.info("%s, %s", frames, outcome.masks)
    report = report_of(seen for one in together for seen in one.seen)
    partial = bool(opened.failures) or any(one.may_yet_come for one in outcome.failures)
    versions = [one.versions for one in together]
    manifest = Manifest(
        part.name,
        found.sequence.frames_uri,
        found.content_key,
        replace(job.stamp, boxes=found.boxes),
        tuple(one.record for one in together if one.record),
        partial,
        tuple(one for i, one in enumerate(versions) if one not in versions[:i]),
    )
    seconds = outcome.seconds | {CHECK: time.perf_counter() - started}
    report |= {"seconds": {stage: round(value, 3) for stage, value in seconds.items()}}
    report |= {"certificate": _certificate(job), "versions": list(manifest.versions)}
    report |= {"mixed_versions": manifest.mixed}
    if not all(one.computed for one in together):
        manifests.note_mixed(job.out_uri, manifest)
    manifests.write_report(
        job.out_uri, job.stamp.run_key, found.sequence, found.content_key, report
    )
    manifests.write_manifest(job.out_uri, manifest)
    hopeless = partial and not any(one.may_yet_come for one in outcome.failures)
    return replace(outcome, manifest=manifest, hopeless=hopeless, seconds=seconds)


def _certificate(job: Job) -> dict[str, Any] | None:
    """Return the certificate of the model where it is loaded: here or in the processes beside."""
    processes = job.context.processes
    if processes is None:
        return job.context.segmenters.certified_by(job.model)
    if job.context.certificate is None:
        job.context.certificate = processes.run(certificate_of)
    return job.context.certificate


def certificate_of(job: Job) -> dict[str, Any] | None:
    """Return the certificate of the job's model, which is loaded where it is not yet."""
    job.context.segmenters.load(job.model)
    return job.context.segmenters.certified_by(job.model)


def _of_others(job: Job, chunks: Iterable[Chunk]) -> list[ChunkState] | None:
    """Return the chunks that other shards do, or None while one is missing."""
    states = []
    for chunk in chunks:
        state = stored_chunk(job, chunk)
        if state is None:
            return None
        states.append(state)
    return states
