"""What a backfill has to do, from storage alone: what exists, what is labeled, what is missing.

Streams: of a sequence only a few short strings stay in memory, so a hundred thousand sequences fit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from flows.params import BackfillParams
from flows.plan.decide import Standing, Survey
from flows.plan.plan import job_of
from flows.plan.rates import Rate, last_rate, rate_of
from flows.plan.shards import ShardParams, as_planned, pack, shard_lengths, taken_ns
from sam2_core.backend_choice import needs_gpu
from sam2_core.types import AutolabelError
from tasks.dataset.schema import refuse_before_labeling
from tasks.frames.discover import FoundSequence
from tasks.passed_over import passed_over_json
from tasks.store import quarantine, storage
from tasks.store.artifacts import RunStamp
from tasks.store.manifests import (
    Key,
    ListedManifest,
    complete_keys,
    dated_ahead,
    list_manifests,
    read_reports,
)

REPORTS_READ = 50


@dataclass
class BackfillPlan:
    """What there is and what has to be done.

    Attributes:
        params: what was asked for.
        stamp: what will make the labels.
        rate: how long a frame takes.
        survey: what the sources and the storage held.
        works: sequences to label, in order.
        under_way: sequences that earlier shards are labeling.
        complete: manifests of the sequences with nothing to do.
        workers: that are online, to be set before `shards` is asked for; 0 when unknown.
        stale: of those to label, labeled before with another model, version, other parameters or
            frames.
        partial: of those to label, labeled but for what could not be fetched.
        quarantined: given up on after repeated crashes.
        kept: labeled before as their frames are, and people have decided on those labels: not
            labeled anew unless asked.
        frames_reviewed: of those, frames with decisions.
        hidden: not labeled either, but outside of `since` and `until`, and so left out.
        hidden_one: the first of them and its date, for people.
        undated: without a date, and so included whatever `since` and `until` say.
        unknown: names of `sequences` that no sequence has.
        cameras: names of all cameras, as keys.
        again: manifests to write again before anything is submitted, in this order: those that a
            wrong clock has dated ahead, and those of sequences whose frames are what they were
            once, and others were labeled since.

    """

    params: BackfillParams
    stamp: RunStamp
    rate: Rate
    survey: Survey
    works: list[FoundSequence] = field(default_factory=list)
    under_way: list[FoundSequence] = field(default_factory=list)
    complete: list[ListedManifest] = field(default_factory=list)
    again: list[ListedManifest] = field(default_factory=list)
    workers: int = 0
    stale: int = 0
    partial: int = 0
    quarantined: int = 0
    kept: int = 0
    frames_reviewed: int = 0
    hidden: int = 0
    hidden_one: str = ""
    undated: int = 0
    unknown: tuple[str, ...] = ()
    cameras: dict[str, None] = field(default_factory=dict)

    @cached_property
    def shards(self) -> list[ShardParams]:
        """The work, cut for the workers that are online."""
        return self.cut(self.works)

    def cut(self, works: Sequence[FoundSequence]) -> list[ShardParams]:
        """Return shards for some of the work."""
        params, rate = self.params, self.rate.seconds_per_frame
        frames = sum(work.planned for work in works)
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
    def sequences(self) -> int:
        """Sequences that match."""
        open_ = self.to_label + self.in_flight
        return self.up_to_date + open_ + self.quarantined + self.kept

    @property
    def up_to_date(self) -> int:
        """Sequences with nothing to do."""
        return len(self.complete)

    @property
    def to_label(self) -> int:
        """Sequences that are new or stale."""
        return len(self.works)

    @property
    def in_flight(self) -> int:
        """Sequences that are being labeled by shards that were submitted before."""
        return len(self.under_way)

    @property
    def frames(self) -> int:
        """Frames of the sequences to label."""
        return sum(work.planned for work in self.works)

    @property
    def frames_estimated(self) -> bool:
        """Whether there are videos to label or in flight, with frames still uncounted."""
        return any(work.is_estimated for work in (*self.works, *self.under_way))

    @property
    def gpu_hours(self) -> float:
        """Estimated hours of one worker."""
        return self.frames * self.rate.seconds_per_frame / 3600

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `autolabel backfill --json` prints them."""
        matching = self.survey.matching
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
            "seconds_per_frame": round(self.rate.seconds_per_frame, 6),
            "rate_measured_on_frames": self.rate.frames,
            "passed_over": passed_over_json(self.survey.passed_over),
            **({"imported": matching.as_json()} if matching else {}),
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
    job = job_of(label)
    stamp, made_by = job.stamp, job.stamp.model  # of a server of Triton's, what runs there
    on_gpu = made_by is not None and needs_gpu(made_by.backend, made_by.precision)
    reports = islice(read_reports(label.out, stamp.run_key), REPORTS_READ)
    rate = rate_of(reports, on_gpu=on_gpu, follows=label.follow)
    if not rate.frames:
        rate = last_rate(stamp, follows=label.follow) or rate
    given_up = {} if params.retry_quarantined else quarantine.given_up(label.out, stamp.run_key)
    survey = Survey(job, in_flight(stamp.run_key), given_up)
    plan = BackfillPlan(params, stamp, rate, survey)
    _fill(plan, survey)
    refuse_before_labeling(label.dataset_name, label.out)
    return plan


