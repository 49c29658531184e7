"""What a backfill has to do, from storage alone: what exists, what is labeled, what is missing.

Streams: of a sequence only a few short strings stay in memory, so a hundred thousand sequences fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any

from flows.params import BackfillParams, LabelParams
from flows.plan.names import names_of
from flows.plan.plan import matching_of, stamp_of
from flows.plan.rates import REPORTS_READ, Rate, rate_of
from flows.plan.shards import Piece, ShardParams, pack, shard_lengths, taken_ns, work_of
from flows.plan.stored import Stored
from sam2_core.backend_choice import needs_gpu
from sam2_core.types import AutolabelError
from tasks.boxes.imported import Matching
from tasks.frames.discover import Discovered, discover
from tasks.frames.naming import Names
from tasks.frames.patterns import refuse_output_inside
from tasks.pipeline.run_context import RunContext
from tasks.store import quarantine
from tasks.store.artifacts import RunStamp
from tasks.store.manifests import Key, ListedManifest, dated_ahead, read_reports
from tasks.types import FrameSelection, VideoRef
from tasks.wording import counted

# Prefect takes half a megabyte of parameters; a shard's have the sources and its pieces.
MOST_SOURCE_CHARACTERS = 200_000


@dataclass
class BackfillPlan:
    """What there is and what has to be done.

    Attributes:
        params: what was asked for.
        stamp: what will make the labels.
        rate: how long a frame takes.
        works: sequences to label, in order.
        workers: that are online, to be set before `shards` is asked for; 0 when nobody knows.
        sequences: that match.
        to_label: of those, not up to date and not in flight.
        stale: of those to label, labeled before with another model, version, other parameters or
            frames.
        partial: of those to label, labeled but for what could not be fetched.
        in_flight: being labeled by shards that were submitted before.
        quarantined: given up on after repeated crashes.
        hidden: not labeled either, but outside of `since` and `until`, and so left out.
        undated: without a date, and so included whatever `since` and `until` say.
        unknown: names of `sequences` that no sequence has.
        frames: of the sequences to label.
        frames_estimated: there are videos to label or in flight, whose frames nobody has counted.
        cameras: names of all cameras, as keys.
        complete: ids and content keys of the sequences with nothing to do.
        again: manifests to write again before anything is submitted, in this order: those that a
            wrong clock has dated ahead, and those of sequences whose frames are what they were
            once, and others were labeled since.
        names: ids of all sequences that are there, of any date.
        matching: of imported boxes with the frames of every sequence, matching or not.
        known: how sequences are called in the storage; what is new there is recorded before
            anything is submitted.

    """

    params: BackfillParams
    stamp: RunStamp
    rate: Rate
    works: list[Piece] = field(default_factory=list)
    complete: list[tuple[str, str]] = field(default_factory=list)
    again: list[ListedManifest] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    workers: int = 0
    sequences: int = 0
    to_label: int = 0
    stale: int = 0
    partial: int = 0
    in_flight: int = 0
    quarantined: int = 0
    hidden: int = 0
    undated: int = 0
    unknown: tuple[str, ...] = ()
    frames: int = 0
    frames_estimated: bool = False
    cameras: dict[str, None] = field(default_factory=dict)
    matching: Matching | None = None
    known: Names = field(default_factory=Names)

    @cached_property
    def shards(self) -> list[ShardParams]:
        """The work, cut for the workers that are online."""
        return self.cut(self.works)

    def cut(self, works: Sequence[Piece]) -> list[ShardParams]:
        """Return shards for some of the work."""
        params, rate = self.params, self.rate.seconds_per_frame
        frames = sum(work.frames for work in works)
        packed = pack(
            works,
            seconds_per_frame=rate,
            lengths=shard_lengths(frames * rate, params.shard_minutes * 60, self.workers),
            chunk_frames=params.label.chunk_frames,
        )
        cameras, run_key = tuple(self.cameras), self.stamp.run_key
        return [
            ShardParams(label=params.label, run_key=run_key, pieces=pieces, cameras=cameras)
            for pieces in packed
        ]

    @property
    def up_to_date(self) -> int:
        """Sequences with nothing to do."""
        return self.sequences - self.to_label - self.in_flight - self.quarantined

    @property
    def gpu_hours(self) -> float:
        """Estimated hours of one worker."""
        return self.frames * self.rate.seconds_per_frame / 3600

    @property
    def cost_usd(self) -> float | None:
        """Estimated cost, where a price is known."""
        price = self.params.usd_per_gpu_hour
        return None if price is None else self.gpu_hours * price

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `autolabel backfill --json` prints them."""
        cost = self.cost_usd
        return {
            "run_key": self.stamp.run_key,
            "model": asdict(self.stamp.model) if self.stamp.model else None,
            "out": self.params.label.out,
            "sequences": self.sequences,
            "to_label": self.to_label,
            "up_to_date": self.up_to_date,
            "stale": self.stale,
            "partial": self.partial,
            "in_flight": self.in_flight,
            "quarantined": self.quarantined,
            "hidden": self.hidden,
            "undated": self.undated,
            "unknown": list(self.unknown),
            "frames": self.frames,
            "frames_estimated": self.frames_estimated,
            "shards": len(self.shards),
            "gpu_hours": round(self.gpu_hours, 6),
            "cost_usd": None if cost is None else round(cost, 2),
            "seconds_per_frame": round(self.rate.seconds_per_frame, 6),
            "rate_measured_on_frames": self.rate.frames,
            **({"imported": self.matching.as_json()} if self.matching else {}),
        }


