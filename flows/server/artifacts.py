"""What a run shows on Prefect's pages: its name, how far it is, and what it leaves at its end."""

from __future__ import annotations

import contextlib
import contextvars
import json
import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import httpx

from flows.plan.summary import tracks_told
from flows.server.client import connected, in_pages
from sam2_core.types import AutolabelError
from tasks.observe.progress import SEGMENT, Listener
from tasks.pipeline.run_context import RunContext
from tasks.wording import counted, from_plain, plain

if TYPE_CHECKING:
    from prefect.client.schemas.objects import Artifact


LONGEST = 60
READABLE_KEY = 24  # characters of a key that name something; Prefect shows about as many


def dated(kind: str, *, about: bool = True) -> Callable[[], str]:
    """Return what names runs of a flow: its kind, its sources or dataset, and when it was due.

    Args:
        kind: what they do, as in "backfill drives/2026-05 2026-11-23 14:00".
        about: whether to name what they do it with.

    """

    def name() -> str:
        from prefect.runtime import flow_run

        due = (flow_run.scheduled_start_time or datetime.now(UTC)).astimezone()
        given: dict[str, Any] = flow_run.parameters
        what = str(given.get("dataset") or _sources(given.get("params"))) if about else ""
        return " ".join(filter(None, [kind, what, f"{due:%Y-%m-%d %H:%M}"]))

    return name


def _sources(params: Any) -> str:
    """Return the last two parts of the first source's address, and how many more there are."""
    sources = getattr(getattr(params, "label", params), "sources", ())
    if not sources:
        return ""
    first = "/".join(re.split("/+", str(sources[0]).rstrip("/"))[-2:])[-LONGEST:].lstrip("/")
    return f"{first} and {len(sources) - 1} more" if len(sources) > 1 else first


def add_to_name(more: str) -> None:
    """Add to the name of the current flow run what is known by now."""
    from prefect.runtime import flow_run

    if flow_run.id:
        with connected() as client:
            client.update_flow_run(UUID(flow_run.id), name=f"{flow_run.name}, {more}")


def readable_key(kind: str, name: str) -> str:
    """Return a key for an artifact, which may have lower-case letters, digits and dashes only."""
    plain = re.sub("[^a-z0-9]+", "-", name.lower())[-READABLE_KEY:].strip("-")
    return f"{kind}-{plain}" if plain else kind


PROGRESS_EVERY_S = 10.0
MOST_BEFORE_THE_END = 99.0
INTERRUPTED = "interrupted after "
_AWAY = (httpx.HTTPError, AutolabelError)


class ProgressArtifact:
    """The progress artifact of the flow run that makes it; a server that is away costs it alone.

    It never goes back, and 100% is the end. An earlier attempt's is taken over, unless it says that
    it was interrupted: that one stays.

    Args:
        key: of the artifact; Prefect breaks it at dashes only, and shows about 20 characters.
        total: frames in all.
        estimated: nobody has counted them all.

    """

    def __init__(self, key: str, total: int, *, estimated: bool = False) -> None:
        from prefect.artifacts import create_progress_artifact
        from prefect.runtime import flow_run

        self._about, self._most = "about " if estimated else "", 0.0
        self._id: UUID | None = None
        with contextlib.suppress(*_AWAY):
            found = _cards([flow_run.id], key) if flow_run.id else []
            left = [one for one in found if not (one.description or "").startswith(INTERRUPTED)]
            self._id = left[0].id if left else None
            if not left:
                self._id = cast("UUID", create_progress_artifact(0.0, key, "nothing yet"))
        self.tell(0, total)

    def tell(self, done: int, total: int, how: str = "", *, ended: bool = False) -> None:
        """Say how many frames are through; `how` is what stands before."""
        from prefect.artifacts import update_progress_artifact

        self._most = max(self._most, min(100 * done / total, MOST_BEFORE_THE_END) if total else 0.0)
        if self._id is not None:
            text = f"{how}{self._about}{done:,} of {counted(total, 'frame')}"
            with contextlib.suppress(*_AWAY):
                update_progress_artifact(self._id, 100.0 if ended else self._most, text)

    def end(self, done: int, total: int, how: str = "") -> None:
        """Say how it ended; `how` is "" where it was not cut short."""
        self.tell(done, total, how, ended=not how)


def _cards(run_ids: Collection[str | UUID], key: str | None = None) -> list[Artifact]:
    """Return the progress artifacts of flow runs, the newest first."""
    from prefect.client.schemas.filters import ArtifactFilter
    from prefect.client.schemas.sorting import ArtifactSort

    wanted = {"flow_run_id": {"any_": list(run_ids)}, "type": {"any_": ["progress"]}}
    wanted |= {"key": {"any_": [key]}} if key else {}
    with connected() as client:
        return client.read_artifacts(
            artifact_filter=ArtifactFilter.model_validate(wanted), sort=ArtifactSort.CREATED_DESC
        )


def percent_done(run_ids: Collection[UUID]) -> dict[UUID, float]:
    """Return how far flow runs have told that they are; nothing of those that have told nothing.

    Raises:
        AutolabelError: Prefect is not there.

    """
    found = _cards(run_ids)[::-1] if run_ids else []
    return {one.flow_run_id: float(str(one.data)) for one in found if one.flow_run_id}


