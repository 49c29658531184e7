"""Until when everything was looked at: what "new since the last success" means."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tasks.store import storage


def _uri(out_uri: str, name: str) -> str:
    return storage.join(out_uri, "watermarks", f"{name}.json")


def read(out_uri: str, name: str) -> datetime | None:
    """When the last successful run began, or None before the first.

    Raises:
        StorageError: storage cannot be read; guessing would skip sequences.

    """
    try:
        values = json.loads(storage.read_bytes(_uri(out_uri, name)))
    except storage.NotFoundError:
        return None
    return datetime.fromisoformat(values["until"])


def advance(out_uri: str, name: str, until: datetime) -> None:
    """Move the watermark to the beginning of a run that has succeeded; never back."""
    before = read(out_uri, name)
    if before is not None and before >= until:
        return
    values = {"until": until.astimezone(UTC).isoformat(timespec="seconds")}
    storage.write_bytes(_uri(out_uri, name), json.dumps(values).encode())
