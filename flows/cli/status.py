"""`autolabel status`: how runs and shards are doing, and what to do."""

import sys
import time
from collections.abc import Callable, Iterable, Set
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from flows.cli.common_options import json_option, print_json
from flows.cli.display import as_typed, say
from flows.cli.options import options_of
from flows.machine.services import ADVICE, has_died, refused_workers
from flows.params import BackfillParams, nanoseconds
from sam2_core.redaction import redact
from sam2_core.types import AutolabelError
from tasks.store import quarantine, storage
from tasks.store.addresses import checked
from tasks.store.manifests import (
    MOST_READ,
    Key,
    ListedManifest,
    labeled_since,
    list_manifests,
    newest_of,
    read_listed,
)
from tasks.wording import counted, local_time

FRAMES_SHOWN, ANSWER_WITHIN_S = 10, 10.0
HOURS = 72.0  # of shards that are shown, without --since


@click.command()
@click.argument("out", required=False)
@options_of(BackfillParams, only=["since"])
@json_option
def command(out: str | None, since: str | None, as_json: bool) -> None:
    """Show workers, schedules and the next nights, shards by state, failures by reason, throughput,
    what was given up on, and what to do; of shards that were submitted in the last three days, or
    --since another moment.

    With OUT, the --out of runs, show what is labeled there, and which datasets people decided
    on; so also for this folder and those in it, where no Prefect server runs. Of a run with more
    than 10,000 sequences, frames and labels are those of the newest 10,000. Exit code 1: something
    is left to do for a person.
    """  # noqa: D205
    from flows.server.api import api_that_runs, use_api
    from flows.server.client import asked_once
    from flows.server.status import collect_status

    hours = HOURS if since is None else _hours_since(since)
    died = has_died()
    if died:
        say(
            "nothing runs of what `autolabel up` started: it was killed, or the machine started "
            "again. No night begins until `autolabel up`; `autolabel down` if that is meant",
            err=True,
        )
    if out or not api_that_runs():
        folders = (
            [out] if out else [".", *(f"./{name}" for name in sorted(storage.list_folders(".")))]
        )
        labels = [run for folder in folders for run in _labeled_in(folder)]
        if labels:
            sys.exit(_show_labels(labels, as_json) or died)
        if died and not out:
            sys.exit(1)
        if out:
            raise AutolabelError(f"{redact(out)} holds no labeled sequence{_begun_in(out)}")
        raise AutolabelError(
            "nothing is labeled in this folder: give the --out of runs (`autolabel status OUT`). "
            "There is no Prefect server whose runs could be shown: `autolabel up` starts one, and "
            "PREFECT_API_URL names another"
        )
    use_api()
    try:
        with asked_once(ANSWER_WITHIN_S):  # who asks wants to know now
            status = collect_status(hours)
    except AutolabelError:
        if not as_json:  # what ails the server may well ail the workers
            _show_refused(refused_workers())
        raise
    if not print_json(as_json, status):
        _show_all(status, hours)
    todo = [run["to_do"] for run in status["runs"]]
    todo += [schedule["problem"] for schedule in status["schedules"]]
    todo += [status["workers_refused"]]
    sys.exit(1 if died or any(todo) else 0)


def _hours_since(text: str) -> float:
    try:
        moment_ns = nanoseconds(datetime.fromisoformat(text))
    except ValueError as error:
        raise click.UsageError(f"--since: {error}") from error
    return (time.time() - moment_ns / 1e9) / 3600


def _show_all(status: dict[str, Any], hours: float) -> None:
    workers = ", ".join(status["workers_online"]) or "none"
    say(f"workers that label: {workers}")
    _show_refused(status["workers_refused"])
    for schedule in status["schedules"]:
        _show_schedule(schedule)
    if size := status["database_bytes"]:
        say(f"Prefect's database: {size / 1e6:,.0f} MB")
    for run in status["label_runs"]:
        when = local_time(run["started"]) if run["started"] else "not started"
        later = "; the same command continued it later" if run["continued"] else ""
        say(f"{run['name']}: {run['state']}, {when}, to {run['out']}{later}")
        if run["state"] in {"Completed", "Failed"} and run["message"]:
            lacks = run["state"] == "Failed" or "in part" in run["message"]
            why = f"; which and why: {as_typed('status', run['out'])}" if lacks else ""
            say(f"  {run['message']}{why}")
    if not status["runs"]:
        say(f"no shards in the last {hours:g} h")
    for run in status["runs"]:
        _show(run)


