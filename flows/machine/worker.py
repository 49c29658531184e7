"""Workers of this machine: one `prefect worker` for each GPU, bound to it, started and stopped.

Each is a plain `prefect worker start`. What that does not do is stop politely: when it is told to
end it kills its flow run within seconds, and the shard lies there until somebody misses it.
Here SIGTERM goes to the flow runs first: they finish the chunk at hand and give their shard back;
then the workers are stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flows.machine import self_test
from flows.machine.offers import named
from flows.machine.refused import note_refused
from flows.machine.self_test import Verdict
from flows.machine.services import NONE_WORKS
from flows.machine.sick import SICK_VARIABLE, sick_note
from sam2_core.backend_choice import TESTED_VARIABLE
from tasks import processes
from tasks.pipeline.stopping import handling

log = logging.getLogger(__name__)
POLL_S = 0.5
LONGEST_PAUSE_S = 60.0
HEALTHY_S = 60.0
STOP_S = 20.0
GIVEN_BACK_WITHIN_S = 2.0
KILLED_WITHIN_S = 5.0


@dataclass
class Slot:
    """A place for one worker.

    Attributes:
        name: of the worker, as Prefect shows it.
        pool: work pool.
        environment: added to this process's.
        tested: whether its device is tested before it starts.
        unlisted: why it is not known which device it would have, "" where it is: it never starts.
        testing: the test, while it runs.
        process: the worker, when it runs.
        scratch: for temporary files of it and its flow runs: Prefect leaves some behind.
        retry_at: when to start it again after it ended.
        pause_s: how long to wait the next time.
        refused: why it takes no work, as its device's last test found; "" where it may.
        registered: name that Prefect knows it by, "" before it was started.

    """

    name: str
    pool: str
    environment: dict[str, str] = field(default_factory=dict)
    tested: bool = False
    unlisted: str = ""
    testing: subprocess.Popen[str] | None = None
    process: subprocess.Popen[bytes] | None = None
    scratch: tempfile.TemporaryDirectory[str] | None = None
    started: float = 0.0
    retry_at: float = 0.0
    pause_s: float = 1.0
    refused: str = ""
    registered: str = ""

    @property
    def alive(self) -> bool:
        """Whether its worker runs."""
        return self.process is not None and self.process.poll() is None

    def verdict(self) -> Verdict | None:
        """Return what the device's test found, starting it; None while it runs."""
        if self.unlisted:
            return Verdict((), self.unlisted)
        if not self.tested:
            return Verdict(("onnxruntime-cpu",))
        if self.testing is None:
            self.testing = subprocess.Popen(
                self_test.command(), env=os.environ | self.environment, stdout=subprocess.PIPE,
                text=True, start_new_session=True,
            )  # fmt: skip
            self.started = time.monotonic()
        if self.testing.poll() is None:
            if time.monotonic() - self.started < self_test.LIMIT_S:
                return None
            self.testing.kill()  # a device that hangs is sick
        try:
            printed, _ = self.testing.communicate(timeout=KILLED_WITHIN_S)
        except subprocess.TimeoutExpired:  # the driver holds it: no other is begun beside it
            return Verdict((), "its self-test hangs in the driver and cannot be killed")
        code, self.testing = self.testing.returncode, None
        return Verdict.parse(printed, code)

    def end_test(self) -> None:
        """End the device's test, where it runs; one that the driver holds is left to it."""
        if self.testing is not None:
            self.testing.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.testing.communicate(timeout=KILLED_WITHIN_S)
            self.testing = None

    @property
    def note(self) -> Path:
        """Where its flow runs say that the device is lost."""
        return Path(self.scratch.name if self.scratch else "", "sick.json")

    def start(self, offers: Sequence[str] = ()) -> None:
        """Start the worker; its name tells what it offers."""
        self.registered = named(self.name, offers)
        command = [
            sys.executable, "-m", "flows.machine.prefect_worker", "--pool", self.pool,
            "--name", self.registered, "--type", "process", "--limit", "1",
            "--no-create-pool-if-not-found",
        ]  # fmt: skip
        if self.scratch is None:
            self.scratch = tempfile.TemporaryDirectory(
                prefix="autolabel-worker-", ignore_cleanup_errors=True
            )
        environment = os.environ | self.environment | {"TMPDIR": self.scratch.name}
        if self.tested:
            self.note.unlink(missing_ok=True)
            environment[TESTED_VARIABLE] = ",".join(offers)
            environment[SICK_VARIABLE] = str(self.note)
        # A session of its own: Ctrl-C is for us, who tell the flow run first.
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, start_new_session=True
        )
        self.started = time.monotonic()

    def flow_runs(self) -> list[int]:
        """Process ids of the worker's flow runs."""
        import psutil

        with contextlib.suppress(psutil.Error):
            if self.process:
                return [child.pid for child in psutil.Process(self.process.pid).children()]
        return []


