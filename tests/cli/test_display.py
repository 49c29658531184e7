"""What a terminal shows: how far a run is, how long it takes, and nothing after its last words."""

import io
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

from rich.console import Console

from flows.cli import display
from flows.cli.display import RunDisplay, telling, tracked
from tests.conftest import REPOSITORY


def test_frames_count_when_they_have_masks_and_those_from_before_do_not(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    said = []
    shown = RunDisplay(Console(), said.append, ["download", "segment"], 12)
    for stage in ("download", "segment"):
        shown.advanced(stage, 8, kept=True)
    for stage in ("download", "segment"):
        clock[0] += 5
        shown.advanced(stage, 1, kept=False)
    told = [line.partition(";")[0] for line in said]
    assert told == ["0% done"] * 3 + ["25% done, 0:00:30 left"]
    assert display.clock(14_410) == "4:00:10"


def test_progress_never_goes_back_and_is_not_whole_before_the_end():
    told = []
    shown = RunDisplay(Console(), told.append, ["download", "segment"], 4)
    for stage in ("download", "segment", "segment"):  # the last: a second pass
        shown.advanced(stage, 4, kept=False)
        shown.expected(4)  # of a video that was opened
    shown.advanced("segment", 0, kept=False)
    percents = [int(line.partition("%")[0]) for line in told]
    assert percents == sorted(percents)
    assert percents[-1] < 100
    assert re.match(r"\d+% done, \d:\d\d:\d\d left; of ", told[-1])
    assert told[-1].endswith("of 16 frames: 4 fetched, 8 with masks")


def test_a_log_says_now_and_then_how_far_it_is(monkeypatch):
    monkeypatch.setattr(display, "LOG_INTERVAL_S", 0)
    console = Console(file=io.StringIO())
    assert list(tracked(console, "abc", "evaluating images", 3)) == list("abc")
    with telling(console, "preparing") as tell:
        tell("measuring: encoder [1]")
    assert console.file.getvalue().splitlines() == [
        "evaluating images: 3", "evaluating images: 1 of 3, 0:00:00 left",
        "evaluating images: 2 of 3, 0:00:00 left", "evaluating images: 3 of 3, 0:00:00 left",
        "preparing", "measuring: encoder [1]",
    ]  # fmt: skip


CHILD = """
import threading, time
from flows.cli.display import showing, stderr_console
from flows.cli.label import stopping_at_once
from tasks.observe.progress import Progress

progress = Progress()

def work():
    while True:
        progress.advance("download")
        time.sleep(0.01)

console = stderr_console()
with stopping_at_once(console), showing(console, progress, ["download"], 10**6):
    threading.Thread(target=work, daemon=True).start()
    threading.Event().wait()
"""


def test_after_ctrl_c_nothing_is_drawn_or_said_twice():
    reading, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        cwd=REPOSITORY,
    )  # fmt: skip
    os.close(terminal)
    seen = b""
    while b"fetched" not in seen:
        seen += os.read(reading, 4096)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    try:
        while more := os.read(reading, 4096):
            seen += more
    except OSError:  # the terminal's end
        pass
    assert process.wait() == 128 + signal.SIGINT
    _, _, after = seen.partition(b"stopped; finished labels are kept")
    assert after
    assert not re.search(b"stopped|fetched|done", after)
    assert b"Traceback" not in seen


def test_markup_is_no_part_of_an_address_and_hides_no_password(capsys):
    from rich.markup import escape

    from flows.cli.display import stderr_console

    console = stderr_console()
    console.print("x [dim](by grpc://one:8001, grpc://two:8001)[/], [bold]s3://a/b[/bold]")
    odd = escape("https://me:word[/]of@host/x")
    console.print(f"[dim]{odd}[/] [dim]grpc://me:word@host[/]")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "x (by grpc://one:8001, grpc://two:8001), s3://a/b"
    assert "word" not in second