class FrameCount(Listener):
    """How many of a run's frames are through the model.

    Args:
        planned: frames of each sequence as planned; those of videos are estimates.

    """

    def __init__(self, planned: Sequence[int]) -> None:
        self._planned, self._done, self._one_at_a_time = list(planned), 0, threading.Lock()

    def opened(self, number: int, frames: int) -> None:
        """Correct what was planned of a sequence."""
        self._planned[number] = frames

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Count frames that are through the model, those from before, too."""
        if stage == SEGMENT:
            with self._one_at_a_time:
                self._done += frames

    def so_far(self) -> tuple[int, int]:
        """Return frames that are through, and all; what a second pass does again counts once."""
        total = sum(self._planned)
        return min(self._done, total), total


@contextlib.contextmanager
def frames_counted(context: RunContext, key: str, planned: Sequence[int]) -> Iterator[FrameCount]:
    """Count a run's frames in an artifact while the block runs, and say if it was interrupted."""
    count, ended = FrameCount(planned), threading.Event()
    card = ProgressArtifact(key, sum(planned))

    def tell_now_and_then() -> None:
        told = count.so_far()
        while not ended.wait(PROGRESS_EVERY_S):
            if count.so_far() != told:
                told = count.so_far()
                card.tell(*told)

    telling = partial(contextvars.copy_context().run, tell_now_and_then)
    thread = threading.Thread(target=telling, name="progress", daemon=True)
    thread.start()
    interrupted = True
    try:
        with context.progress.listening(count):
            yield count
        interrupted = context.stop.requested
    finally:
        ended.set()
        thread.join()  # what it says must not come after the last word
        card.end(*count.so_far(), INTERRUPTED if interrupted else "")


def publish(summary: dict[str, Any]) -> None:
    """Write a run's summary as a Markdown artifact and its failures as a table artifact."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    key = f"run-{summary['run_key']}"
    create_markdown_artifact(summary_markdown(summary), key=key, description="labeling run")
    if summary["failed"]:
        names = ("sequence", "camera", "frame", "uri", "stage", "reason")
        rows = [
            {name: plain(str(one.get(name, ""))) for name in names} for one in summary["failed"]
        ]
        description = "what failed, and why"
        create_table_artifact(rows, key=failures_key(summary["run_key"]), description=description)


def failures_key(run_key: str) -> str:
    """Key of the artifacts that list what failed in a run."""
    return f"run-{run_key}-failures"


def failed_frames(run_key: str, of: Mapping[UUID, Collection[str]]) -> list[dict[str, Any]]:
    """Return the frames without labels that flow runs of a run have published, each once.

    Each has what `label --json` says of it: `frame` is its number, the others are text.

    Args:
        run_key: of the run.
        of: ids of the sequences to tell of, by flow run.

    Raises:
        AutolabelError: Prefect is not there.

    """
    from prefect.client.schemas.filters import ArtifactFilter
    from prefect.client.schemas.sorting import ArtifactSort

    wanted = ArtifactFilter.model_validate({"key": {"any_": [failures_key(run_key)]}})
    newest = ArtifactSort.CREATED_DESC
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    with connected() as client:
        for one in in_pages(partial(client.read_artifacts, artifact_filter=wanted, sort=newest)):
            sequences = of.get(one.flow_run_id, ()) if one.flow_run_id else ()
            rows = json.loads(str(one.data)) if sequences else []
            rows = [{name: from_plain(text) for name, text in row.items()} for row in rows]
            rows = [
                row | {"frame": int(row["frame"])}  # in the table everything is text
                for row in rows
                if row["frame"] and row["sequence"] in sequences
            ]
            found = {frame_of(row): row for row in rows} | found
    return sorted(found.values(), key=frame_of)


def frame_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return which frame a row of `failed_frames` is of: sequence, camera and number."""
    return row["sequence"], row["camera"], row["frame"]


def summary_markdown(summary: dict[str, Any]) -> str:
    """Summary as Markdown: counts, throughput, seconds by stage, failures by reason."""
    total = summary["seconds"].get("total", 0.0)
    new, masks = summary["frames"] - summary["skipped"], summary["instances"] - summary["rejected"]
    lines = [
        f"# {counted(summary['frames'], 'frame')}, {counted(masks, 'mask')}",
        "",
        "| | |",
        "|---|---|",
        f"| sequences | {summary['sequences']:,} |",
        f"| labeled before | {counted(summary['skipped'], 'frame')} |",
        f"| failed | {len(summary['failed']):,} |",
        f"| wall time | {total:.1f} s ({new / total if total else 0:.1f} frames/s) |",
        f"| model | {plain(summary['model']['name'])} on {summary['model']['backend']} |",
        f"| boxes | {plain(summary['boxes'])} |",
        f"| labels | {plain(summary['out'])} |",
    ]
    lines += [f"| tracks | {line} |" for line in tracks_told(summary)]
    if summary.get("dataset"):
        lines.append(f"| review | autolabel review {plain(shlex.quote(summary['dataset']))} |")
    stages = {name: value for name, value in summary["seconds"].items() if name != "total"}
    if stages:
        lines += ["", "## Seconds by stage", "", "| stage | s |", "|---|---|"]
        lines += [f"| {name} | {value:.1f} |" for name, value in stages.items()]
    reasons = Counter(f"{one['stage']}: {one['reason']}" for one in summary["failed"])
    if reasons:
        lines += ["", "## Failures by reason", "", "| reason | count |", "|---|---|"]
        for reason, count in reasons.most_common(20):
            lines.append(f"| {plain(reason[:300])} | {count} |")
    return "\n".join(lines) + "\n"
