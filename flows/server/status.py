"""How runs are doing: shards, failures by reason, throughput, what was given up, what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flows.machine.logs import ServerErrors, errors_in
from flows.machine.notes import refused_workers
from flows.machine.services import log_of, running
from flows.params import LabelParams
from flows.plan.commands import backfill_again
from flows.plan.shards import ShardParams
from flows.server.artifacts import failed_frames
from flows.server.loading import lacked
from flows.server.postgres import size_bytes
from flows.server.schedules import collect_schedules
from flows.server.shard_runs import (
    LONGEST,
    SHARD_TAG,
    every_page,
    out_of,
    runs_tagged,
    shard_of,
    stays_crashed,
    why_not_loaded,
)
from flows.server.submit import workers_online
from sam2_core.types import AutolabelError
from tasks.store import quarantine
from tasks.store.manifests import Key, list_mixed
from tasks.store.newest import complete_keys, list_manifests, newest_of
from tasks.wording import counted

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

RUNS_READ, LABEL_RUNS_READ = 5000, 20
_NUMBERS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\d+(\.\d+)?")


@dataclass(frozen=True)
class _FailedShard:
    """A shard that failed or crashed: when, why, and what it was to label."""

    at_s: float
    reason: str
    keys: frozenset[Key]
    last: frozenset[Key]  # of those, what no newer shard was to label


@dataclass
class RunStatus:
    """One run: everything labeled with the same model, boxes and parameters to one storage.

    Attributes:
        run_key: which.
        label: what its newest shard was given.
        states: shards by the name of their state.
        active: shards that have not ended; one that has just crashed is started again.
        failed: shards that failed or crashed, newest first.
        waiting: why shards were given back that wait for another try, as `reasons`.
        not_loaded: why labels of shards were not loaded into the dataset, as `reasons`, where it
            lacks some of them to this day.
        frames: of the shards that completed.
        busy_s: seconds that those took.
        sequences: of each, by id, the shard that was the last to label it.
        told: a reason of each kind, by the reason with `#` for its numbers.
        labeled: what failed and is labeled by now.
        complete: sequences whose labels are complete, None when storage cannot be read.
        given_up: ids of sequences that failed or killed workers too often.
        partial: sequences whose labels lack what could not be fetched.
        mixed: ids of sequences that libraries of several versions have labeled.
        unlabeled: ids of sequences that shards which failed or crashed were the last to label,
            and that are neither labeled by now nor given up.
        failed_frames: frames without labels, each with its file and reason.

    """

    run_key: str
    label: LabelParams
    states: Counter[str] = field(default_factory=Counter)
    active: int = 0
    failed: list[_FailedShard] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)
    not_loaded: Counter[str] = field(default_factory=Counter)
    frames: int = 0
    busy_s: float = 0.0
    sequences: dict[str, UUID] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    labeled: set[Key] = field(default_factory=set)
    complete: int | None = None
    given_up: list[str] = field(default_factory=list)
    partial: int = 0
    mixed: list[str] = field(default_factory=list)
    unlabeled: list[str] = field(default_factory=list)
    failed_frames: list[dict[str, Any]] = field(default_factory=list)
    storage_error: str = ""

    @property
    def bad(self) -> set[Key]:
        """What shards that failed or crashed were the last to label, and is not labeled by now."""
        return {key for one in self.failed for key in one.last} - self.labeled

    def reasons(self, *, labeled_since: bool = False) -> Counter[str]:
        """Why shards failed or crashed that lack labels by now, or that lack none, and how often.

        Reasons that differ in numbers only are one, told as the newest of them.
        """
        return Counter(
            one.reason for one in self.failed if (one.keys <= self.labeled) == labeled_since
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        rate = round(self.frames / self.busy_s, 3) if self.busy_s else None
        return {
            "run_key": self.run_key,
            "out": self.label.out,
            "shards": dict(self.states),
            "active": self.active,
            "failures": dict(self.reasons()),
            "failures_labeled_since": dict(self.reasons(labeled_since=True)),
            "waiting": dict(self.waiting),
            "failed_frames": self.failed_frames,
            "frames_per_second_and_worker": rate,
            "shards_not_loaded": self.not_loaded.total(),
            "not_loaded": dict(self.not_loaded),
            "sequences_complete": self.complete,
            "sequences_partial": self.partial,
            "sequences_of_mixed_versions": self.mixed,
            "quarantined": self.given_up,
            "storage_error": self.storage_error,
            "to_do": list(self.to_do(0)),
        }

    def to_do(self, workers: int) -> Iterator[str]:
        """Say what a person should do now, when so many `workers` are online."""
        if self.storage_error:
            yield f"storage cannot be read: {self.storage_error}"
        if self.states.get("Late") and not workers:
            yield "shards wait and no worker is online: start one with `autolabel worker`"
        if self.unlabeled and not self.active:
            left = counted(len(self.unlabeled), "sequence")
            again = backfill_again(self.label, sequences=self.unlabeled)
            yield f"{left} failed: fix the cause, then {again}"
        if self.not_loaded:
            shards, reasons = self.not_loaded.total(), "; ".join(self.not_loaded)
            yield (
                f"labels of {counted(shards, 'shard')} were not loaded ({reasons}): where that is "
                f"mended, {backfill_again(self.label)} or the deployment load-dataset/load-dataset "
                f"loads what {self.label.dataset_name} lacks"
            )
        if self.given_up:
            left = counted(len(self.given_up), "sequence")
            again = backfill_again(self.label, "--retry-quarantined", sequences=self.given_up)
            yield f"{left} given up: look at the frames, then {again}"


def collect_status(hours: float = 72) -> dict[str, Any]:
    """Ask Prefect and storage how every run is doing.

    Args:
        hours: look at shards submitted since then.

    Raises:
        AutolabelError: Prefect is not there.

    """
    since = datetime.now(UTC) - timedelta(hours=hours)
    runs = group_runs(islice(runs_tagged(SHARD_TAG, since=since), RUNS_READ))
    workers = workers_online()
    for run in runs:
        look_at_storage(run)
        if run.not_loaded and lacked(run.label, run.run_key) == set():
            run.not_loaded.clear()  # all of it is loaded by now
        run.failed_frames = _frames_without_labels(run)
    described = [run.as_json() | {"to_do": list(run.to_do(len(workers)))} for run in runs]
    errors, here = server_errors(), "server" in running()
    return {
        "workers_online": workers,
        "workers_refused": refused_workers(),
        "runs": described,
        "schedules": [asdict(one) for one in collect_schedules()],
        "label_runs": _label_runs(since),
        "database_bytes": size_bytes() if here else None,
        "server_errors": asdict(errors) if errors else None,
    }


def server_errors() -> ServerErrors | None:
    """Return what the server that `up` started complains of; None for nothing, or no server."""
    return errors_in(log_of("server")) if "server" in running() else None


def _label_runs(since: datetime) -> list[dict[str, Any]]:
    """Return what `autolabel label` has done under this server or on its database."""
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter

    wanted = FlowRunFilter.model_validate({"expected_start_time": {"after_": since}})
    flow = FlowFilter.model_validate({"name": {"any_": ["label"]}})
    return [
        {
            "name": one.name,
            "state": one.state.name if one.state else None,
            "started": one.start_time.isoformat(timespec="seconds") if one.start_time else None,
            "out": out_of(one),
        }
        for one in islice(every_page(wanted, flow), LABEL_RUNS_READ)
    ]


def group_runs(flow_runs: Iterable[FlowRun]) -> list[RunStatus]:
    """Sum shards up by run and storage, newest first, as the shards are."""
    found: dict[tuple[str, str], RunStatus] = {}
    for one in flow_runs:
        try:
            shard = shard_of(one)
        except (KeyError, ValueError):  # of an older version
            continue
        key = shard.run_key, shard.label.out
        run = found.setdefault(key, RunStatus(shard.run_key, shard.label))
        _count(run, shard, one)
    return list(found.values())


def _count(run: RunStatus, shard: ShardParams, flow_run: FlowRun) -> None:
    state = flow_run.state
    if state is None:
        return
    run.states[state.name or state.type.value.title()] += 1
    names = {piece.sequence_id for piece in shard.pieces} - run.sequences.keys()
    run.sequences |= dict.fromkeys(names, flow_run.id)
    if state.is_final() and (why := why_not_loaded(state.message or "")):
        run.not_loaded[_reason(run, why)] += 1
    if state.is_completed():
        run.frames += shard.frames
        run.busy_s += flow_run.total_run_time.total_seconds()
    elif not state.is_final() or (state.is_crashed() and not stays_crashed(flow_run)):
        run.active += 1
        if state.name == "AwaitingRetry" and state.message:
            run.waiting[_reason(run, state.message)] += 1
    elif state.is_failed() or state.is_crashed():
        keys = frozenset(piece.key for piece in shard.pieces)
        last = frozenset(key for key in keys if key[0] in names)
        reason = _reason(run, state.message or "no reason given")
        run.failed.append(_FailedShard(state.timestamp.timestamp(), reason, keys, last))


def _reason(run: RunStatus, message: str) -> str:
    """Return the reason under which a message is counted."""
    reason = message.partition("\n")[0][:LONGEST]
    return run.told.setdefault(_NUMBERS.sub("#", reason), reason)


def look_at_storage(run: RunStatus) -> None:
    """Find out what a run has labeled, given up and mixed; an error is told in the run.

    What failed or was given up is past once it has labels: its own, or newer ones of the same
    sequence, whose files may have changed meanwhile.
    """
    out_uri = run.label.out
    try:
        listed = list_manifests(out_uri, run.run_key)
        newest, complete = newest_of(listed), complete_keys(listed)

        def is_past(key: Key, since_s: float) -> bool:
            last = newest.get(key[0])
            since = last is not None and not last.partial and last.written_s > since_s
            return since or key in complete

        run.partial = sum(one.partial for one in newest.values())
        run.complete = len(newest) - run.partial
        run.mixed = sorted(name for name, _ in list_mixed(out_uri, run.run_key))
        given_up = quarantine.times(out_uri, run.run_key)
        still = (key[0] for key, at_s in given_up.items() if not is_past(key, at_s))
        run.given_up = sorted(set(still))
        run.labeled = {key for one in run.failed for key in one.keys if is_past(key, one.at_s)}
        run.unlabeled = sorted({name for name, _ in run.bad - given_up.keys()})
    except AutolabelError as error:
        run.storage_error = str(error)


def _frames_without_labels(run: RunStatus) -> list[dict[str, Any]]:
    """Return those that the shards tell of that were the last to label their sequences."""
    past = {name for name, _ in run.labeled}
    of: dict[UUID, set[str]] = {}
    for name, shard in run.sequences.items():
        of.setdefault(shard, set()).update({name} - past)
    return failed_frames(run.run_key, of)
