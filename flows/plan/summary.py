"""What a run did, as one JSON object and as a few lines."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flows.plan.plan import Plan
from sam2_core.types import AutolabelError
from tasks.observe.progress import summed
from tasks.pipeline.outcome import SequenceOutcome
from tasks.pipeline.sequence import failures_of
from tasks.store import storage
from tasks.store.artifacts import read_frames
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import read_manifest
from tasks.types import FrameFailure, FrameRef, VideoRef
from tasks.wording import counted


def summary_of(
    plan: Plan, outcomes: Sequence[SequenceOutcome], total_seconds: float
) -> dict[str, Any]:
    """Return the object that `--json` prints.

    `rejected` counts those of the instances that have a reason and no mask. `tracks`, `filled`,
    masks made for their gaps, `not_filled`, masks missing in gaps by reason, and `other_class`,
    labels whose track is of another class, are of all of them, too; `skipped` counts frames that
    were labeled before, `failed` lists frames and sequences with their reasons, `left_out`
    counts labeled frames that the dataset lacks as their pictures have changed since, `nothing`
    says why there is not a single mask where there should be, `seconds` are summed over the
    threads of a stage (so they may exceed `total`).
    """
    if plan.matching:
        plan.matching.open_videos(_frames_of_videos(plan, outcomes))
    failed = [entry for one in outcomes for entry in _failed(one)]
    seconds = summed(one.seconds for one in outcomes) | {"total": total_seconds}
    return {
        "sequences": len(outcomes),
        "frames": sum(one.frames for one in outcomes),
        "instances": sum(one.instances for one in outcomes),
        "rejected": sum(one.rejected for one in outcomes),
        "filled": sum(one.filled for one in outcomes),
        "not_filled": dict(sum((Counter(one.not_filled) for one in outcomes), Counter[str]())),
        "tracks": sum(one.tracks for one in outcomes),
        "other_class": sum(one.other_class for one in outcomes),
        "skipped": sum(one.frames - one.computed_frames for one in outcomes),
        "failed": failed,
        "left_out": sum(one.left_out for one in outcomes),
        "nothing": _nothing(plan, outcomes),
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "dataset": plan.params.dataset_name,
        "fill_gaps": plan.params.fill_gaps,
        **plan.facts(),
    }


def _frames_of_videos(plan: Plan, outcomes: Sequence[SequenceOutcome]) -> Iterator[FrameRef]:
    """Yield the frames of complete sequences with videos, as their labels name them."""
    found = [(one.name, frame) for one in plan.sequences for frame in one.found.frames]
    names = {name for name, frame in found if isinstance(frame, VideoRef)}
    for manifest in (one.manifest for one in outcomes if one.sequence_id in names):
        with contextlib.suppress(AutolabelError):  # labels that cannot be read end no summary
            chunks = manifest.chunks if manifest else ()
            yield from [
                frame
                for chunk in chunks
                for frame in read_frames(plan.params.out, chunk.stem, chunk.key)
            ]


def tracks_told(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say in lines what was found along tracks."""
    if not summary["tracks"]:
        return
    other = summary["other_class"]
    verb, whose = ("is", "its track") if other == 1 else ("are", "their tracks")
    more = f"; {counted(other, 'label')} {verb} of another class than {whose}" if other else ""
    yield f"{counted(summary['tracks'], 'track')}{more}"
    if summary["fill_gaps"]:
        missing = sorted(summary["not_filled"].items(), key=lambda one: -one[1])
        reasons = ", ".join(f"{reason} ({count})" for reason, count in missing)
        left = f"; {sum(count for _, count in missing)} not filled: {reasons}" if missing else ""
        none = not missing and not summary["filled"]
        yield "gaps of tracks: " + (
            "none" if none else f"{counted(summary['filled'], 'mask')} filled in{left}"
        )


def _nothing(plan: Plan, outcomes: Sequence[SequenceOutcome]) -> str:
    """Say why there is not a single mask where somebody asked for certain boxes; "" where not."""
    params = plan.params
    asked = params.boxes or params.classes or params.min_score is not None
    if not outcomes or any(one.instances or one.error or one.failures for one in outcomes):
        return ""
    if not any(one.frames for one in outcomes):
        # Of videos and recordings nobody knew how many there are.
        return f"no frame: --frames {params.frames} takes none of those that can be read"
    if not asked:
        return ""
    classes = params.wanted_classes if params.classes else ()
    wanted = f" of {', '.join(classes)}" if classes else ""
    return f"no mask: no frame has a box{wanted} with a score of {params.least_score:g} or more"


def failure_row(failure: FrameFailure) -> dict[str, Any]:
    """Return a frame without labels as summaries list it."""
    return {
        "sequence": failure.sequence_id, "camera": failure.camera, "frame": failure.index,
        "uri": failure.uri, "stage": failure.stage, "reason": failure.reason,
    }  # fmt: skip


def _failed(one: SequenceOutcome) -> Iterator[dict[str, Any]]:
    yield from map(failure_row, one.failures)
    if one.error:
        yield {"sequence": one.sequence_id, "stage": one.stage, "reason": one.error}


def unlabeled_frames(
    out_uri: str, run_key: str, complete: Iterable[tuple[str, str]]
) -> list[FrameFailure]:
    """Return why frames of complete sequences have no labels, in order.

    Reads a manifest for each sequence, and labels only where it tells of failures. What is damaged
    there is passed over: who loads or labels next withdraws it.

    Args:
        out_uri: the run's storage.
        run_key: of the run.
        complete: ids and content keys of the sequences.

    """

    def of(key: tuple[str, str]) -> list[FrameFailure]:
        try:
            return list(failures_of(out_uri, read_manifest(out_uri, run_key, *key)))
        except (storage.NotFoundError, IncompleteArtifactError):
            return []

    found = storage.at_once(of, sorted(complete))
    return [failure for failures in found for failure in failures]
