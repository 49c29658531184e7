"""What a run did, as one JSON object and as a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.plan.run import Plan, SequencePlan
from tasks.observe.progress import DOWNLOAD, LOAD, summed
from tasks.types import FrameFailure


def counted(count: int, noun: str) -> str:
    """Return "1 frame", "2 frames"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True)
class SequenceOutcome:
    """What became of one sequence.

    Attributes:
        sequence_id: which.
        frames: with labels.
        instances: rows of masks, rejected ones included.
        computed_frames: labeled by this run; the others were up to date.
        failures: frames without labels.
        error: why the sequence is not complete, "" when it is; `stage` says where.
        partial: some of it could not be fetched or opened; the rest is labeled.
        transient: the error may pass by itself.
        hopeless: another attempt is of no use.
        seconds: by stage.

    """

    sequence_id: str
    frames: int = 0
    instances: int = 0
    computed_frames: int = 0
    failures: tuple[FrameFailure, ...] = ()
    error: str = ""
    stage: str = ""
    partial: bool = False
    transient: bool = False
    hopeless: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether every frame has labels, and they are where they were wanted."""
        return not self.error and not self.failures

    @property
    def incomplete(self) -> str:
        """Why another run has to go on with this sequence; "" when none has to."""
        if self.error:
            return "" if self.stage == LOAD else self.error
        if not self.partial:
            return ""
        missing = [one for one in self.failures if one.stage == DOWNLOAD] or self.failures[:1]
        first = missing[0]
        where = "" if first.uri in first.reason else f"{first.uri}: "
        return f"{counted(len(missing), 'file')} missing: {where}{first.reason}"

    def text(self, seconds: float) -> str:
        """One line for the terminal."""
        parts = [counted(self.frames, "frame"), counted(self.instances, "mask")]
        if not self.computed_frames and self.good:
            return ", ".join([*parts, "up to date"])
        if self.computed_frames < self.frames:
            parts.append(f"{self.frames - self.computed_frames} of them from before")
        if self.failures:
            first = self.failures[0]
            name = first.uri.rsplit("/", 1)[-1]
            parts.append(f"{counted(len(self.failures), 'frame')} failed ({name}: {first.reason})")
        if self.error:
            parts.append(f"failed in {self.stage}: {self.error}")
        return ", ".join([*parts, f"{seconds:.1f} s"])


def left_outcome(plan: SequencePlan) -> SequenceOutcome:
    """Return the outcome of a sequence that an earlier run may have completed."""
    manifest = plan.manifest
    return SequenceOutcome(
        plan.found.sequence.sequence_id,
        frames=manifest.frames - manifest.failed if manifest else 0,
        instances=manifest.instances if manifest else 0,
        failures=plan.failures,
    )


def summary_of(
    plan: Plan, outcomes: Sequence[SequenceOutcome], total_seconds: float
) -> dict[str, Any]:
    """Return the object that `--json` prints.

    `skipped` counts frames that were labeled before, `failed` lists frames and sequences with
    their reasons, `nothing` says why there is not a single mask where there should be, `seconds`
    are summed over the threads of a stage (so they may exceed `total`).
    """
    failed = [entry for one in outcomes for entry in _failed(one)]
    seconds = summed(one.seconds for one in outcomes) | {"total": total_seconds}
    return {
        "sequences": len(outcomes),
        "frames": sum(one.frames for one in outcomes),
        "instances": sum(one.instances for one in outcomes),
        "skipped": sum(one.frames - one.computed_frames for one in outcomes),
        "failed": failed,
        "nothing": _nothing(plan, outcomes),
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "dataset": plan.params.dataset_name,
        **plan.facts(),
    }


def _nothing(plan: Plan, outcomes: Sequence[SequenceOutcome]) -> str:
    """Say why there is not a single mask where somebody asked for certain boxes; "" where not."""
    params = plan.params
    asked = params.boxes or params.classes
    if not asked or any(one.instances or one.error for one in outcomes):
        return ""
    if not any(one.frames for one in outcomes):
        return ""
    wanted = f" of {', '.join(params.classes)}" if params.classes else ""
    return f"no mask: no frame has a box{wanted} with a score of {params.least_score:g} or more"


def _failed(one: SequenceOutcome) -> Iterator[dict[str, Any]]:
    for failure in one.failures:
        yield {
            "sequence": failure.sequence_id, "camera": failure.camera, "frame": failure.index,
            "uri": failure.uri, "stage": failure.stage, "reason": failure.reason,
        }  # fmt: skip
    if one.error:
        yield {"sequence": one.sequence_id, "stage": one.stage, "reason": one.error}
