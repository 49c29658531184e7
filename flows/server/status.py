"""How runs are doing: shards, failures by reason, throughput, what was given up, what to do."""

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State

from flows.machine.services import refused_workers, running
from flows.params import LabelParams
from flows.plan.shards import ShardParams
from flows.server.artifacts import failed_frames, run_name, short_sources
from flows.server.postgres import size_bytes
from flows.server.runs import (
    LONGEST,
    SHARD_TAG,
    flow_runs,
    out_of,
    shard_of,
    stays_crashed,
    why_not_loaded,
)
from flows.server.schedules import collect_schedules
from flows.server.submit import lacked, workers_online
from sam2_core.types import AutolabelError
from tasks.store import quarantine, storage
from tasks.store.manifests import (
    MIXED,
    Key,
    complete_keys,
    list_keys,
    list_manifests,
    newest_of,
)
from tasks.wording import counted

RUNS_READ, LABEL_RUNS_READ = 5000, 20
_NUMBERS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\d+(\.\d+)?")


@dataclass
class RunStatus:
    """One run: everything labeled with the same model, boxes and parameters to one storage.

    Attributes:
        run_key: which.
        label: parameters of its newest shard.
        shards: its flow runs with their parameters, newest first.
        loaded: whether the dataset has by now what shards could not load.
        labeled: what failed and is labeled by now.
        complete: sequences whose labels are complete, None when storage cannot be read.
        given_up: ids of sequences that failed or killed workers too often.
        partial: sequences whose labels lack what could not be fetched.
        mixed: ids of sequences that libraries of several versions have labeled.
        unlabeled: ids of sequences that shards which failed or crashed were the last to label,
            and that are neither labeled by now nor given up.
        failed_frames: frames without labels, each with its file and reason.
        storage_error: why storage cannot be read, "" where it can.

    """

    run_key: str
    label: LabelParams
    shards: list[tuple[FlowRun, ShardParams]] = field(default_factory=list)
    loaded: bool = False
    labeled: set[Key] = field(default_factory=set)
    complete: int | None = None
    given_up: list[str] = field(default_factory=list)
    partial: int = 0
    mixed: list[str] = field(default_factory=list)
    unlabeled: list[str] = field(default_factory=list)
    failed_frames: list[dict[str, Any]] = field(default_factory=list)
    storage_error: str = ""

    @cached_property
    def active(self) -> list[State]:
        """States of shards that have not ended; one that has just crashed is started again."""
        return [
            run.state
            for run, _ in self.shards
            if run.state
            and not stays_crashed(run)
            and (run.state.is_crashed() or not run.state.is_final())
        ]

    @cached_property
    def failed(self) -> list[tuple[FlowRun, State, ShardParams]]:
        """Shards that failed, or crashed for good."""
        return [
            (run, run.state, shard)
            for run, shard in self.shards
            if run.state and (run.state.is_failed() or stays_crashed(run))
        ]

    @cached_property
    def last(self) -> dict[str, UUID]:
        """Of each sequence, by id, the shard that was the last to label it."""
        oldest_first = reversed(self.shards)
        return {one.sequence_id: run.id for run, shard in oldest_first for one in shard.pieces}

    @property
    def not_loaded(self) -> dict[str, int]:
        """Why labels of shards were not loaded into the dataset, where it lacks some of them."""
        ended = [run.state for run, _ in self.shards if run.state and run.state.is_final()]
        reasons = [why_not_loaded(state.message or "") for state in ended]
        return {} if self.loaded else counted_reasons(filter(None, reasons))

    def as_json(self, workers: int = 1) -> dict[str, Any]:
        """Plain values, when so many `workers` are online."""
        states = [run.state for run, _ in self.shards if run.state]
        done = [one for one in self.shards if one[0].state and one[0].state.is_completed()]
        frames = sum(shard.frames for _, shard in done)
        busy_s = sum(run.total_run_time.total_seconds() for run, _ in done)
        waiting = [one.message for one in self.active if one.name == "AwaitingRetry"]
        failures = [
            state.message or "no reason given"
            for _, state, shard in self.failed
            if not {one.key for one in shard.pieces} <= self.labeled
        ]
        return {
            "run_key": self.run_key,
            "out": self.label.out,
            "shards": dict(Counter(one.name or one.type.value.title() for one in states)),
            "active": len(self.active),
            "failures": counted_reasons(failures),
            "waiting": counted_reasons(filter(None, waiting)),
            "failed_frames": self.failed_frames,
            "frames_per_second_and_worker": round(frames / busy_s, 3) if busy_s else None,
            "shards_not_loaded": sum(self.not_loaded.values()),
            "not_loaded": self.not_loaded,
            "sequences_complete": self.complete,
            "sequences_partial": self.partial,
            "sequences_of_mixed_versions": self.mixed,
            "quarantined": self.given_up,
            "storage_error": self.storage_error,
            "to_do": list(self.to_do(workers)),
        }

    def to_do(self, workers: int) -> Iterator[str]:
        """Say what a person should do now, when so many `workers` are online."""
        if self.storage_error:
            yield f"storage cannot be read: {self.storage_error}"
        if not workers and any(one.name in {"Late", "Crashed"} for one in self.active):
            yield "shards wait and no worker is online: start one with `autolabel worker`"
        if self.unlabeled and not self.active:
            left = counted(len(self.unlabeled), "sequence")
            again = backfill_again(self.label, sequences=self.unlabeled)
            yield f"{left} failed: fix the cause, then {again}"
        if self.not_loaded:
            shards = counted(sum(self.not_loaded.values()), "shard")
            why = "; ".join(self.not_loaded)
            yield (
                f"labels of {shards} were not loaded ({why}): where that is "
                f"mended, {backfill_again(self.label)} or the deployment load-dataset/load-dataset "
                f"loads what {self.label.dataset_name} lacks"
            )
        if self.failed_frames:
            left = counted(len(self.failed_frames), "frame")
            yield f"{left} without labels: mend them, then {backfill_again(self.label)}"
        if self.given_up:
            left = counted(len(self.given_up), "sequence")
            again = backfill_again(self.label, "--retry-quarantined", sequences=self.given_up)
            yield f"{left} given up: look at the frames, then {again}"


