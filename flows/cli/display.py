"""What a person sees on the terminal while a run goes on: bars, and a line for each sequence.

One bar is for all of it, and below it there is one for each stage.

All of it goes to stderr; stdout belongs to `--json`. Where stderr is no terminal there are no bars:
the lines, and how far it is every half minute, are what a log needs.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, track

from sam2_core.redaction import redact
from tasks.observe.progress import DETECT, DOWNLOAD, LOAD, SEGMENT, Listener
from tasks.observe.progress import Progress as RunProgress
from tasks.wording import counted

LOG_INTERVAL_S = 30.0
MOST_BEFORE_THE_END = 0.99
_WIDE = 200  # of tables in a file, where nothing need be broken
# What frames are that are through a stage.
_THROUGH = {
    DOWNLOAD: "fetched", DETECT: "with boxes", SEGMENT: "with masks", LOAD: "in the dataset"
}  # fmt: skip
Item = TypeVar("Item")
_CLOSING = re.compile(r"((?<!\\)\[/[a-z ]*\])")
# What moves on the terminal now: stopped before last words, which it would be drawn over and under.
_moving: list[Callable[[], object]] = []


class _RedactingConsole(Console):
    """A console that redacts secrets from every message."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, texts without secrets."""
        super().print(
            *(_redacted(one) if isinstance(one, str) else one for one in objects), **options
        )


def _redacted(text: str) -> str:
    """Return a text with Rich's markup without secrets; a closing tag is no part of an address."""
    return "".join(one if _CLOSING.fullmatch(one) else redact(one) for one in _CLOSING.split(text))


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


@contextlib.contextmanager
def _moves(stop: Callable[[], object]) -> Iterator[None]:
    _moving.append(stop)
    try:
        yield
    finally:
        if stop in _moving:
            _moving.remove(stop)


def stop_moving() -> None:
    """Leave the terminal to the next output; draw nothing from now on."""
    while _moving:
        _moving.pop()()


@contextlib.contextmanager
def spinning(console: Console, text: str) -> Iterator[None]:
    """Show that something is going on while the block runs."""
    with console.status(text) as status, _moves(status.stop):
        yield


@contextlib.contextmanager
def telling(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current work, on a terminal in one place."""
    if console.is_terminal:
        with console.status(text) as status, _moves(status.stop):
            yield lambda words: status.update(escape(words))
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
    """Hand on items and show how many: on a terminal by a bar, in a log now and then."""
    if console.is_terminal:
        yield from track(items, text, total, console=console, transient=True)
        return
    with telling(console, f"{text}: {total:,}") as tell:
        for done, item in enumerate(items, 1):
            yield item
            tell(f"{text}: {done:,} of {total:,}")


def clock(seconds: float) -> str:
    """Write a time as h:mm:ss, or m:ss where it is less than an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class RunDisplay(Listener):
    """Bars for one run and its stages. They never go back; 100% is the end, and is not shown.

    In the bar of the run a frame counts when it has its masks, and what was labeled before counts
    neither as done nor as left.
    """

    def __init__(self, console: Console, stages: Sequence[str], frames: int) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._frames, self._labeled, self._from_before = frames, 0, 0
        self._done, self._most = dict.fromkeys(stages, 0), 0.0
        self._started_s = self._logged_s = time.monotonic()
        self.bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=None),
            TextColumn("[progress.download]{task.fields[count]}"),
            TextColumn("[progress.data.speed]{task.fields[pace]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._whole = self.bars.add_task("total", total=1.0, count="0%", pace="")
        self._bar_of: dict[str, TaskID] = {
            stage: self.bars.add_task(stage, total=frames or None, worked=0, count="", pace="")
            for stage in stages
        }

    def expected(self, frames: int) -> None:
        """More frames came to light."""
        with self._lock:
            self._frames += frames
            for bar in self._bar_of.values():
                self.bars.update(bar, total=self._frames)

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Move a stage's bar, and that of the run."""
        if stage not in self._bar_of:
            return
        with self._lock:
            # What a second pass does again counts once.
            done = max(self._done[stage], min(self._done[stage] + frames, self._frames or frames))
            self._done[stage] = done
            bar = self.bars.tasks[self._bar_of[stage]]
            worked = bar.fields["worked"] + (0 if kept else frames)
            rate = f"{worked / bar.elapsed:.1f} frames/s" if worked and bar.elapsed else ""
            count = f"{done}/{self._frames or '?'}"
            self.bars.update(bar.id, completed=done, worked=worked, count=count, pace=rate)
            if stage == SEGMENT and kept:
                self._from_before += frames
            elif stage == SEGMENT:
                self._labeled += frames
            self._show_whole()

    def _show_whole(self) -> None:
        now, to_label = time.monotonic(), self._frames - self._from_before
        fraction = self._labeled / to_label if to_label > 0 else float(self._frames > 0)
        fraction = min(fraction, MOST_BEFORE_THE_END)
        self._most = max(self._most, fraction)
        left = ""
        if self._labeled:
            left = f"{clock((now - self._started_s) * (1 - fraction) / fraction)} left"
        count = f"{self._most:.0%}"
        self.bars.update(self._whole, completed=self._most, count=count, pace=left)
        if not self.console.is_terminal and now - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now
            stages = ", ".join(f"{done} {_THROUGH[name]}" for name, done in self._done.items())
            percent = ", ".join(filter(None, [f"{count} done", left]))
            self.console.print(f"{percent}; of {counted(self._frames, 'frame')}: {stages}")

    def finished(self, sequence_id: str, text: str, good: bool) -> None:
        """Print a sequence's line."""
        mark = "[green]✓[/]" if good else "[red]✗[/]"
        self.bars.console.print(f"{mark} [bold]{escape(sequence_id)}[/]  {escape(text)}")


@contextlib.contextmanager
def showing(
    console: Console, progress: RunProgress, stages: Sequence[str], frames: int
) -> Iterator[None]:
    """Show a run's progress while the block runs."""
    display = RunDisplay(console, stages, frames)
    with _moves(display.bars.stop), display.bars, progress.listening(display):
        yield
