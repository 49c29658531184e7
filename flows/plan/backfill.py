"""What a backfill has to do, from storage alone: what exists, what is labeled, what is missing.

Streams: of a sequence only a few short strings stay in memory, so a hundred thousand sequences fit.
The plan is shown as a table on the terminal and as Markdown in Prefect.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from flows.params import BackfillParams
from flows.plan.names import Stored, names_of, why_kept
from flows.plan.plan import job_of
from flows.plan.rates import Rate, last_rate, rate_of
from flows.plan.shards import Piece, ShardParams, pack, shard_lengths, taken_ns, work_of
from sam2_core.backend_choice import needs_gpu
from sam2_core.types import AutolabelError
from tasks.boxes.imported import Matching
from tasks.dataset.schema import refuse_before_labeling
from tasks.frames.discover import Discovered, discover, refuse_output_inside
from tasks.frames.naming import Names
from tasks.passed_over import PassedOver, passed_over_json, passed_over_lines
from tasks.store import quarantine
from tasks.store.artifacts import RunStamp
from tasks.store.manifests import Key, ListedManifest, dated_ahead, path_of, read_reports
from tasks.types import VideoRef
from tasks.wording import counted, plain

REPORTS_READ = 50

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
        kept: labeled before as their frames are, and people have decided on those labels: not
            labeled anew unless asked.
        frames_reviewed: of those, frames with decisions.
        hidden: not labeled either, but outside of `since` and `until`, and so left out.
        hidden_one: the first of them and its date, for people.
        undated: without a date, and so included whatever `since` and `until` say.
        unknown: names of `sequences` that no sequence has.
        frames: of the sequences to label.
        frames_estimated: there are videos to label or in flight, whose frames nobody has counted.
        cameras: names of all cameras, as keys.
        complete: manifests of the sequences with nothing to do.
        again: manifests to write again before anything is submitted, in this order: those that a
            wrong clock has dated ahead, and those of sequences whose frames are what they were
            once, and others were labeled since.
        names: ids of all sequences that are there, of any date.
        matching: of imported boxes with the frames of every sequence, matching or not.
        known: how sequences are called in the storage; what is new there is recorded before
            anything is submitted.
        passed_over: what the sources, and the files of boxes, hold that is not read.

    """

    params: BackfillParams
    stamp: RunStamp
    rate: Rate
    works: list[Piece] = field(default_factory=list)
    complete: list[ListedManifest] = field(default_factory=list)
    again: list[ListedManifest] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    workers: int = 0
    sequences: int = 0
    to_label: int = 0
    stale: int = 0
    partial: int = 0
    in_flight: int = 0
    quarantined: int = 0
    kept: int = 0
    frames_reviewed: int = 0
    hidden: int = 0
    hidden_one: str = ""
    undated: int = 0
    unknown: tuple[str, ...] = ()
    frames: int = 0
    frames_estimated: bool = False
    cameras: dict[str, None] = field(default_factory=dict)
    matching: Matching | None = None
    known: Names = field(default_factory=Names)
    passed_over: list[PassedOver] = field(default_factory=list)

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
        return self.sequences - self.to_label - self.in_flight - self.quarantined - self.kept

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
            "kept": self.kept,
            "frames_reviewed": self.frames_reviewed,
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
            "passed_over": passed_over_json(self.passed_over),
            **({"imported": self.matching.as_json()} if self.matching else {}),
        }


def plan_backfill(
    params: BackfillParams, in_flight: Callable[[str], set[Key]] = lambda _: set()
) -> BackfillPlan:
    """List the sources and the labels; what is missing is cut into shards when asked for.

    Args:
        params: what to label.
        in_flight: returns for a run's key the sequences, by id and content key, that submitted
            shards of it to the same storage still have.

    Raises:
        NamedOtherwiseError: frames have another name in the storage, which the sources cannot give.
        AutolabelError: a source, the model, the detector or the boxes are not there or unusable, or
            the dataset belongs to another storage.

    """
    label = params.label
    refuse_output_inside(label.out, label.sources)
    job = job_of(label)
    matching, stamp = Matching(job.imported()) if label.boxes else None, job.stamp
    made_by = stamp.model  # of a server of Triton's, what runs there
    on_gpu = made_by is not None and needs_gpu(made_by.backend, made_by.precision)
    reports = islice(read_reports(label.out, stamp.run_key), REPORTS_READ)
    rate = rate_of(reports, on_gpu=on_gpu, follows=label.follow)
    if not rate.frames:
        rate = last_rate(stamp, follows=label.follow) or rate
    plan = BackfillPlan(params, stamp, rate, matching=matching, known=names_of(label))
    if matching:
        plan.passed_over.append(matching.imported.passed_over)
    plan.works = list(_missing(plan, in_flight(stamp.run_key)))
    if matching:
        matching.refuse_nothing(label.wanted_classes)
    refuse_before_labeling(label.dataset_name, label.out)
    return plan


