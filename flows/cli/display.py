"""What a person sees on the terminal while a run goes on: one bar per stage, one line per sequence.

All of it goes to stderr; stdout belongs to `--json`. Where stderr is no terminal there are no bars:
the lines, and how far it is every half minute, are what a log needs.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sam2_core.redaction import redact
from tasks.observe.progress import listening
from tasks.wording import counted

LOG_INTERVAL_S = 30.0


class _RedactingConsole(Console):
    """A console on which no secret appears, whoever made the message."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, texts without secrets."""
        super().print(*(redact(one) if isinstance(one, str) else one for one in objects), **options)


def stderr_console() -> Console:
    """Return a console on stderr that never wraps or colours what is not a terminal."""
    return _RedactingConsole(stderr=True, highlight=False, soft_wrap=True)


def as_typed() -> str:
    """Return how this command is called from here, for people to copy: `make` sets no PATH."""
    if shutil.which("autolabel"):
        return "autolabel"
    program = Path(sys.argv[0])
    with contextlib.suppress(ValueError):
        program = program.resolve().relative_to(Path.cwd())
    return str(program) if program.name == "autolabel" else "autolabel"


class RateColumn(ProgressColumn):
    """Frames per second, of the frames that needed work."""

    def render(self, task: Task) -> Text:
        """Return the rate, or nothing before there is one."""
        worked = task.fields.get("worked", 0)
        elapsed = task.finished_time or task.elapsed or 0.0
        if not worked or not elapsed:
            return Text("", style="progress.data.speed")
        return Text(f"{worked / elapsed:.1f} frames/s", style="progress.data.speed")


class RunDisplay:
    """Bars for the stages of one run; a `tasks.observe.progress.Listener`."""

    def __init__(self, console: Console, stages: Sequence[str], frames: int) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._total, self._logged = frames, time.monotonic()
        self._done = dict.fromkeys(stages, 0)
        self.bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            RateColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar_of: dict[str, TaskID] = {
            stage: self.bars.add_task(stage, total=frames or None, worked=0) for stage in stages
        }

    def expected(self, frames: int) -> None:
        """More frames came to light."""
        with self._lock:
            self._total += frames
            for bar in self._bar_of.values():
                self.bars.update(bar, total=self._total)

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Move a stage's bar."""
        bar = self._bar_of.get(stage)
        if bar is None:
            return
        with self._lock:
            self._done[stage] += frames
            worked = self.bars.tasks[bar].fields["worked"] + (0 if kept else frames)
            self.bars.update(bar, advance=frames, worked=worked)
            self._log_now_and_then(stage)

    def _log_now_and_then(self, stage: str) -> None:
        now = time.monotonic()
        if self.console.is_terminal or now - self._logged < LOG_INTERVAL_S:
            return
        self._logged = now
        done = ", ".join(f"{name} {count}" for name, count in self._done.items())
        self.console.print(f"of {counted(self._total, 'frame')}: {done}")

    def chunk_done(self, seconds: Mapping[str, float], instances: int) -> None:
        """Bars move frame by frame."""

    def finished(self, sequence_id: str, text: str, good: bool) -> None:
        """Print a sequence's line."""
        mark = "[green]✓[/]" if good else "[red]✗[/]"
        self.bars.console.print(f"{mark} [bold]{escape(sequence_id)}[/]  {escape(text)}")


@contextlib.contextmanager
def showing(console: Console, stages: Sequence[str], frames: int) -> Iterator[None]:
    """Show a run's progress while the block runs."""
    display = RunDisplay(console, stages, frames)
    with display.bars, listening(display):
        yield
