"""What a run leaves in Prefect for the morning after: counts, reasons, stage times, links."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from flows.server.shard_runs import connected
from tasks.wording import counted

PAGE = 200
PROGRESS_EVERY_S = 10.0


def publish(summary: dict[str, Any]) -> None:
    """Write a run's summary as a Markdown artifact and its failures as a table artifact."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    key = f"run-{summary['run_key']}"
    create_markdown_artifact(summary_markdown(summary), key=key, description="labeling run")
    if summary["failed"]:
        rows = [
            {
                name: str(one.get(name, ""))
                for name in ("sequence", "camera", "frame", "uri", "stage", "reason")
            }
            for one in summary["failed"]
        ]
        description = "what failed, and why"
        create_table_artifact(rows, key=failures_key(summary["run_key"]), description=description)


def failures_key(run_key: str) -> str:
    """Key of the artifacts that list what failed in a run."""
    return f"run-{run_key}-failures"


def failed_frames(run_key: str, flow_run_ids: Collection[UUID]) -> list[dict[str, str]]:
    """Return the frames without labels that these flow runs of a run have published, each once.

    Raises:
        AutolabelError: Prefect is not there.

    """
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
    from prefect.client.schemas.sorting import ArtifactSort

    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[failures_key(run_key)]))
    newest = ArtifactSort.CREATED_DESC
    found: dict[tuple[str, ...], dict[str, str]] = {}
    with connected() as client:
        for offset in itertools.count(0, PAGE):
            page = client.read_artifacts(
                artifact_filter=wanted, sort=newest, limit=PAGE, offset=offset
            )
            for one in page:
                if one.flow_run_id in flow_run_ids:
                    rows = json.loads(str(one.data))
                    found = {_frame(row): row for row in rows if row["frame"]} | found
            if len(page) < PAGE:
                break
    return sorted(found.values(), key=_frame)


def _frame(row: Mapping[str, str]) -> tuple[str, ...]:
    return row["sequence"], row["camera"], row["frame"].zfill(9)


def summary_markdown(summary: dict[str, Any]) -> str:
    """Summary as Markdown: counts, throughput, seconds by stage, failures by reason."""
    total = summary["seconds"].get("total", 0.0)
    new = summary["frames"] - summary["skipped"]
    lines = [
        f"# {counted(summary['frames'], 'frame')}, {counted(summary['instances'], 'mask')}",
        "",
        "| | |",
        "|---|---|",
        f"| sequences | {summary['sequences']:,} |",
        f"| labeled before | {counted(summary['skipped'], 'frame')} |",
        f"| failed | {len(summary['failed']):,} |",
        f"| wall time | {total:.1f} s ({new / total if total else 0:.1f} frames/s) |",
        f"| model | {summary['model']['name']} on {summary['model']['backend']} |",
        f"| boxes | {summary['boxes']} |",
        f"| labels | `{summary['out']}` |",
    ]
    if summary.get("dataset"):
        lines.append(f"| review | `autolabel review {summary['dataset']}` |")
    stages = {name: value for name, value in summary["seconds"].items() if name != "total"}
    if stages:
        lines += ["", "## Seconds by stage", "", "| stage | s |", "|---|---|"]
        lines += [f"| {name} | {value:.1f} |" for name, value in stages.items()]
    reasons = Counter(f"{one['stage']}: {one['reason']}" for one in summary["failed"])
    if reasons:
        lines += ["", "## Failures by reason", "", "| reason | count |", "|---|---|"]
        for reason, count in reasons.most_common(20):
            cell = reason.replace("|", "\\|").replace("\n", " ")[:300]
            lines.append(f"| {cell} | {count} |")
    return "\n".join(lines) + "\n"


def run_progress(key: str, shares: Sequence[float]) -> Callable[[int], None]:
    """Create a run's progress artifact; returns what moves it when a sequence has ended.

    A server that is away only costs the bar.

    Args:
        key: of the artifact.
        shares: of each sequence in the whole, such as its frames.

    """
    import httpx
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    bar: UUID | None = None
    with contextlib.suppress(httpx.HTTPError):
        bar = cast("UUID", create_progress_artifact(0.0, key=key, description="labeled"))
    ended: set[int] = set()
    told = time.monotonic()

    def move(number: int) -> None:
        nonlocal told
        ended.add(number)
        last = len(ended) == len(shares)
        if bar and (last or time.monotonic() - told > PROGRESS_EVERY_S):
            told = time.monotonic()
            done = sum(shares[one] for one in ended)
            with contextlib.suppress(httpx.HTTPError):
                update_progress_artifact(bar, 100.0 if last else 100.0 * done / (sum(shares) or 1))

    return move