def _fill(plan: BackfillPlan, survey: Survey) -> None:
    """Look at every sequence and note what is to be done with it."""
    run_key = plan.stamp.run_key
    partial = {
        manifest.key
        for manifest in survey.listed
        if manifest.run_key == run_key and manifest.partial
    }
    plan.again += dated_ahead(survey.listed)
    for found in _matching(plan):
        name, content_key = found.key
        if not _in_time(plan, found):
            if found.key not in survey.complete:
                day = np.datetime64(taken_ns(found), "ns")
                plan.hidden_one = plan.hidden_one or f"{name} of {day:.10}"
                plan.hidden += 1
            continue
        plan.cameras |= dict.fromkeys(frame.camera for frame in found.frames)
        standing = survey.standing(found)
        if standing is Standing.UP_TO_DATE:
            listed = ListedManifest(0.0, run_key, name, content_key)
            plan.complete.append(listed)
            if survey.newest[name].content_key != content_key:
                plan.again.append(listed)
        elif standing is Standing.KEPT:
            plan.kept += 1
            plan.frames_reviewed += survey.reviewed[name]
        elif standing is Standing.GIVEN_UP:
            plan.quarantined += 1
        elif standing is Standing.UNDER_WAY:
            plan.under_way.append(as_planned(found))
        else:
            plan.works.append(as_planned(found))
            plan.stale += standing is Standing.STALE
            plan.partial += found.key in partial


def look_again(plan: BackfillPlan) -> BackfillPlan:
    """Return a plan when its shards have ended, with what is left of it, as storage tells.

    The sources are not listed again: a sequence is labeled if the run has a new manifest of it.
    """
    label, run_key = plan.params.label, plan.stamp.run_key
    planned = {work.sequence_id: work for work in (*plan.works, *plan.under_way)}
    made = complete_keys(list_manifests(label.out, run_key)) - plan.survey.complete
    new = [ListedManifest(0.0, run_key, *key) for key in made if key[0] in planned]
    for listed in new:
        planned.pop(listed.sequence_id, None)
    given_up = {} if plan.params.retry_quarantined else quarantine.given_up(label.out, run_key)
    left = [work for work in planned.values() if work.key not in given_up]
    return replace(
        plan,
        works=left,
        under_way=[],
        complete=[*plan.complete, *new],
        again=[],
        quarantined=plan.quarantined + len(planned) - len(left),
    )


def _matching(plan: BackfillPlan) -> Iterator[FoundSequence]:
    """Yield the sequences whose names are asked for."""
    asked = plan.params.sequences.splitlines()
    globs = [name for name in asked if set(name) & set("*?[")]
    names = dict.fromkeys(name for name in asked if name and name not in globs)
    missing = dict(names)
    for found in plan.survey.sequences():
        if found.picked:
            raise AutolabelError(
                f"{storage.redact(found.frames[0].uri)} is a single picture, and workers list "
                "whole folders: name its folder, or use `autolabel label`"
            )
        name = found.sequence_id
        missing.pop(name, None)
        if name in names or any(fnmatchcase(name, glob) for glob in globs):
            yield found
    plan.unknown = tuple(missing)


def _in_time(plan: BackfillPlan, sequence: FoundSequence) -> bool:
    first, end = plan.params.first_ns, plan.params.end_ns
    if first is None and end is None:
        return True
    taken = taken_ns(sequence)
    if taken is None:
        plan.undated += 1
        return True
    return (first or 0) <= taken < (end or taken + 1)
