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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


class Pace:
    """How much of a run is done, and how long the rest takes.

    A stage counts as much as it took in the chunks that are done; all alike before the first. What
    was there before counts neither as done nor as left. Loading is left out: it comes in leaps.
    """

    def __init__(self, stages: Sequence[str]) -> None:
        self._spent_s = {stage: 0.0 for stage in stages if stage != LOAD}
        self._worked, self._kept = dict.fromkeys(self._spent_s, 0), dict.fromkeys(self._spent_s, 0)
        self.frames, self._began_s = 0, 0.0

    def advance(self, stage: str, frames: int, kept: bool, now_s: float) -> None:
        """Frames are through a stage."""
        if stage not in self._spent_s:
            return
        (self._kept if kept else self._worked)[stage] += frames
        self._began_s = self._began_s or now_s

    def spend(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of a finished chunk."""
        for stage in self._spent_s.keys() & seconds.keys():
            self._spent_s[stage] += seconds[stage]

    def fraction(self) -> float:
        """Part of the work that is done, 0 to 1."""
        weights = self._spent_s if any(self._spent_s.values()) else dict.fromkeys(self._spent_s, 1)
        done = sum(weights[stage] * self._worked[stage] for stage in weights)
        whole = sum(weights[one] * max(self.frames - self._kept[one], 0) for one in weights)
        return min(done / whole, 1.0) if whole else 1.0 if self.frames else 0.0

    def left(self, now_s: float) -> str:
        """Say how long the rest takes; "" before the first chunk is done."""
        done = self.fraction()
        if not done or not any(self._spent_s.values()):
            return ""
        return f"{clock((now_s - self._began_s) * (1 - done) / done)} left"


class RunDisplay(Listener):
    """Bars for one run and its stages. They never go back; 100% is the end, and is not shown."""

    def __init__(self, console: Console, stages: Sequence[str], frames: int) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._logged = time.monotonic()
        self._pace = Pace(stages)
        self._pace.frames = frames
        self._done, self._most = dict.fromkeys(stages, 0), 0.0
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
            self._pace.frames += frames
            for bar in self._bar_of.values():
                self.bars.update(bar, total=self._pace.frames)

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Move a stage's bar, and that of the whole."""
        if stage not in self._bar_of:
            return
        with self._lock:
            now, total = time.monotonic(), self._pace.frames
            # What a second pass does again counts once.
            done = max(self._done[stage], min(self._done[stage] + frames, total or frames))
            self._done[stage] = done
            self._pace.advance(stage, frames, kept, now)
            bar = self.bars.tasks[self._bar_of[stage]]
            worked = bar.fields["worked"] + (0 if kept else frames)
            rate = f"{worked / bar.elapsed:.1f} frames/s" if worked and bar.elapsed else ""
            count = f"{done}/{total or '?'}"
            self.bars.update(bar.id, completed=done, worked=worked, count=count, pace=rate)
            left = self._pace.left(now)
            self._most = max(self._most, min(self._pace.fraction(), MOST_BEFORE_THE_END))
            count = f"{self._most:.0%}"
            self.bars.update(self._whole, completed=self._most, count=count, pace=left)
            if not self.console.is_terminal and now - self._logged >= LOG_INTERVAL_S:
                self._logged = now
                done_by = ", ".join(f"{n} {_THROUGH[name]}" for name, n in self._done.items())
                percent = ", ".join(filter(None, [f"{count} done", left]))
                self.console.print(f"{percent}; of {counted(total, 'frame')}: {done_by}")

    def chunk_done(self, seconds: Mapping[str, float], instances: int) -> None:
        """From the first chunk on it is known what a stage costs."""
        with self._lock:
            self._pace.spend(seconds)

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
