"""Flow runs in a process that waited for them: it is as one that was just started."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.utilities import processutils

from flows.machine import spare_runs
from flows.machine.spare_runs import SpareRuns, install, is_engine
from sam2_core.number_variables import SPARE_PROCESS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

ENGINE = [sys.executable, "-m", "prefect.engine"]
# Tells that it waits, and does what the line says, or nothing without one.
WAITS = """
import json, os, sys
print("ready", flush=True)
line = sys.stdin.readline()
given = json.loads(line)["environment"] if line else {"END": "0"}
os._exit(int(given["END"]))
"""


def environment(**more):
    return {"PATH": str(Path(sys.executable).parent), **more}


async def opened(spares, **more):
    """Open the process of a run and wait for its end; returns its id and its exit code."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    async with spares.open_process(ENGINE, env=environment(**more), cwd="/", **streams) as process:
        return process.pid, await process.wait()


async def waiting(spares):
    """Wait for the process of the next run; returns it."""
    await spares._beginning
    process, _ = spares._ready
    assert (await process.stdout.receive()) == b"ready\n"
    return process


def checked(spares, check):
    """Run a check; what waits at its end is ended."""

    async def both():
        await check()
        if spares._beginning:
            await spares._beginning
        process, _ = spares._ready
        process.kill()
        await process.aclose()

    asyncio.run(both())


@pytest.fixture
def spares(monkeypatch):
    """Runs whose new processes end with 3, and those that waited as they are told."""
    monkeypatch.setattr(spare_runs, "BEGIN_AFTER_S", 0.0)
    monkeypatch.setattr(spare_runs, "SPARE", [sys.executable, "-I", "-c", WAITS])

    def plain(command, **options):
        assert command == ENGINE
        return processutils.open_process([sys.executable, "-I", "-c", "exit(3)"], **options)

    return SpareRuns(plain)


def test_a_run_gets_the_process_that_waits_for_it_and_ends_with_its_code(spares):
    async def check():
        assert (await opened(spares, END="7"))[1] == 3  # the first run waits for a new one
        first = await waiting(spares)
        own = {"PREFECT__FLOW_RUN_ID": "one"}  # which every run has another of
        assert await opened(spares, END="7", **own) == (first.pid, 7)
        second = await waiting(spares)
        assert second.pid != first.pid  # one process, one run

    checked(spares, check)


def test_a_run_with_another_environment_gets_a_new_process(spares):
    async def check():
        await opened(spares, END="7")
        process = await waiting(spares)
        assert (await opened(spares, END="8"))[1] == 3
        assert process.returncode is not None  # nobody needs it any more
        assert await opened_later(spares) == 8

    async def opened_later(spares):
        await waiting(spares)
        return (await opened(spares, END="8"))[1]

    checked(spares, check)


def test_a_process_that_died_waiting_costs_no_run(spares):
    async def check():
        await opened(spares, END="7")
        process = await waiting(spares)
        os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # noticed by now
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert (await opened(spares, END="7"))[1] == 3

    checked(spares, check)


def test_a_run_that_is_killed_ends_as_such(spares):
    async def check():
        await opened(spares, END="0")
        process = await waiting(spares)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process.send_signal(signal.SIGSTOP)
        own = environment(END="0")
        async with spares.open_process(ENGINE, env=own, cwd="/", **streams) as run:
            assert run.pid == process.pid
            run.kill()
            assert await run.wait() == -signal.SIGKILL

    checked(spares, check)


def test_only_the_engine_of_this_python_is_a_run(tmp_path):
    here = environment()
    assert is_engine(ENGINE, here)
    assert is_engine(["python", "-m", "prefect.engine"], here)
    assert not is_engine([*ENGINE, "more"], here)
    assert not is_engine(["git", "status"], here)
    (tmp_path / "python").symlink_to(sys.executable)
    assert not is_engine(["python", "-m", "prefect.engine"], {"PATH": str(tmp_path)})


def test_nothing_changes_where_it_is_not_wanted(monkeypatch):
    before = processutils.open_process
    for value in (None, "0", ""):
        if value is None:
            monkeypatch.delenv(SPARE_PROCESS.name, raising=False)
        else:
            monkeypatch.setenv(SPARE_PROCESS.name, value)
        install()
        assert processutils.open_process is before


def shells_environment(folder):
    """A shell's, whatever tests before this one have told Prefect of its logs."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    return own | {"HOME": str(folder)}


def spare(line, folder):
    """Run the real one with what it is given before its input is closed."""
    started = shells_environment(folder) | {"PREFECT__FLOW_RUN_ID": "of another run"}
    return subprocess.run(
        [sys.executable, "-m", "flows.machine.spare"], input=line, env=started,
        capture_output=True, timeout=200, check=False,
    )  # fmt: skip


@pytest.mark.ci
def test_it_becomes_the_engine_of_the_run_that_it_is_given(tmp_path):
    own = shells_environment(tmp_path) | {"PREFECT__FLOW_RUN_ID": "no id"}
    given = json.dumps({"environment": own, "folder": str(tmp_path)}).encode()
    done = spare(given + b"\n", tmp_path)
    assert done.returncode == 1
    # Prefect's own message, which the environment at its start would not have led to.
    assert b"badly formed hexadecimal UUID string" in done.stderr
    assert b"Invalid flow run id. Received arguments: ['" in done.stderr
    # Its worker died while it wrote: that is no run.
    assert spare(given[:-20], tmp_path).returncode == 0


ENDS = """
import atexit
from flows.machine.spare import Ending
ending = Ending()
class Held:
    def __del__(self): print("taken apart")
held = Held()
held.itself = held
atexit.register(print, "registered")
ending.code = {code}
print("said", end=" ")
"""


@pytest.mark.parametrize(("code", "said"), [("5", "said registered\n"), ("None", "taken apart\n")])
def test_a_run_ends_with_its_code_after_all_that_is_to_be_done_then(code, said):
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(code=code)], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == (5 if code == "5" else 0)
    assert done.stdout.endswith(said)
