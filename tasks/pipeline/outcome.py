"""A sequence, or the part of it that a run is to label, and what became of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sam2_core.machine_errors import causes, is_host_full, is_machine_error
from sam2_core.trust.certify import UncertifiedEngineError
from sam2_core.types import AutolabelError, ServerAbsentError
from tasks.errors import error_text
from tasks.frames.discover import FoundSequence
from tasks.observe.progress import LOAD, SEGMENT, TRACK, summed
from tasks.pipeline.chunk import ChunkState
from tasks.store.manifests import ChunkRecord, Manifest
from tasks.store.retry import http_status, is_transient
from tasks.types import FrameFailure
from tasks.wording import counted

# What these stages do can be done again whenever the labels are complete.
_AFTERWARDS = (TRACK, LOAD)
_LONGEST_REASON = 200  # characters in the line of a sequence


class UnreadableError(AutolabelError):
    """Nothing of a sequence can be decoded: trying again is of no use."""


class NotFetchedError(AutolabelError):
    """Nothing of a sequence could be fetched: a later try may."""

    def __init__(self, reason: str, *, busy: bool = False) -> None:
        """Say what could not be fetched; `busy`: its server was, or did not answer."""
        super().__init__(reason)
        self.busy = busy


@dataclass(frozen=True)
class SequenceOutcome:
    """What became of a sequence, or of the part of it that was to be labeled.

    Attributes:
        sequence_id: which.
        manifest: what it consists of; None where chunks are missing, which others do, or it failed.
        frames: with labels.
        instances: rows of masks, rejected ones included.
        rejected: rows with a reason and no mask.
        followed: rows that no detector has found.
        filled: masks that were made for the gaps of tracks; no rows of the labels.
        not_filled: masks that are missing there still, by reason.
        other_class: labels whose track is of another class.
        tracks: objects over time that they show; 0 where they were not looked for.
        tracked_now: tracks were made in this run: load the labels again, with them.
        computed_frames: labeled by this run; the others were up to date.
        failures: frames without labels.
        error: why the sequence is not complete, "" when it is; `stage` says where.
        transient: the error may pass by itself.
        busy: the error was a server's that was busy or did not answer.
        machine: it is this machine's, not the sequence's.
        server_absent: nothing is wrong with it but that a server of models does not answer.
        hopeless: another attempt is of no use.
        left_out: labeled frames that the dataset lacks: their pictures have changed since.
        seconds: by stage.

    """

    sequence_id: str
    manifest: Manifest | None = None
    frames: int = 0
    instances: int = 0
    rejected: int = 0
    followed: int = 0
    filled: int = 0
    not_filled: Mapping[str, int] = field(default_factory=dict)
    other_class: int = 0
    tracks: int = 0
    tracked_now: bool = False
    computed_frames: int = 0
    failures: tuple[FrameFailure, ...] = ()
    error: str = ""
    stage: str = ""
    transient: bool = False
    busy: bool = False
    machine: bool = False
    server_absent: bool = False
    hopeless: bool = False
    left_out: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def is_in(self, loaded: Collection[str]) -> bool:
        """Whether a dataset that holds these manifests (`Manifest.version`) has all of it."""
        version = self.manifest.version if self.manifest else None
        return not self.tracked_now and version in loaded

    @property
    def partial(self) -> bool:
        """Whether some of it could not be fetched or opened; the rest is labeled."""
        return self.manifest is not None and self.manifest.partial

    @property
    def good(self) -> bool:
        """Whether every frame has labels, and they are where they were wanted."""
        return not self.error and not self.failures

    @property
    def worth_another_try(self) -> bool:
        """Whether what went wrong may well go right in a moment."""
        absent = any(failure.may_yet_come for failure in self.failures)
        return self.transient or self.stage in _AFTERWARDS or absent

    @property
    def met_busy_server(self) -> bool:
        """Whether nothing but a busy server was in the way: it goes well when that has time."""
        return self.busy or any(failure.busy for failure in self.failures)

    @property
    def for_another_worker(self) -> bool:
        """Whether another worker may well do it now, or this one when its machine is well."""
        return self.machine and not self.transient and self.stage != LOAD

    @property
    def incomplete(self) -> str:
        """Why another run has to go on with this sequence; "" when none has to."""
        if self.error:
            return "" if self.stage in _AFTERWARDS else self.error
        if not self.partial:
            return ""
        missing = [failure for failure in self.failures if failure.may_yet_come]
        first = (missing or self.failures)[0]
        where = "" if first.uri in first.reason else f"{first.uri}: "
        return f"{counted(len(missing) or 1, 'file')} missing: {where}{first.reason}"

    @property
    def masks(self) -> str:
        """How many masks there are, in words."""
        parts = [counted(self.instances - self.rejected, "mask")]
        if self.followed:
            parts.append(f"{self.followed} of them followed")
        if self.rejected:
            parts.append(f"{counted(self.rejected, 'box', 'boxes')} without a mask")
        if self.filled:
            parts.append(f"{self.filled} filled in gaps")
        return ", ".join(parts)

    @property
    def text(self) -> str:
        """One line for the terminal."""
        parts = [counted(self.frames, "frame"), self.masks]
        if self.tracks:
            parts.append(counted(self.tracks, "track"))
        if self.left_out:
            parts.append(f"{counted(self.left_out, 'frame')} left out of the dataset")
        elif not self.frames and self.good:
            return "no frame: --frames takes none of those that can be read"
        elif not self.computed_frames and self.good:
            return ", ".join([*parts, "up to date"])
        if self.computed_frames < self.frames:
            parts.append(f"{self.frames - self.computed_frames} of them labeled before")
        if self.failures:
            first = self.failures[0]
            name = " ".join(filter(None, (first.camera, first.uri.rsplit("/", 1)[-1])))
            parts.append(f"{counted(len(self.failures), 'frame')} failed ({name}: {first.reason})")
        if self.error:
            long = len(self.error) > _LONGEST_REASON  # the summary says it whole
            error = f"{self.error[:_LONGEST_REASON]}..." if long else self.error
            parts.append(f"failed in {self.stage}: {error}")
        return ", ".join(parts)


def complete_before(part: FoundSequence) -> SequenceOutcome:
    """Outcome of a part that was complete before."""
    chunks = part.manifest.chunks if part.manifest else ()
    outcome = replace(
        _counted(part.sequence_id, chunks), manifest=part.manifest, failures=part.failures
    )
    return outcome if part.tracks_made is None else with_tracks(outcome, part.tracks_made)


def with_tracks(outcome: SequenceOutcome, made: Mapping[str, Any]) -> SequenceOutcome:
    """Add what was measured on its tracks (`StoredTracks.made`)."""
    measures, gaps = made["measures"].values(), made.get("gaps", {})
    return replace(
        outcome,
        tracks=sum(measure["tracks"] for measure in measures),
        other_class=sum(measure.get("other_class", 0) for measure in measures),
        filled=gaps.get("filled", made.get("interpolated", {}).get("labels", 0)),
        not_filled=gaps.get("not_filled", {}),
    )


def outcome_so_far(
    name: str, states: Iterable[ChunkState], failures: Iterable[FrameFailure] = ()
) -> SequenceOutcome:
    """Sum up the chunks whose labels are complete; `failures` were met before there were chunks."""
    done = [(state, state.record) for state in states if state.record]
    return replace(
        _counted(name, [record for _, record in done]),
        computed_frames=sum(record.labeled for state, record in done if state.computed),
        failures=(*failures, *(failure for state, _ in done for failure in state.failures)),
        seconds=summed(state.seconds for state, _ in done),
    )


def _counted(name: str, chunks: Sequence[ChunkRecord]) -> SequenceOutcome:
    return SequenceOutcome(
        name,
        frames=sum(chunk.labeled for chunk in chunks),
        instances=sum(chunk.instances for chunk in chunks),
        rejected=sum(chunk.rejected for chunk in chunks),
        followed=sum(chunk.followed for chunk in chunks),
    )


def is_this_machines(error: Exception) -> bool:
    """Whether an error is this machine's; a server that answers EIO, or hangs up, is another one.

    A refused engine (`UncertifiedEngineError`) is one, too.
    """
    if is_host_full(error):
        return True
    return is_machine_error(error) and http_status(error) is None and not is_transient(error)


def is_absent_server(error: Exception) -> bool:
    """Whether a server of models does not answer, which is no fault of the machine that asked."""
    return any(isinstance(cause, ServerAbsentError) for cause in causes(error))


def with_error(outcome: SequenceOutcome, stage: str, error: Exception) -> SequenceOutcome:
    """Return what became of a sequence that an error ended in a stage."""
    if isinstance(error, UncertifiedEngineError):
        stage = SEGMENT  # a refusal that is known already ends the other sequences in any stage
    return replace(
        outcome,
        error=error_text(error),
        stage=stage,
        transient=is_transient(error)
        or isinstance(error, (NotFetchedError, UncertifiedEngineError)),
        busy=is_transient(error) or (isinstance(error, NotFetchedError) and error.busy),
        machine=is_this_machines(error),
        server_absent=is_absent_server(error),
        hopeless=outcome.hopeless or isinstance(error, UnreadableError),
    )
