"""What became of a run: its summary as JSON and lines, and the frames that have no labels."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flows.plan.plan import Plan
from sam2_core.types import AutolabelError
from tasks.masks.model import verdict_on
from tasks.observe.progress import summed
from tasks.passed_over import passed_over_json
from tasks.pipeline.outcome import SequenceOutcome
from tasks.pipeline.sequence import failures_of
from tasks.store import storage
from tasks.store.artifacts import read_frames
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import ListedManifest
from tasks.types import FrameFailure, FrameRef, VideoRef
from tasks.wording import counted


def summary_of(
    plan: Plan, outcomes: Sequence[SequenceOutcome], total_seconds: float
) -> dict[str, Any]:
    """Return the object that `--json` prints.

    `kept` counts sequences that stay as people have reviewed them, with `frames_reviewed`.
    `rejected` counts those of the instances that have a reason and no mask, `followed` those that
    no detector has found. `tracks`, `filled`,
    masks made for their gaps, `not_filled`, masks missing in gaps by reason, and `other_class`,
    labels whose track is of another class, are of all of them, too; `skipped` counts frames that
    were labeled before, `failed` lists frames and sequences with their reasons, `left_out`
    counts labeled frames that the dataset lacks as their pictures have changed since,
    `passed_over` lists what sources hold that is not read, with how many there are, `nothing`
    says why there is not a single mask where there should be, `seconds` are summed over the
    threads of a stage (so they may exceed `total`).
    """
    if plan.matching:
        plan.matching.open_videos(_frames_of_videos(plan, outcomes))
    failed = [entry for outcome in outcomes for entry in _failed(outcome)]
    seconds = summed(outcome.seconds for outcome in outcomes) | {"total": total_seconds}
    allowed = plan.job.params.allow_uncertified
    return {
        "sequences": len(outcomes),
        "kept": len(plan.kept),
        "frames_reviewed": sum(plan.kept.values()),
        "frames": sum(outcome.frames for outcome in outcomes),
        "instances": sum(outcome.instances for outcome in outcomes),
        "rejected": sum(outcome.rejected for outcome in outcomes),
        "followed": sum(outcome.followed for outcome in outcomes),
        "filled": sum(outcome.filled for outcome in outcomes),
        "not_filled": dict(
            sum((Counter(outcome.not_filled) for outcome in outcomes), Counter[str]())
        ),
        "tracks": sum(outcome.tracks for outcome in outcomes),
        "other_class": sum(outcome.other_class for outcome in outcomes),
        "skipped": sum(outcome.frames - outcome.computed_frames for outcome in outcomes),
        "failed": failed,
        "left_out": sum(outcome.left_out for outcome in outcomes),
        "passed_over": passed_over_json(plan.passed_over),
        "nothing": _nothing(plan, outcomes),
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "dataset": plan.job.params.dataset_name,
        "fill_gaps": plan.job.params.fill_gaps,
        "follow": plan.job.params.follow,
        "out": plan.job.params.out,
        "run_key": plan.job.stamp.run_key,
        "model": asdict(plan.job.model.stamp),
        "boxes": plan.job.stamp.detector,
        **({"imported": plan.matching.as_json()} if plan.matching else {}),
        **({"allow_uncertified": verdict_on(plan.job.model)} if allowed else {}),
    }


def _frames_of_videos(plan: Plan, outcomes: Sequence[SequenceOutcome]) -> Iterator[FrameRef]:
    """Yield the frames of complete sequences with videos, as their labels name them."""
    found = [
        (sequence.sequence_id, frame) for sequence in plan.sequences for frame in sequence.frames
    ]
    names = {name for name, frame in found if isinstance(frame, VideoRef)}
    for manifest in (outcome.manifest for outcome in outcomes if outcome.sequence_id in names):
        with contextlib.suppress(AutolabelError):  # labels that cannot be read end no summary
            chunks = manifest.chunks if manifest else ()
            yield from [
                frame
                for chunk in chunks
                for frame in read_frames(plan.job.params.out, chunk.stem, chunk.key)
            ]


def tracks_told(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say in lines what was found along tracks."""
    if not summary["tracks"]:
        return
    other = counted(summary["other_class"], "label")
    more = f"; {other} of another class than its track: at risk" if summary["other_class"] else ""
    yield f"{counted(summary['tracks'], 'track')}{more}"
    if summary["fill_gaps"]:
        missing = sorted(summary["not_filled"].items(), key=lambda item: -item[1])
        reasons = ", ".join(f"{count} not: {reason}" for reason, count in missing)
        filled = f"{counted(summary['filled'], 'mask')} filled in"
        yield f"gaps of tracks: {filled}{f' ({reasons})' if missing else ''}"


def _nothing(plan: Plan, outcomes: Sequence[SequenceOutcome]) -> str:
    """Say why there is not a single mask where somebody asked for certain boxes; "" where not."""
    params = plan.job.params
    asked = params.boxes or params.classes or params.min_score is not None
    if not outcomes or any(
        outcome.instances > outcome.rejected or outcome.error or outcome.failures
        for outcome in outcomes
    ):
        return ""
    if not any(outcome.frames for outcome in outcomes):
        # Of videos and recordings the number was unknown.
        return f"no frame: --frames {params.frames} takes none of those that can be read"
    if not asked:
        return ""
    if any(outcome.rejected for outcome in outcomes):
        return f"no mask: no box could be used; why is in reports/{plan.job.stamp.run_key}/"
    classes = params.wanted_classes if params.classes else ()
    wanted = f" of {', '.join(classes)}" if classes else ""
    return f"no mask: no frame has a box{wanted} with a score of {params.least_score:g} or more"


def failure_row(failure: FrameFailure) -> dict[str, Any]:
    """Return a frame without labels as summaries list it."""
    return {
        "sequence": failure.sequence_id, "camera": failure.camera, "frame": failure.index,
        "uri": failure.uri, "stage": failure.stage, "reason": failure.reason,
    }  # fmt: skip


def _failed(outcome: SequenceOutcome) -> Iterator[dict[str, Any]]:
    yield from map(failure_row, outcome.failures)
    if outcome.error:
        yield {"sequence": outcome.sequence_id, "stage": outcome.stage, "reason": outcome.error}


def unlabeled_frames(out_uri: str, complete: Iterable[ListedManifest]) -> list[FrameFailure]:
    """Return why frames of complete sequences have no labels, in order.

    Reads a manifest for each sequence, and labels only where it tells of failures. What is damaged
    there is passed over: who loads or labels next withdraws it.

    Args:
        out_uri: the run's storage.
        complete: manifests of the sequences.

    """

    def of(listed: ListedManifest) -> list[FrameFailure]:
        try:
            return list(failures_of(out_uri, listed.read(out_uri)))
        except (storage.NotFoundError, IncompleteArtifactError):
            return []

    found = storage.at_once(of, sorted(complete, key=lambda manifest: manifest.key))
    return [failure for failures in found for failure in failures]
