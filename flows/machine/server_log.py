"""What the Prefect server of `autolabel up` complains of: in its log, where nobody looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.machine.services import log_of, running

LAST_BYTES = 4 << 20
_ERROR = re.compile(r"(\|\s*|^)(ERROR|CRITICAL)\s*[|:]\s*(?P<said>.*)")
_EXCEPTION = re.compile(r"^[\s|]*(?P<said>([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception)\b.*)")


@dataclass(frozen=True)
class ServerErrors:
    """Errors in the log of our server since it was started.

    Attributes:
        count: how many.
        last: the last one, with its exception.
        log: the file.

    """

    count: int
    last: str
    log: str


def server_errors() -> ServerErrors | None:
    """Read the log of the server that `up` started; None when none runs, or it logged no error."""
    if "server" not in running():
        return None
    return errors_in(log_of("server"))


def errors_in(log: Path) -> ServerErrors | None:
    """Count the errors in a log of Prefect's server, in its last 4 MiB."""
    count, last, waiting = 0, "", False
    for line in _last_lines(log):
        if found := _ERROR.search(line):
            count, last, waiting = count + 1, found["said"].strip(), True
        elif waiting and (found := _EXCEPTION.match(line)):
            last, waiting = f"{last}: {found['said']}", False
    return ServerErrors(count, last[:400], str(log)) if count else None


def _last_lines(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, 2) - LAST_BYTES))
            yield from (line.decode(errors="replace").rstrip() for line in opened)
    except OSError:
        return
