"""Why a process of ours ended, out of its log: its exception, which is seldom its last line."""

from __future__ import annotations

import re
from itertools import takewhile

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^(?P<margin>.*?)  File "')
_NAME = re.compile(r"([A-Za-z_]\w*\.)*[A-Z]\w*(: |$)")
# The interpreter's own end, after everything that matters.
_FATAL = "Fatal Python error:"
# Pydantic tells in further lines what is wrong with which value.
LINES = 3
LONGEST = 300


def last_words(log: str) -> str:
    """Return the last exception of a log, without one its last line; "" for an empty log.

    A server's last line is often only that it stops ("Application startup failed. Exiting."), and a
    thread that is still reading lets the interpreter write a report of its own behind that.
    """
    said, _, fatal = log.partition(_FATAL)
    _, _, after = said.rpartition(_TRACEBACK)
    lines = _exception(after.splitlines())
    if lines:
        return " ".join(lines)[:LONGEST]
    rest = [line.strip() for line in said.splitlines() if line.strip()]
    if rest:
        return rest[-1][:LONGEST]
    return f"{_FATAL}{fatal}".splitlines()[0][:LONGEST] if fatal else ""


def _exception(traceback: list[str]) -> list[str]:
    """Lines of the exception that a traceback ends with, which may be one of a group."""
    frame = next(filter(None, map(_FRAME.match, traceback)), None)
    if frame is None:
        return []
    margin = len(frame["margin"])  # in a group, bars
    inner = [line[margin:] for line in traceback]
    for number, line in enumerate(inner):
        if _NAME.match(line):
            more = takewhile(_says_more, inner[number + 1 : number + LINES])
            return [line, *map(str.strip, more)]
    return []


def _says_more(line: str) -> bool:
    return bool(line.strip()) and line[0] not in "[(+-"