def _missing(plan: BackfillPlan, in_flight: set[Key]) -> Iterator[Piece]:
    """Yield what has to be labeled, counting everything on the way."""
    out_uri, run_key = plan.params.label.out, plan.stamp.run_key
    stored = Stored(out_uri, run_key, {name for name, _ in in_flight})
    partial = {one.key for one in stored.listed if one.run_key == run_key and one.partial}
    ever = {one.sequence_id for one in stored.listed if not one.partial}
    plan.again += dated_ahead(stored.listed)
    given_up = {} if plan.params.retry_quarantined else quarantine.given_up(out_uri, run_key)
    for one in _matching(plan):
        name, content_key = key = one.sequence.sequence_id, one.content_key
        plan.names.add(name)
        done = key in stored.complete
        if not _in_time(plan, one):
            if not done:
                day = np.datetime64(taken_ns(one), "ns")
                plan.hidden_one = plan.hidden_one or f"{name} of {day:.10}"
                plan.hidden += 1
            continue
        plan.sequences += 1
        stored.refuse_left_out(plan.params.label, key)
        plan.cameras |= dict.fromkeys(frame.camera for frame in one.frames)
        if done:
            last = stored.newest[name]
            if last.content_key != content_key:
                plan.again.append(ListedManifest(0.0, run_key, *key))
            same = last.path == path_of(run_key, *key)
            plan.complete.append(last if same else ListedManifest(0.0, run_key, *key))
            continue
        if key not in in_flight and (frames := stored.frames_kept(plan.params.label, key)):
            plan.kept += 1
            plan.frames_reviewed += frames
            continue
        if key in given_up and key not in in_flight:
            plan.quarantined += 1
            continue
        plan.frames_estimated |= any(isinstance(frame, VideoRef) for frame in one.frames)
        if key in in_flight:
            plan.in_flight += 1
            continue
        stored.refuse_other_names(one)
        work = work_of(one, content_key)
        plan.to_label += 1
        plan.stale += name in ever
        plan.partial += key in partial
        plan.frames += work.frames
        yield work


def _matching(plan: BackfillPlan) -> Iterator[Discovered]:
    label, asked = plan.params.label, plan.params.sequences.splitlines()
    globs = [one for one in asked if set(one) & set("*?[")]
    names = dict.fromkeys(one for one in asked if one and one not in globs)
    missing = dict(names)
    found = discover(
        label.sources,
        label.selection,
        label.sequence,
        label.format,
        plan.known,
        passed_over=plan.passed_over,
    )
    for one in found:
        if one.picked and sum(map(len, label.sources)) > MOST_SOURCE_CHARACTERS:
            raise AutolabelError(
                f"{counted(len(label.sources), 'picture')} named one by one are more than the "
                "parameters of a run can hold: name their folders or a quoted pattern, or use "
                "`autolabel label`"
            )
        name = one.sequence.sequence_id
        missing.pop(name, None)
        found_boxes = plan.matching.with_boxes(one) if plan.matching else one
        if name in names or any(fnmatchcase(name, glob) for glob in globs):
            yield found_boxes
    plan.unknown = tuple(missing)


def _in_time(plan: BackfillPlan, one: Discovered) -> bool:
    first, end = plan.params.first_ns, plan.params.end_ns
    if first is None and end is None:
        return True
    taken = taken_ns(one)
    if taken is None:
        plan.undated += 1
        return True
    return (first or 0) <= taken < (end or taken + 1)


def plan_rows(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """Name and value of everything that a person wants to know before saying yes."""
    yield "sequences", f"{plan.sequences:,}"
    yield "up to date", f"{plan.up_to_date:,}"
    not_planned = {
        "under way": (plan.in_flight, ""),
        "given up on": (plan.quarantined, "  (--retry-quarantined tries them again)"),
        "kept": (plan.kept, f"  ({why_kept(plan.frames_reviewed)})"),
    }
    for name, (count, more) in not_planned.items():
        if count:
            yield name, f"{count:,}{more}"
    again = {
        "labeled before with other frames, model, parameters or version": plan.stale,
        "again, because files could not be read": plan.partial,
    }
    why = ", ".join(f"{count:,} {reason}" for reason, count in again.items() if count)
    yield "to label", f"{plan.to_label:,}{why and f'  ({why})'}"
    estimated = plan.frames_estimated and plan.frames
    by_size = "  (until opened, those of videos are an estimate from their size)"
    yield "frames", f"about {plan.frames:,}{by_size}" if estimated else f"{plan.frames:,}"
    longest_s = max((one.frames for one in plan.shards), default=0) * plan.rate.seconds_per_frame
    longest = (
        f"  (the longest takes a worker {_time_told(longest_s)} after its start)"
        if longest_s
        else ""
    )
    yield "shards", f"{len(plan.shards):,}{longest}"
    yield "worker time", f"{_time_told(plan.gpu_hours * 3600)}  ({plan.rate.text})"
    if plan.cost_usd is not None:
        yield "cost", f"{plan.cost_usd:,.2f} USD"
    if plan.hidden:
        yield "left out", f"{plan.hidden:,} not labeled, outside the dates ({plan.hidden_one})"
    if plan.undated:
        yield "undated", f"{counted(plan.undated, 'sequence')} without a date, included"
    if plan.unknown:
        some = ", ".join(plan.unknown[:3]) + (", ..." if len(plan.unknown) > 3 else "")
        names = counted(len(plan.unknown), "name")
        yield "not found", f"{names} of --sequences that no sequence has: {some}"
    yield from _left_aside(plan)
    if plan.params.label.allow_uncertified:
        yield "model", "--allow-uncertified: whatever its certificate says"
    if plan.stamp.model:
        model = plan.stamp.model
        yield "masks", f"{model.name} on {model.backend} in {model.precision}"
    yield "run", plan.stamp.run_key


def _left_aside(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    for line in plan.matching.lines() if plan.matching else ():
        yield "boxes", line
    for line in passed_over_lines(plan.passed_over):
        yield "not read", line


def _time_told(seconds: float) -> str:
    """Return "12 s", "5.3 min" or "1,234.50 h": a short time is no 0.00 h."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 1 or not seconds else "less than 1 s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.2f} h"


def plan_markdown(plan: BackfillPlan) -> str:
    """Plan as a Markdown table."""
    rows = "\n".join(f"| {name} | {plain(value)} |" for name, value in plan_rows(plan))
    return f"# Backfill to {plain(plan.params.label.out)}\n\n| | |\n|---|---|\n{rows}\n"
