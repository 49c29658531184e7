"""Names of flow runs on Prefect's pages: what is done, with what, and when."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flows.server.client import connected

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
