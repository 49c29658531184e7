"""What a person sees on the terminal while a run goes on: how far it is, and each sequence's line.

All of it goes to stderr; stdout belongs to `--json`. Where stderr is no terminal, how far it is
comes every half minute, which is what a log needs.
"""

import contextlib
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.status import Status
from rich.table import Column, Table

from sam2_core.redaction import as_lines, one_line, redact
from tasks.observe.progress import DETECT, DOWNLOAD, LOAD, SEGMENT, Listener, Progress
from tasks.wording import counted

LOG_INTERVAL_S = 30.0
MOST_BEFORE_THE_END = 0.99
MOST_SHOWN = 10
_WIDE = 200  # of tables in a file, where nothing need be broken
# What frames are that are through a stage.
_THROUGH = {
    DOWNLOAD: "fetched", DETECT: "with boxes", SEGMENT: "with masks", LOAD: "in the dataset"
}  # fmt: skip
Item = TypeVar("Item")
_CLOSING = re.compile(r"((?<!\\)\[/[a-z ]*\])")
# What moves on the terminal now: stopped before last words, which it would be drawn over and under.
_moving: list[Callable[[], object]] = []


def say(text: str, *, err: bool = False) -> None:
    """Print a line as it is: without colours, and with what `redact` would hide."""
    click.echo(one_line(text), err=err)


class _RedactingConsole(Console):
    """A console whose messages are lines without secrets."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, each text without secrets and as one line."""
        super().print(
            *(_redacted(part) if isinstance(part, str) else part for part in objects), **options
        )

    def render(self, *what: Any) -> Iterator[Segment]:
        """Render; also what is not printed as a text has nothing that a terminal obeys."""
        for part in super().render(*what):
            yield part if part.control else part._replace(text=as_lines(part.text))


def _redacted(text: str) -> str:
    """Return a line with Rich's markup without secrets; a closing tag is no part of an address."""
    parts = _CLOSING.split(one_line(text))
    return "".join(part if _CLOSING.fullmatch(part) else redact(part) for part in parts)


def stderr_console() -> Console:
    """Return a console on stderr that never wraps or colours what is not a terminal."""
    return _RedactingConsole(stderr=True, highlight=False, soft_wrap=True)


def results_console() -> Console:
    """Return a console on stdout that prints names as they are: no markup, emoji or secret."""
    width = None if sys.stdout.isatty() else _WIDE
    return _RedactingConsole(markup=False, emoji=False, highlight=False, width=width)


def as_typed(*words: str) -> str:
    """Return how to call this command from here, for people to copy: `make` sets no PATH."""
    program = Path(sys.argv[0])
    with contextlib.suppress(ValueError):
        program = program.resolve().relative_to(Path.cwd())
    on_path = shutil.which("autolabel") or program.name != "autolabel"
    return shlex.join(["autolabel" if on_path else str(program), *words])


def stop_moving() -> None:
    """Leave the terminal to the next output; draw nothing from now on."""
    while _moving:
        _moving.pop()()


@contextlib.contextmanager
def spinning(console: Console, text: str) -> Iterator[Status]:
    """Show that something is going on while the block runs."""
    with console.status(text) as status:
        _moving.append(status.stop)
        try:
            yield status
        finally:
            if status.stop in _moving:
                _moving.remove(status.stop)


@contextlib.contextmanager
def telling(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current work, on a terminal in one place."""
    if console.is_terminal:
        with spinning(console, text) as status:
            yield lambda words: status.update(escape(one_line(words)))
        return
    logged = time.monotonic()

    def tell(words: str) -> None:
        nonlocal logged
        if time.monotonic() - logged >= LOG_INTERVAL_S:
            logged = time.monotonic()
            console.print(escape(words))

    console.print(escape(text))
    yield tell


def tracked(console: Console, items: Iterable[Item], text: str, total: int) -> Iterator[Item]:
    """Hand on items and show how many, and how long the others will take."""
    with telling(console, f"{text}: {total:,}") as tell:
        started_s = time.monotonic()
        for done, item in enumerate(items, 1):
            yield item
            left_s = (time.monotonic() - started_s) * (total - done) / done
            tell(f"{text}: {done:,} of {total:,}, {clock(left_s)} left")


def print_table(
    console: Console, columns: Sequence[Column | str], rows: Iterable[Iterable[str]], **style: Any
) -> None:
    """Print a table of texts, without a frame unless its style says so."""
    table = Table(*columns, **{"box": None} | style)
    for row in rows:
        table.add_row(*map(one_line, row))
    console.print(table)


def shown_of(console: Console, items: Sequence[Item]) -> Iterator[Item]:
    """Hand on the first few items; say at the end how many more there are."""
    yield from items[:MOST_SHOWN]
    if len(items) > MOST_SHOWN:
        console.print(f"  and {len(items) - MOST_SHOWN} more; --json lists all")


def clock(seconds: float) -> str:
    """Write a time as h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))


class RunDisplay(Listener):
    """How far a run is, in a line, and a line for each sequence; 100% is the end, and not shown.

    A frame counts when it has its masks; what was labeled before counts neither as done nor as
    left. The percentage never goes back.
    """

    def __init__(
        self, console: Console, tell: Callable[[str], None], stages: Sequence[str], frames: int
    ) -> None:
        self._console, self._tell, self._lock = console, tell, threading.Lock()
        self._frames, self._labeled, self._from_before = frames, 0, 0
        self._done, self._most = dict.fromkeys(stages, 0), 0.0
        self._started_s = time.monotonic()

    def expected(self, frames: int) -> None:
        """More frames came to light."""
        with self._lock:
            self._frames += frames

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Say how far the run is."""
        if stage not in self._done:
            return
        with self._lock:
            # What a second pass does again counts once.
            done = max(self._done[stage], min(self._done[stage] + frames, self._frames or frames))
            self._done[stage] = done
            if stage == SEGMENT and kept:
                self._from_before += frames
            elif stage == SEGMENT:
                self._labeled += frames
            to_label = self._frames - self._from_before
            fraction = self._labeled / to_label if to_label > 0 else float(self._frames > 0)
            fraction = min(fraction, MOST_BEFORE_THE_END)
            self._most = max(self._most, fraction)
            text = f"{self._most:.0%} done"
            if self._labeled:
                passed_s = time.monotonic() - self._started_s
                text += f", {clock(passed_s * (1 - fraction) / fraction)} left"
            stages = ", ".join(f"{done} {_THROUGH[name]}" for name, done in self._done.items())
            self._tell(f"{text}; of {counted(self._frames, 'frame')}: {stages}")

    def finished(self, sequence_id: str, text: str, good: bool) -> None:
        """Print a sequence's line."""
        mark = "[green]✓[/]" if good else "[red]✗[/]"
        self._console.print(f"{mark} [bold]{escape(sequence_id)}[/]  {escape(text)}")


@contextlib.contextmanager
def showing(
    console: Console, progress: Progress, stages: Sequence[str], frames: int
) -> Iterator[None]:
    """Show a run's progress while the block runs."""
    with (
        telling(console, "labeling") as tell,
        progress.listening(RunDisplay(console, tell, stages, frames)),
    ):
        yield