def _labeled_in(out: str) -> list[dict[str, Any]]:
    """Return what each run has labeled in a folder, the newest last."""
    from tasks.review.events import reviewed_datasets

    listed, reviewed = list_manifests(checked(out)), reviewed_datasets(out)
    last = {manifest.run_key: manifest for manifest in listed}  # oldest first
    current, is_past = set(newest_of(listed).values()), labeled_since(listed)
    return [
        _labeled_by(
            out, key, (manifest for manifest in listed if manifest.run_key == key), current, is_past
        )
        | {"reviewed_datasets": reviewed}
        for key in sorted(last, key=last.__getitem__)
    ]


def _begun_in(out: str) -> str:
    """Say what runs have left that labeled no sequence to its end."""
    begun = storage.list_folders(storage.join(out, "labels"))
    if begun:
        chunks = f"chunks of {counted(len(begun), 'sequence')}"
        return f" yet, but {chunks}: give the command again, which continues"
    given_up = storage.list_folders(storage.join(out, "quarantine"))
    return "; what was given up, and why, is in its quarantine/" if given_up else ""


def _labeled_by(
    out: str,
    run_key: str,
    own: Iterable[ListedManifest],
    of_all: Set[ListedManifest],
    is_past: Callable[[Key, float], bool],
) -> dict[str, Any]:
    """Tell of a run; what is to do is about sequences that no newer run has labeled.

    Args:
        out: the folder.
        run_key: of the run.
        own: its manifests.
        of_all: the newest of each sequence, whichever run made it.
        is_past: as `labeled_since` returns it.

    """
    from flows.plan.summary import failure_row, unlabeled_frames

    newest = sorted(newest_of(own).values())
    manifests, unreadable = read_listed(out, newest[-MOST_READ:])
    current = of_all & set(newest)
    to_do = [f"give its command again: {error}" for error in unreadable.values()]  # it says where
    partial = sum(manifest.partial for manifest in newest)
    if any(manifest.partial for manifest in current):
        to_do.append(
            f"give its command again: files could not be read, why is in reports/{run_key}/"
        )
    stamp = manifests[-1].stamp if manifests else None
    options = {
        name: name == "follow" or value
        for name, value in (stamp.parameters if stamp else {}).items()
        if name not in {"mask_rules", "tracks"}  # digests of code
    }
    failing = {manifest.sequence_id for manifest in manifests if manifest.failed}
    failed = unlabeled_frames(
        out, [manifest for manifest in current if manifest.sequence_id in failing]
    )
    if failed:
        to_do.append(f"mend {counted(len(failed), 'frame')}, then give its command again")
    if quarantined := quarantine.standing(out, run_key, is_past):
        to_do.append(
            f"{counted(len(quarantined), 'sequence')} given up, why is in quarantine/{run_key}/: "
            "replace the files and give its command again; a backfill of the same files needs "
            "--retry-quarantined"
        )
    return {
        "out": storage.redact(storage.canonical(out)), "run_key": run_key,
        "model": stamp.model.name if stamp and stamp.model else None,
        "boxes": stamp.detector if stamp else None,
        "options": options, "sequences": len(newest) - len(unreadable),
        "sequences_read": len(manifests), "partial": partial,
        "frames": sum(manifest.frames for manifest in manifests),
        "relabeled": len(newest) - len(current),
        "failed_frames": [failure_row(frame) for frame in failed],
        "instances": sum(manifest.instances for manifest in manifests),
        "followed": sum(chunk.followed for manifest in manifests for chunk in manifest.chunks),
        "labeled": datetime.fromtimestamp(newest[-1].written_s, UTC).isoformat(timespec="seconds"),
        "quarantined": quarantined,
        "to_do": to_do,
    }  # fmt: skip


