"""What a run shows on Prefect's pages: its name, how far it is, and what it leaves at its end."""

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.sorting import ArtifactSort
from prefect.runtime import flow_run

from flows.plan.summary import tracks_told
from flows.server.client import connected, in_pages
from sam2_core.types import AutolabelError
from tasks.observe.progress import SEGMENT, Listener
from tasks.processes import repeating
from tasks.wording import counted, plain

LONGEST = 60


def dated(kind: str, *, about: bool = True) -> Callable[[], str]:
    """Return what names runs of a flow: its kind, its sources or dataset, and when it was due.

    Args:
        kind: what they do, as in "backfill drives/2026-05 2026-11-23 14:00".
        about: whether to name what they do it with.

    """

    def name() -> str:
        given: dict[str, Any] = flow_run.parameters
        params = given.get("params")
        sources = getattr(getattr(params, "label", params), "sources", ())
        what = str(given.get("dataset") or short_sources(sources)) if about else ""
        return run_name(kind, what, flow_run.scheduled_start_time)

    return name


def run_name(kind: str, what: str, due: datetime | None = None) -> str:
    """Name a run by its kind, what it works on, and when it was due: now when None."""
    moment = (due or datetime.now(UTC)).astimezone()
    return " ".join(filter(None, [kind, what, f"{moment:%Y-%m-%d %H:%M}"]))


def short_sources(sources: Sequence[str]) -> str:
    """Return the last two parts of the first source's address, and how many more there are.

    A bucket or a server counts with its scheme: s3://drives.
    """
    if not sources:
        return ""
    parts = re.split("(?<![:/])/+", str(sources[0]).rstrip("/"))
    first = "/".join(parts[-2:])[-LONGEST:].lstrip("/")
    return f"{first} and {len(sources) - 1} more" if len(sources) > 1 else first


PROGRESS_EVERY_S = 10.0
_AWAY = (httpx.HTTPError, AutolabelError)


def percent_done(run_ids: Collection[UUID]) -> dict[UUID, float]:
    """Return how far flow runs have told that they are; nothing of those that have told nothing.

    Raises:
        AutolabelError: Prefect is not there.

    """
    fits = ArtifactFilter.model_validate({
        "flow_run_id": {"any_": list(run_ids)}, "type": {"any_": ["progress"]},
    })  # fmt: skip
    with connected() as client:
        read = partial(client.read_artifacts, artifact_filter=fits, sort=ArtifactSort.CREATED_DESC)
        newest_first = list(in_pages(read))
    return {
        artifact.flow_run_id: float(str(artifact.data))
        for artifact in reversed(newest_first)
        if artifact.flow_run_id
    }


class FrameCount(Listener):
    """How many of a run's frames are through the model.

    Args:
        planned: frames in all; of videos none or an estimate.

    Attributes:
        planned: frames in all, and what corrects that; threads add to it at once.
        done: frames that are through, those from before and those of a second pass, too.

    """

    def __init__(self, planned: int) -> None:
        self.planned, self.done = [planned], list[int]()

    def expected(self, frames: int) -> None:
        """Correct what was planned."""
        self.planned.append(frames)

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Count frames that are through the model."""
        if stage == SEGMENT:
            self.done.append(frames)


@contextlib.contextmanager
def frames_counted(key: str, planned: int, *, estimated: bool = False) -> Iterator[FrameCount]:
    """Show the progress of the current flow run in an artifact while the block runs.

    How the run ended its state says. A server that is away costs the artifact alone.

    Args:
        key: of the artifact; Prefect breaks it at dashes only, and shows about 20 characters.
        planned: frames in all.
        estimated: `planned` is an estimate.

    """
    count, said, card = FrameCount(planned), "", None
    with contextlib.suppress(*_AWAY):
        card = cast("UUID", create_progress_artifact(0.0, key, "nothing yet"))

    def tell() -> None:
        nonlocal said
        total = sum(count.planned)
        done = min(sum(count.done), total)
        text = f"{'about ' if estimated else ''}{done:,} of {counted(total, 'frame')}"
        if card and text != said:
            with contextlib.suppress(*_AWAY):
                update_progress_artifact(card, 100 * done / max(total, 1), text)
                said = text

    tell()
    try:
        with repeating(tell, PROGRESS_EVERY_S):
            yield count
    finally:
        tell()


def publish(summary: dict[str, Any]) -> None:
    """Write a run's summary as a Markdown artifact; `status` tells which frames failed."""
    create_markdown_artifact(
        summary_markdown(summary), key=f"run-{summary['run_key']}", description="labeling run"
    )


def summary_markdown(summary: dict[str, Any]) -> str:
    """Summary as Markdown: counts, throughput, seconds by stage, failures by reason."""
    seconds = dict(summary["seconds"])
    total = seconds.pop("total", 0.0)
    new, masks = summary["frames"] - summary["skipped"], summary["instances"] - summary["rejected"]
    facts = [
        ("sequences", f"{summary['sequences']:,}"),
        ("labeled before", counted(summary["skipped"], "frame")),
        ("failed", f"{len(summary['failed']):,}"),
        ("wall time", f"{total:.1f} s ({new / total if total else 0:.1f} frames/s)"),
        ("model", f"{plain(summary['model']['name'])} on {summary['model']['backend']}"),
        ("boxes", plain(summary["boxes"])),
        ("labels", plain(summary["out"])),
        *(("tracks", line) for line in tracks_told(summary)),
    ]
    if summary.get("dataset"):
        facts.append(("review", f"autolabel review {plain(shlex.quote(summary['dataset']))}"))
    reasons = Counter(f"{failure['stage']}: {failure['reason']}" for failure in summary["failed"])
    most = [(plain(reason[:300]), f"failed {count}x") for reason, count in reasons.most_common(20)]
    stages = [(name, f"{value:.1f} s") for name, value in seconds.items()]
    rows = (f"| {name} | {value} |" for name, value in [*facts, *stages, *most])
    title = f"# {counted(summary['frames'], 'frame')}, {counted(masks, 'mask')}"
    return "\n".join([title, "", "| | |", "|---|---|", *rows])
