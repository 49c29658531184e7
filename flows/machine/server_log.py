"""What the Prefect server of `autolabel up` complains of: in its log, where nobody looks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.machine.services import log_of, running

LAST_BYTES = 4 << 20
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_RECORD = re.compile(rf"(\S+ \| )?(?P<level>{_LEVELS})\s*[|:]\s*(?P<said>.*)")
# Of the service that writes Prefect's history of events, from which nothing here is read.
_EVENTS_LOST = re.compile(r"event_persister\b.* dropping \d+ events")
HISTORY_ONLY = "Prefect's history of events lacks some: no label and no run is affected"
_EXCEPTION = re.compile(r"^[\s|]*(?P<said>([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception)\b.*)")


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


def server_errors() -> ServerErrors | None:
    """Read the log of the server that `up` started; None when none runs, or it logged no error."""
    if "server" not in running():
        return None
    return errors_in(log_of("server"))


def errors_in(log: Path) -> ServerErrors | None:
    """Count the errors in a log of Prefect's server, in its last 4 MiB."""
    found = list(_errors(_last_lines(log)))
    if not found:
        return None
    grave = [told for told in found if not _EVENTS_LOST.search(told)]
    meaning = "" if grave else HISTORY_ONLY
    return ServerErrors(len(found), (grave or found)[-1][:400], str(log), meaning)


def _errors(lines: Iterable[str]) -> Iterator[str]:
    """Yield what each error says, and the exception that it began with."""
    told, waiting = "", False
    for line in lines:
        if found := _RECORD.match(line):
            if told:
                yield told
            waiting = found["level"] in {"ERROR", "CRITICAL"}
            told = found["said"].strip() if waiting else ""
        elif waiting and (found := _EXCEPTION.match(line)):
            told, waiting = f"{told}: {found['said']}", False
    if told:
        yield told


def _last_lines(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, 2) - LAST_BYTES))
            yield from (line.decode(errors="replace").rstrip() for line in opened)
    except OSError:
        return