def run_workers(places: list[Slot], grace_s: float) -> None:
    """Run workers until SIGTERM or Ctrl-C, restarting those that end by themselves.

    Args:
        places: what to start.
        grace_s: the longest to wait for flow runs to give their shards back.

    """
    stop, told = threading.Event(), dict[str, str]()
    with handling(lambda *_: stop.set(), signal.SIGTERM, signal.SIGINT):
        while not stop.is_set():
            for place in places:
                _keep_alive(place)
            told = _tell_refused(places, told)
            stop.wait(POLL_S)
        stop_workers(places, grace_s)
    note_refused({})


def _tell_refused(places: list[Slot], told: dict[str, str]) -> dict[str, str]:
    """Keep who is refused, where that changed, and say if all are: `up` waits for nothing then.

    Returns:
        Reasons by name, to be given again the next time.

    """
    refused = {place.name: place.refused for place in places if place.refused}
    if refused != told:
        note_refused(refused)
    if len(refused) == len(places) > len(told):
        reasons = (f"{name}: {reason}" for name, reason in refused.items())
        log.error("%s%s", NONE_WORKS, "; ".join(reasons))
    return refused


def _keep_alive(place: Slot) -> None:
    now = time.monotonic()
    if place.alive and place.tested:
        end_if_sick(place)
    if place.alive or now < place.retry_at:
        return
    if place.process is not None:  # it ended: at once again after a healthy life, else slower
        healthy = now - place.started > HEALTHY_S
        place.pause_s = 1.0 if healthy else min(place.pause_s * 2, LONGEST_PAUSE_S)
        place.process = None
        place.retry_at = now + place.pause_s
        return
    verdict = place.verdict()
    if verdict is None:
        return
    place.refused = verdict.problem
    if verdict.problem:
        place.pause_s = min(place.pause_s * 2, LONGEST_PAUSE_S)
        place.retry_at = time.monotonic() + place.pause_s
        log.error("%s takes no work: %s", place.name, verdict.problem)
        return
    place.start(verdict.offers)


def end_if_sick(place: Slot) -> None:
    """End a worker whose flow run has lost the device, before it takes another one."""
    process, why = sick_note(place.note)
    if not why or place.process is None:
        return
    deadline = time.monotonic() + GIVEN_BACK_WITHIN_S
    while processes.born(process) is not None and time.monotonic() < deadline:
        time.sleep(processes.POLL_S)  # it gives its shard back
    if processes.born(process) is not None and time.time() - place.note.stat().st_mtime < STOP_S:
        return  # the driver holds it: the other workers are looked after meanwhile
    log.error("%s has lost its device, which is tested before it takes more: %s", place.name, why)
    processes.end(place.process, STOP_S)


def stop_workers(places: list[Slot], grace_s: float) -> None:
    """Ask the flow runs to give their shards back, then stop the workers; kill what does not."""
    asked: set[int] = set()
    deadline = time.monotonic() + grace_s
    waiting = [place for place in places if place.alive]
    while waiting:
        for place in tuple(waiting):
            runs = place.flow_runs() if place.alive else []
            for run in set(runs) - asked:
                _send(run, signal.SIGTERM)
                asked.add(run)
            if time.monotonic() > deadline:
                for run in runs:
                    _send(run, signal.SIGKILL)
                runs = []
            if not runs:
                if place.process is not None:
                    processes.end(place.process, STOP_S)
                if place.scratch is not None:
                    place.scratch.cleanup()
                waiting.remove(place)
        time.sleep(0.1)
    for place in places:
        place.end_test()


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