def nothing_in_flight(run_key: str) -> set[Key]:
    """Return what shards of a run have that were submitted before: nothing."""
    return set()


def plan_backfill(
    params: BackfillParams, in_flight: Callable[[str], set[Key]] = nothing_in_flight
) -> BackfillPlan:
    """List the sources and the labels; what is missing is cut into shards when asked for.

    Args:
        params: what to label.
        in_flight: returns for a run's key the sequences, by id and content key, that submitted
            shards of it to the same storage still have.

    Raises:
        NamedOtherwiseError: frames have another name in the storage, which the sources cannot give.
        AutolabelError: a source, the model, the detector or the boxes are not there or unusable.

    """
    label = params.label
    refuse_output_inside(label.out, label.sources)
    context = RunContext()
    matching = matching_of(label, context)
    stamp = stamp_of(label, context=context)
    made_by = stamp.model  # of a server of Triton's, what runs there
    on_gpu = made_by is not None and needs_gpu(made_by.backend, made_by.precision)
    reports = islice(read_reports(label.out, stamp.run_key), REPORTS_READ)
    rate = rate_of(reports, on_gpu=on_gpu)
    plan = BackfillPlan(params, stamp, rate, matching=matching, known=names_of(label))
    plan.works = list(_missing(plan, in_flight(stamp.run_key)))
    if matching:
        matching.refuse_nothing(label.wanted_classes)
    return plan


def _missing(plan: BackfillPlan, in_flight: set[Key]) -> Iterator[Piece]:
    """Yield what has to be labeled, counting everything on the way."""
    out_uri, run_key = plan.params.label.out, plan.stamp.run_key
    stored = Stored(out_uri, run_key, plan.known, {name for name, _ in in_flight})
    partial = {one.key for one in stored.listed if one.run_key == run_key and one.partial}
    ever = {one.sequence_id for one in stored.listed if not one.partial}
    plan.again += dated_ahead(stored.listed)
    given_up = set() if plan.params.retry_quarantined else quarantine.given_up(out_uri, run_key)
    for one in _matching(plan):
        name, content_key = key = one.sequence.sequence_id, one.content_key
        plan.names.add(name)
        done = key in stored.complete
        if not _in_time(plan, one):
            plan.hidden += not done
            continue
        plan.sequences += 1
        plan.cameras |= dict.fromkeys(frame.camera for frame in one.frames)
        if done:
            plan.complete.append(key)
            if stored.newest[name].content_key != content_key:
                plan.again.append(ListedManifest(0.0, run_key, *key))
            continue
        if key in given_up - in_flight:
            plan.quarantined += 1
            continue
        plan.frames_estimated |= any(isinstance(frame, VideoRef) for frame in one.frames)
        if key in in_flight:
            plan.in_flight += 1
            continue
        stored.refuse_namesake(one.sequence)
        work = work_of(one, content_key)
        plan.to_label += 1
        plan.stale += name in ever
        plan.partial += key in partial
        plan.frames += work.frames
        yield work


def _matching(plan: BackfillPlan) -> Iterator[Discovered]:
    label, wanted = plan.params.label, _wanted(plan.params.sequences)
    selection = FrameSelection.parse(label.frames)
    missing = dict.fromkeys(_plain(plan.params.sequences))
    found = discover(label.sources, selection, label.sequence, label.format, plan.known)
    for one in found:
        if one.picked:
            _refuse_long_lists(label)
        missing.pop(one.sequence.sequence_id, None)
        found_boxes = plan.matching.with_boxes(one) if plan.matching else one
        if wanted(one.sequence.sequence_id):
            yield found_boxes
    plan.unknown = tuple(missing)


def _plain(globs: str) -> list[str]:
    """Return those lines that are names and no globs."""
    return [line for line in globs.splitlines() if line and not set(line) & set("*?[")]


def _wanted(globs: str) -> Callable[[str], bool]:
    """Return what tells whether a sequence's id is meant by globs, one in a line."""
    plain = frozenset(_plain(globs))
    others = [line for line in globs.splitlines() if line not in plain]
    return lambda name: name in plain or any(fnmatchcase(name, line) for line in others)


def _refuse_long_lists(label: LabelParams) -> None:
    if sum(map(len, label.sources)) > MOST_SOURCE_CHARACTERS:
        raise AutolabelError(
            f"{counted(len(label.sources), 'picture')} named one by one are more than the "
            "parameters of a run can hold: name their folders or a quoted pattern, or use "
            "`autolabel label`"
        )


def _in_time(plan: BackfillPlan, one: Discovered) -> bool:
    first, end = plan.params.first_ns, plan.params.end_ns
    if first is None and end is None:
        return True
    taken = taken_ns(one)
    if taken is None:
        plan.undated += 1
        return True
    return (first or 0) <= taken < (end or taken + 1)


def refuse_other_run(shard: ShardParams, run_key: str) -> None:
    """Refuse to label with something else than was planned.

    Raises:
        AutolabelError: this machine's model, detector or code is another one.

    """
    if shard.run_key != run_key:
        raise AutolabelError(
            f"this shard was planned as run {shard.run_key}, but this worker's model, detector and "
            f"parameters make run {run_key}: give every worker the same model files and version"
        )
