"""Until when everything was looked at: what "new since the last success" means."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from tasks.store import storage
from tasks.store.checksums import IncompleteArtifactError, decode_json, encode_json

log = logging.getLogger(__name__)


def _uri(out_uri: str, name: str) -> str:
    return storage.join(out_uri, "watermarks", f"{name}.json")


def read(out_uri: str, name: str) -> datetime | None:
    """When the last successful run began, or None before the first.

    One that is damaged counts as none: everything is looked at again, and nothing is skipped.

    Raises:
        StorageError: storage cannot be read; guessing would skip sequences.

    """
    uri = _uri(out_uri, name)
    try:
        values = decode_json(storage.read_bytes(uri), storage.redact(uri))
        until = datetime.fromisoformat(values["until"])
    except storage.NotFoundError:
        return None
    except (IncompleteArtifactError, KeyError, TypeError, ValueError) as error:
        log.warning("everything is looked at again, for there is no telling since when: %s", error)
        return None
    return until if until.tzinfo else until.replace(tzinfo=UTC)


def advance(out_uri: str, name: str, until: datetime) -> None:
    """Move the watermark to the beginning of a run that has succeeded; never back."""
    before = read(out_uri, name)
    if before is not None and before >= until:
        return
    values = {"until": until.astimezone(UTC).isoformat(timespec="seconds")}
    storage.write_bytes(_uri(out_uri, name), encode_json(values))