def counted_reasons(messages: Iterable[str]) -> dict[str, int]:
    """Count reasons; those that differ in numbers only are one, told as the first of them."""
    told: dict[str, str] = {}
    found: Counter[str] = Counter()
    for message in messages:
        reason = message.partition("\n")[0][:LONGEST]
        found[told.setdefault(_NUMBERS.sub("#", reason), reason)] += 1
    return dict(found)


def collect_status(hours: float = 72) -> dict[str, Any]:
    """Ask Prefect and storage how every run is doing.

    Args:
        hours: look at shards submitted since then.

    Raises:
        AutolabelError: Prefect is not there.

    """
    since = {"after_": datetime.now(UTC) - timedelta(hours=hours)}
    shards = flow_runs(tags={"all_": [SHARD_TAG]}, expected_start_time=since)
    runs, workers = group_runs(islice(shards, RUNS_READ)), workers_online()
    for run in runs:
        look_at_storage(run)
        run.loaded = bool(run.not_loaded) and lacked(run.label, run.run_key) == set()
        run.failed_frames = _frames_without_labels(run)
    labeled = islice(flow_runs(["label"], expected_start_time=since), LABEL_RUNS_READ)
    return {
        "workers_online": workers,
        "workers_refused": refused_workers(),
        "runs": [run.as_json(len(workers)) for run in runs],
        "schedules": [asdict(one) for one in collect_schedules()],
        "label_runs": [
            {
                "name": one.name if one.start_time else _name_of(one),
                "state": one.state.name if one.state else None,
                "started": one.start_time.isoformat(timespec="seconds") if one.start_time else None,
                "out": out_of(one),
            }
            for one in labeled
        ],
        "database_bytes": size_bytes() if "server" in running() else None,
    }


def _name_of(run: FlowRun) -> str:
    """Name a run of `label` that has not started: until then Prefect's name is a random one."""
    params = run.parameters.get("params")
    sources = params.get("sources", ()) if isinstance(params, dict) else ()
    return run_name("label", short_sources(sources), run.expected_start_time)


