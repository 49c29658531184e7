"""Rows of a JSON file that is one long list of objects."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

from sam2_core.types import AutolabelError
from tasks.store import storage
from tasks.wording import counted

_PIECE, _BETWEEN = 1 << 20, " \t\r\n,\ufeff"
Row = dict[str, Any]
log = logging.getLogger(__name__)


def rows(uri: str) -> Iterator[Row]:
    """Rows of a table, one after another: large datasets have gigabytes of them.

    Raises:
        AutolabelError: it cannot be read, or is damaged; says where.

    """
    text: io.TextIOBase
    if storage.is_local(uri):
        with storage.explained("read", uri):
            text = storage.local_path(uri).open(encoding="utf-8", errors="replace")
    else:
        text = io.StringIO(storage.read_bytes(uri).decode("utf-8", "replace"))
    with text:
        yield from _objects(text, storage.redact(uri))


def _objects(file: io.TextIOBase, where: str) -> Iterator[Row]:
    decode = json.JSONDecoder().raw_decode
    text, at, passed, odd = "", 0, 0, 0
    between = _BETWEEN + "["
    while True:
        at = _next(text, at, between)
        if at < len(text) and text[at] == "]":
            if odd:
                log.warning("%s: %s no object", where, counted(odd, "row is", "rows are"))
            return
        if at:
            between = _BETWEEN
        try:
            row, end = decode(text, at)
            whole = end < len(text)
        except ValueError:
            whole = False
        if whole:
            if isinstance(row, dict):
                yield row
            else:
                odd += 1
            at = end
            continue
        more = file.read(_PIECE)
        if not more:
            raise AutolabelError(f"{where} is damaged at its character {passed + at}: no list ends")
        passed, text, at = passed + at, text[at:] + more, 0


def _next(text: str, at: int, between: str) -> int:
    """Pass over what stands between the objects of a list."""
    while at < len(text) and text[at] in between:
        at += 1
    return at