def _show_labels(labels: list[dict[str, Any]], as_json: bool) -> int:
    """Show runs in folders; returns the exit code."""
    refused = refused_workers()
    if not print_json(as_json, {"labels": labels, "workers_refused": refused}):
        _show_refused(refused)
        for run in labels:
            some = run["sequences_read"] < run["sequences"]
            failed = len(run["failed_frames"])
            followed = f" ({run['followed']} followed)" if run["followed"] else ""
            of_newest = f"in the newest {run['sequences_read']:,} of them " if some else ""
            say(
                f"{run['out']}: {counted(run['sequences'], 'sequence')}, {of_newest}"
                f"{counted(run['frames'], 'frame')}{f' ({failed} failed)' if failed else ''} and "
                f"{counted(run['instances'], 'label')}{followed} by {run['model']}, "
                f"{local_time(run['labeled'])} (run {run['run_key']})"
                + (f"; a later run has labeled {run['relabeled']} anew" if run["relabeled"] else "")
            )
            given = {"boxes": run["boxes"], **run["options"]}.items()
            say(f"  with        {', '.join(f'{name} {value}' for name, value in given if value)}")
            _show_failed(run["failed_frames"])
            for line in run["to_do"]:
                say(f"  to do: {line}")
            for name in run["quarantined"]:
                say(f"  given up    {name}")
        decided = {run["out"]: ", ".join(run["reviewed_datasets"]) for run in labels}
        for folder, names in decided.items():
            if names:
                say(f"{folder}: decisions on {names}")
    return int(bool(refused) or any(run["to_do"] for run in labels))


def _show_failed(frames: list[dict[str, Any]]) -> None:
    for frame in frames[:FRAMES_SHOWN]:
        say(f"  no labels   {frame['uri']}: {frame['reason']} (in {frame['stage']})")
    if (more := len(frames) - FRAMES_SHOWN) > 0:
        say(f"  no labels   {more} more; --json has all")


def _show_refused(reasons: dict[str, str]) -> None:

    for name, reason in reasons.items():
        say(f"{name} takes no work: {reason}")
    if reasons:
        say(f"  to do: {ADVICE}")


def _show_schedule(schedule: dict[str, Any]) -> None:
    from flows.server.artifacts import short_sources

    state = "on" if schedule["on"] else "off"
    line = f"schedule of {schedule['deployment']}: {schedule['when']}, {state}"
    if schedule["last_run"]:
        moment = _local(schedule["last_run"], schedule)
        before = " (with other parameters than now)" if schedule["changed"] else ""
        line += f", the last run of {moment}{before} {schedule['last_state'].lower()}"
        if schedule["last_state"] == "Completed" and schedule["last_message"]:
            line += f": {schedule['last_message']}"
    say(line)
    if schedule["sources"]:
        say(f"  labels      {short_sources(schedule['sources'])} to {schedule['out']}")
    for moment in schedule["next_runs"]:
        say(f"  planned     {_local(moment, schedule)}")
    if schedule["problem"]:
        say(f"  to do: {schedule['problem']}")


def _local(moment: str, schedule: dict[str, Any]) -> str:
    """Write a time of a schedule as `nightly` does."""
    there = datetime.fromisoformat(moment).astimezone(ZoneInfo(schedule["timezone"]))
    return f"{there:%a %Y-%m-%d %H:%M %Z}"


def _show(run: dict[str, Any]) -> None:
    from flows.server.prefect_runs import counted_states

    say("")
    say(f"run {run['run_key']} of {run['sources']} to {run['out']}")
    say(f"  shards      {counted_states(run['shards'])}")
    if run["sequences_complete"] is not None:
        say(f"  sequences   {run['sequences_complete']} complete")
    if (rate := run["frames_per_second_and_worker"]) is not None:
        say(f"  throughput  {rate:.2f} frames/s of a worker, start and loading included")
    for reason, count in run["failures"].items():
        say(f"  failed {count}x  {reason}")
    for reason, count in run["waiting"].items():
        say(f"  waits  {count}x  {reason}")
    _show_failed(run["failed_frames"])
    for what, names in (
        ("given up", run["quarantined"]),
        ("mixed versions", run["sequences_of_mixed_versions"]),
    ):
        for name in names[:10]:
            say(f"  {what:<11} {name}")
    for line in run["to_do"]:
        say(f"  to do: {line}")
