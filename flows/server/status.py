"""How runs are doing: shards, failures by reason, throughput, what was given up, what to do."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from prefect.client.schemas.objects import FlowRun, State

from flows.machine.services import refused_workers, running
from flows.plan.shards import ShardParams
from flows.plan.summary import failure_row, unlabeled_frames
from flows.server.artifacts import short_sources
from flows.server.deployments import collect_schedules
from flows.server.fleet import workers_online
from flows.server.postgres import size_bytes
from flows.server.prefect_runs import SHARD_TAG, flow_runs, out_of, shard_of, stays_crashed
from flows.server.run_ends import LONGEST, why_not_loaded
from sam2_core.types import AutolabelError
from tasks.dataset.schema import lacked_sequences
from tasks.store import quarantine
from tasks.store.manifests import (
    MIXED,
    MOST_READ,
    Key,
    labeled_since,
    list_keys,
    list_manifests,
    newest_of,
)
from tasks.wording import counted

RUNS_READ, LABEL_RUNS_READ = 5000, 20
AGAIN = "give the same `autolabel backfill` again"
_NUMBERS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\d+(\.\d+)?")
Shard = tuple[FlowRun, State[Any], ShardParams]


def collect_status(hours: float = 72) -> dict[str, Any]:
    """Ask Prefect and storage how every run is doing.

    Args:
        hours: look at shards submitted since then.

    Raises:
        AutolabelError: Prefect is not there.

    """
    since = {"after_": datetime.now(UTC) - timedelta(hours=hours)}
    shards = flow_runs(tags={"all_": [SHARD_TAG]}, expected_start_time=since)
    labeled = islice(flow_runs(["label"], expected_start_time=since), LABEL_RUNS_READ)
    workers = workers_online()
    return {
        "workers_online": workers,
        "workers_refused": refused_workers(),
        "runs": [status_of(run, len(workers)) for run in group_runs(islice(shards, RUNS_READ))],
        "schedules": collect_schedules(),
        "label_runs": list(label_runs(labeled)),
        "database_bytes": size_bytes() if "server" in running() else None,
    }


def label_runs(newest_first: Iterable[FlowRun]) -> Iterator[dict[str, Any]]:
    """Tell of runs of `label`; one that was stopped is continued by the same command, given later.

    Args:
        newest_first: the runs.

    """
    given = list[dict[str, Any]]()
    for run in newest_first:
        stopped = run.state and run.state.is_final() and not run.state.is_completed()
        yield {
            "name": run.name,
            "state": run.state_name,
            "message": run.state.message or "" if run.state else "",
            "started": run.start_time.isoformat(timespec="seconds") if run.start_time else None,
            "out": out_of(run),
            "continued": bool(stopped and run.parameters in given),
        }
        given.append(run.parameters)


def group_runs(flow_runs: Iterable[FlowRun]) -> list[list[Shard]]:
    """Sort shards, with their states and parameters, by run and storage; newest first, as given."""
    found: dict[tuple[str, str], list[Shard]] = {}
    for run in flow_runs:
        with contextlib.suppress(KeyError, ValueError):  # of an older version
            shard = shard_of(run)
            run.parameters = {}  # as `shard`; of a million sequences they would be half a gigabyte
            if run.state:
                found.setdefault((shard.run_key, shard.label.out), []).append(
                    (run, run.state, shard)
                )
    return list(found.values())


def status_of(shards: Sequence[Shard], workers: int) -> dict[str, Any]:
    """Say how a run is doing: everything labeled with the same parameters to one storage.

    Args:
        shards: of the run, the newest first.
        workers: how many are online.

    """
    _, _, newest = shards[0]
    label, run_key = newest.label, newest.run_key
    active, failed, unloaded = list[State[Any]](), list[tuple[State[Any], ShardParams]](), [""]
    frames, busy_s = 0, 0.0
    for run, state, shard in shards:
        if state.is_failed() or stays_crashed(run):
            failed.append((state, shard))
        elif state.is_crashed() or not state.is_final():  # what has crashed is started again
            active.append(state)
        if state.is_completed():
            frames, busy_s = frames + shard.frames, busy_s + run.total_run_time.total_seconds()
        if state.is_final():
            unloaded.append(why_not_loaded(state.message or ""))
    is_loaded = any(unloaded) and lacked_sequences(label.dataset_name, label.out, run_key) == set()
    missing, facts = look_at_storage(shards, failed)
    told = {
        "run_key": run_key,
        "sources": short_sources(label.sources),
        "out": label.out,
        "dataset": label.dataset_name,
        "shards": dict(Counter(state.name or state.type.value.title() for _, state, _ in shards)),
        "active": len(active),
        "failures": counted_reasons(
            state.message or "no reason given"
            for state, shard in failed
            if facts["storage_error"] or any(piece.key in missing for piece in shard.pieces)
        ),
        "waiting": counted_reasons(
            state.message or "" for state in active if state.name == "AwaitingRetry"
        ),
        "not_loaded": {} if is_loaded else counted_reasons(unloaded),
        "frames_per_second_and_worker": round(frames / busy_s, 3) if busy_s else None,
    } | facts
    none_works = not workers and any(state.name in {"Late", "Crashed"} for state in active)
    unlabeled = {name for name, _ in missing} - set(facts["quarantined"])
    return told | {"to_do": list(_to_do(told, none_works, 0 if active else len(unlabeled)))}


def _to_do(run: dict[str, Any], none_works: bool, unlabeled: int) -> Iterator[str]:
    """Say what a person should do now.

    Args:
        run: its facts, by name.
        none_works: shards wait, and no worker is online.
        unlabeled: how many sequences failed and are not tried again.

    """
    if run["storage_error"]:
        yield f"storage cannot be read: {run['storage_error']}"
    if none_works:
        yield "shards wait and no worker is online: start one with `autolabel worker`"
    if unlabeled:
        yield f"{counted(unlabeled, 'sequence')} failed: fix the cause, then {AGAIN}"
    if run["not_loaded"]:
        shards = counted(sum(run["not_loaded"].values()), "shard")
        yield (
            f"labels of {shards} were not loaded ({'; '.join(run['not_loaded'])}): where that is "
            f"mended, {AGAIN}, or run the deployment load-dataset/load-dataset: it loads what "
            f"{run['dataset']} lacks"
        )
    if run["failed_frames"]:
        left = counted(len(run["failed_frames"]), "frame")
        yield f"{left} without labels: mend or delete them, then {AGAIN}"
    if run["quarantined"]:
        left = counted(len(run["quarantined"]), "sequence")
        yield (
            f"{left} given up, why is in quarantine/{run['run_key']}/: replace the files, which "
            f"the next night labels, or {AGAIN}; for the same files with --retry-quarantined"
        )


def counted_reasons(messages: Iterable[str]) -> dict[str, int]:
    """Count reasons; those that differ in numbers only are one, told as the first of them."""
    told: dict[str, str] = {}
    reasons = (message.partition("\n")[0][:LONGEST] for message in messages if message)
    return dict(Counter(told.setdefault(_NUMBERS.sub("#", reason), reason) for reason in reasons))


def look_at_storage(
    shards: Sequence[Shard], failed: Sequence[tuple[State[Any], ShardParams]]
) -> tuple[set[Key], dict[str, Any]]:
    """Find out what a run has labeled, given up and mixed, and which frames lack labels.

    Returns what is not labeled by now of the shards that failed, and the facts.
    """
    out_uri, run_key = shards[0][2].label.out, shards[0][2].run_key
    facts: dict[str, Any] = {
        "sequences_complete": None, "sequences_partial": 0, "sequences_of_mixed_versions": [],
        "quarantined": [], "failed_frames": [], "storage_error": "",
    }  # fmt: skip
    try:
        listed = list_manifests(out_uri, run_key)
        newest, is_past = newest_of(listed), labeled_since(listed)
        partial = sum(manifest.partial for manifest in newest.values())
        mixed = list_keys(out_uri, MIXED, run_key)
        names = {piece.sequence_id for _, _, shard in shards for piece in shard.pieces}
        last = sorted(manifest for name, manifest in newest.items() if name in names)[-MOST_READ:]
        facts |= {
            "sequences_complete": len(newest) - partial,
            "sequences_partial": partial,
            "sequences_of_mixed_versions": sorted(name for name, _ in mixed),
            "quarantined": quarantine.standing(out_uri, run_key, is_past),
            "failed_frames": [failure_row(frame) for frame in unlabeled_frames(out_uri, last)],
        }
        missing = {
            piece.key
            for state, shard in failed
            for piece in shard.pieces
            if not is_past(piece.key, state.timestamp.timestamp())
        }
    except AutolabelError as error:
        return set(), facts | {"storage_error": str(error)}
    return missing, facts
