"""When a file was written, as file systems and servers tell it, each in its own way."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

_NAMES = ("mtime", "LastModified", "Last-Modified", "updated", "last_modified", "created")


def time_told(info: Mapping[str, Any]) -> Any:
    """When a file was written, by what is said of it: seconds since 1970, or a text, or ""."""
    told = next((info[name] for name in _NAMES if info.get(name)), "")
    return told.timestamp() if isinstance(told, datetime) else told


def written_s(info: Mapping[str, Any]) -> float:
    """When a file was written, in seconds since 1970; 0 where nobody tells."""
    told = time_told(info)
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(told).timestamp() if isinstance(told, str) else float(told)
    return 0.0
