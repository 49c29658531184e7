"""What a run leaves in Prefect for the morning after: counts, reasons, stage times, links."""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from flows.plan.summary import tracks_told
from flows.server.client import connected
from tasks.wording import counted, from_plain, plain

PAGE = 200


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
        for offset in itertools.count(0, PAGE):
            page = client.read_artifacts(
                artifact_filter=wanted, sort=newest, limit=PAGE, offset=offset
            )
            for one in page:
                sequences = of.get(one.flow_run_id, ()) if one.flow_run_id else ()
                rows = json.loads(str(one.data)) if sequences else []
                rows = [{name: from_plain(text) for name, text in row.items()} for row in rows]
                rows = [
                    row | {"frame": int(row["frame"])}  # in the table everything is text
                    for row in rows
                    if row["frame"] and row["sequence"] in sequences
                ]
                found = {frame_of(row): row for row in rows} | found
            if len(page) < PAGE:
                break
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
