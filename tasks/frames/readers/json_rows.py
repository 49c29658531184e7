"""Rows of a JSON file that is one long list of objects."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

from sam2_core.types import AutolabelError
from tasks.store import storage

_PIECE = 1 << 20
Row = dict[str, Any]


def rows(uri: str) -> Iterator[Row]:
    """Rows of a table, one after another: large datasets have gigabytes of them.

    Raises:
        AutolabelError: it cannot be read, or is damaged; says where.

    """
    text: io.TextIOBase
    if storage.is_local(uri):
        with storage.explained("read", uri):
            text = storage.local_path(uri).open(encoding="utf-8")
    else:
        text = io.StringIO(storage.read_bytes(uri).decode("utf-8", "replace"))
    with text:
        yield from _objects(text, storage.redact(uri))


def _objects(file: io.TextIOBase, where: str) -> Iterator[Row]:
    decode = json.JSONDecoder().raw_decode
    text, at, passed = "", 0, 0
    while True:
        at = _next(text, at)
        if at < len(text) and text[at] == "]":
            return
        try:
            row, end = decode(text, at)
            whole = end < len(text)
        except ValueError:
            whole = False
        if whole:
            if isinstance(row, dict):
                yield row
            at = end
            continue
        more = file.read(_PIECE)
        if not more:
            raise AutolabelError(f"{where} is damaged at its character {passed + at}: no list ends")
        passed, text, at = passed + at, text[at:] + more, 0


def _next(text: str, at: int) -> int:
    """Pass over what stands between the objects of a list."""
    while at < len(text) and text[at] in " \t\r\n,[\ufeff":
        at += 1
    return at