def group_runs(flow_runs: Iterable[FlowRun]) -> list[RunStatus]:
    """Sort shards by run and storage, newest first, as the shards are."""
    found: dict[tuple[str, str], RunStatus] = {}
    for one in flow_runs:
        with contextlib.suppress(KeyError, ValueError):  # of an older version
            shard = shard_of(one)
            key = shard.run_key, shard.label.out
            run = found.setdefault(key, RunStatus(shard.run_key, shard.label))
            one.parameters = {}  # as `shard`; of a million sequences they would be half a gigabyte
            run.shards.append((one, shard))
    return list(found.values())


def look_at_storage(run: RunStatus) -> None:
    """Find out what a run has labeled, given up and mixed; an error is told in the run.

    What failed or was given up is past once it has labels: its own, or newer ones of the same
    sequence, whose files may have changed meanwhile.
    """
    out_uri = run.label.out
    try:
        listed = list_manifests(out_uri, run.run_key)
        newest, given_up = newest_of(listed), quarantine.given_up(out_uri, run.run_key)
        complete = complete_keys(listed) if run.failed or given_up else set()

        def is_past(key: Key, since_s: float) -> bool:
            last = newest.get(key[0])
            since = last is not None and not last.partial and last.written_s > since_s
            return since or key in complete

        run.partial = sum(one.partial for one in newest.values())
        run.complete = len(newest) - run.partial
        run.mixed = sorted(name for name, _ in list_keys(out_uri, MIXED, run.run_key))
        still = (key[0] for key, at_s in given_up.items() if not is_past(key, at_s))
        run.given_up = sorted(set(still))
        run.labeled = {
            one.key
            for _, state, shard in run.failed
            for one in shard.pieces
            if is_past(one.key, state.timestamp.timestamp())
        }
        run.unlabeled = sorted(
            {
                one.sequence_id
                for failed, _, shard in run.failed
                for one in shard.pieces
                if run.last[one.sequence_id] == failed.id
                and one.key not in run.labeled
                and one.key not in given_up
            }
        )
    except AutolabelError as error:
        run.storage_error = str(error)


def _frames_without_labels(run: RunStatus) -> list[dict[str, Any]]:
    """Return those that the shards tell of that were the last to label their sequences."""
    past = {name for name, _ in run.labeled}
    of: dict[UUID, set[str]] = {}
    for name, shard in run.last.items():
        of.setdefault(shard, set()).update({name} - past)
    return failed_frames(run.run_key, of)


MOST_SOURCES = 10


def backfill_again(label: LabelParams, *more: str, sequences: Sequence[str] = ()) -> str:
    """Return the `autolabel backfill` that labels with these parameters, quoted for a shell.

    Args:
        label: of the run, as its shards have it.
        more: other options.
        sequences: ids of what it is to take; of several, whoever reads has to say it.

    Returns:
        The command, and in words what it lacks: sources of a long list stand in no line, and no
        shard knows of `--since`, `--until` or `--sequences`.

    """
    many = len(label.sources) > MOST_SOURCES
    words = [
        "autolabel",
        "backfill",
        *(() if many else map(storage.redact, label.sources)),
        *_options(label),
        *more,
    ]
    if len(sequences) == 1:
        words += ["--sequences", sequences[0]]
    lacking = [f"its {len(label.sources):,} sources"] if many else []
    if len(sequences) != 1:
        lacking += ["--since, --until or --sequences, if it had some"]
    with_ = f" (with {' and with '.join(lacking)})" if lacking else ""
    return f"`{shlex.join(words)}`{with_}"


def _options(label: LabelParams) -> Iterator[str]:
    """Options of what is not as by default; names are those that `flows.cli.options` makes."""
    for name, value in label.model_dump(exclude_defaults=True, exclude={"sources"}).items():
        yield from _option(name, value)


def _option(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if name == "load_dataset":
        yield "--no-dataset"
    elif isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif value is not None:
        values = value if isinstance(value, (tuple, list)) else [value]
        text = ",".join(storage.redact(str(one)) for one in values)
        yield from (f"--{flag}", text) if not text.startswith("-") else (f"--{flag}={text}",)
