"""What logs of our services say: why one ended, and of what Prefect's server complains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LAST_BYTES, LONGEST = 4 << 20, 300
_LEVEL = re.compile(r"(?:\S+ \| )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*[|:]\s*(.*)")
# As a traceback ends; in a group of exceptions there are bars before it.
_EXCEPTION = re.compile(r"[\s|]*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b.*)")
# Of the service that writes Prefect's history of events, from which nothing here is read.
_EVENTS_LOST = re.compile(r"event_persister\b.* dropping \d+ events")
HISTORY_ONLY = "Prefect's history of events lacks some: no label and no run is affected"


@dataclass(frozen=True)
class ServerErrors:
    """Errors in the log of our server since it was started.

    Attributes:
        count: how many.
        last: the last one, with its exception; of those that matter where some do.
        log: the file.
        meaning: in a sentence where all of them come to that, else "".

    """

    count: int
    last: str
    log: str
    meaning: str = ""


def lines_of(log: Path) -> list[str]:
    """Return the lines of a log, of a long one the last 4 MiB; none where it cannot be read."""
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, 2) - LAST_BYTES))
            return opened.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def last_words(log: Path) -> str:
    """Return the last exception of a log, without one its last line; "" for an empty log.

    A server's last line is often only that it stops ("Application startup failed. Exiting.").
    """
    lines = [line.strip() for line in lines_of(log) if line.strip()]
    for number in range(len(lines) - 1, -1, -1):
        if found := _EXCEPTION.match(lines[number]):
            # Pydantic tells in further lines what is wrong with which value.
            more = lines[number + 1 : number + 3] if "ValidationError" in found[1] else []
            return " ".join([found[1], *more])[:LONGEST]
    return lines[-1][:LONGEST] if lines else ""


def errors_in(log: Path) -> ServerErrors | None:
    """Count the errors in a log of Prefect's server; None for none."""
    errors, of_error = list[str](), False
    for line in lines_of(log):
        if found := _LEVEL.match(line):
            of_error = found[1] in {"ERROR", "CRITICAL"}
            errors += [found[2].strip()] * of_error
        elif of_error and (found := _EXCEPTION.match(line)):
            errors[-1] += f": {found[1]}"
            of_error = False
    if not errors:
        return None
    grave = [told for told in errors if not _EVENTS_LOST.search(told)]
    meaning = "" if grave else HISTORY_ONLY
    return ServerErrors(len(errors), (grave or errors)[-1][:400], str(log), meaning)
