"""A place for one worker: tested, started, and what its flow runs leave behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flows.machine import gpus, self_test
from flows.machine.offers import named
from flows.machine.self_test import Verdict
from flows.machine.sick import NOTHING, SICK_VARIABLE, Note, sick_note, unfailing_folder
from sam2_core.backend_choice import TESTED_VARIABLE
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.store.private_files import OwnFolder

KILLED_WITHIN_S = 5.0
# The worker ends with this process, even with one that was killed: it would take shards beside
# those of the next one, and nobody would know of it.
LAUNCHED = (sys.executable, "-m", "flows.machine.launched", "0")
# A storage that is down for everybody would stop this worker for good, and another one may be well.
STORAGE_AWAITED_S = 600.0
ON_THE_PROCESSOR = Verdict(("onnxruntime-cpu",))


@dataclass
class Slot:
    """A place for one worker.

    Attributes:
        name: of the worker, as Prefect shows it.
        pool: work pool.
        environment: added to this process's.
        tested: whether its device is tested before it starts.
        unlisted: why it is not known which device it would have, "" where it is: it never starts.
        listed: makes the places that take this one's, once it is known; None where it stays.
        instead: those places.
        testing: the test, while it runs.
        process: the worker, when it runs.
        left: process ids and births of flow runs whose worker has died under them.
        left_until: when they are killed.
        scratch: for temporary files of it and its flow runs: Prefect leaves some behind.
        retry_at: when to start it again after it ended.
        pause_s: how long to wait the next time.
        noted: what its flow runs have noted of this machine, until a test has passed.
        noted_at: when.
        refused: why it takes no work, as the last test found; "" where it may.
        registered: name that Prefect knows it by, "" before it was started.

    """

    name: str
    pool: str
    environment: dict[str, str] = field(default_factory=dict)
    tested: bool = False
    unlisted: str = ""
    listed: Callable[[Sequence[str]], list[Slot]] | None = None
    instead: list[Slot] = field(default_factory=list)
    testing: subprocess.Popen[str] | None = None
    process: subprocess.Popen[bytes] | None = None
    left: dict[int, float] = field(default_factory=dict)
    left_until: float = 0.0
    scratch: OwnFolder | None = None
    started: float = 0.0
    retry_at: float = 0.0
    pause_s: float = 1.0
    noted: Note = NOTHING
    noted_at: float = 0.0
    refused: str = ""
    registered: str = ""

    @property
    def alive(self) -> bool:
        """Whether its worker runs."""
        return self.process is not None and self.process.poll() is None

    def verdict(self) -> Verdict | None:
        """Return what the test of its device, or of its machine, found, starting it.

        None while the test runs, and once other places take this one's.
        """
        try:
            return self._looked_at()
        except AutolabelError as error:  # nvidia-smi says nothing that is of use
            return Verdict((), str(error))

    def _looked_at(self) -> Verdict | None:
        if self.unlisted and not (self.refused and self.listed):
            return Verdict((), self.unlisted)
        self._forget_storages()
        if not (self.unlisted or self.tested or self.noted.why):
            return ON_THE_PROCESSOR
        if self.testing is None:
            self.testing, self.started = self._begun_test(), time.monotonic()
        hangs = self.testing.poll() is None
        if hangs:
            if time.monotonic() - self.started < self._limit_s():
                return None
            self.testing.kill()  # a device that hangs is sick
        try:
            printed, _ = self.testing.communicate(timeout=KILLED_WITHIN_S)
        except subprocess.TimeoutExpired:  # the driver holds it: no other is begun beside it
            where = " or a file system" if self.noted.why else ""
            what = "nvidia-smi" if self.unlisted else "its self-test"
            return Verdict((), f"{what} hangs in the driver{where} and cannot be killed")
        code, self.testing = self.testing.returncode, None
        if not self.unlisted:
            return Verdict.parse(printed, code)
        if hangs:
            raise gpus.hangs()
        self._relisted(printed, code)
        return None

    def _begun_test(self) -> subprocess.Popen[str]:
        if self.unlisted:
            return gpus.ask()
        environment = self.environment | {"TMPDIR": self.folder()}
        if not self.tested:  # its device is none of its business
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return subprocess.Popen(
            self_test.command(self.noted), env=os.environ | environment, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip

    def _limit_s(self) -> float:
        return gpus.LISTED_WITHIN_S if self.unlisted else self_test.LIMIT_S

    def _relisted(self, printed: str, exit_code: int) -> None:
        """Make the places of the GPUs that are listed now."""
        found = gpus.gpus_told(printed, exit_code)
        self.instead = self.listed(found) if self.listed else []

    def _forget_storages(self) -> None:
        """Leave storages out of the tests where they have been waited for long enough."""
        named = self.noted.read or self.noted.written
        if named and time.monotonic() - self.noted_at > STORAGE_AWAITED_S:
            self.noted = replace(self.noted, read=(), written=())
            self.end_test()

    def end_test(self) -> None:
        """End the test, where it runs; one that the driver holds is left to it."""
        if self.testing is not None:
            self.testing.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.testing.communicate(timeout=KILLED_WITHIN_S)
            self.testing = None

    def folder(self) -> str:
        """Where its worker's temporary files are."""
        if self.scratch is None:
            self.scratch = OwnFolder("autolabel-worker-")
        return str(self.scratch.path)

    @property
    def note(self) -> Path:
        """Where its flow runs say that this machine has failed: in memory, if that is possible."""
        folder = Path(self.folder())
        unfailing = unfailing_folder()
        return unfailing / f"sick-{folder.name}.json" if unfailing else folder / "sick.json"

    def hear(self) -> Note:
        """Return what its flow runs have noted, to be tested before it starts again."""
        note = sick_note(self.note)
        if note.why and not self.noted.why:
            self.noted, self.noted_at = note, time.monotonic()
        return note

    def start(self, offers: Sequence[str] = ()) -> None:
        """Start the worker; its name tells what it offers."""
        self.registered = named(self.name, offers)
        command = [
            *LAUNCHED, sys.executable, "-m", "prefect", "worker", "start", "--pool", self.pool,
            "--name", self.registered, "--type", "process", "--limit", "1",
            "--no-create-pool-if-not-found",
        ]  # fmt: skip
        own = {"TMPDIR": self.folder(), SICK_VARIABLE: str(self.note)}
        if self.tested:
            own[TESTED_VARIABLE] = ",".join(offers)
        self.note.unlink(missing_ok=True)
        self.noted = NOTHING
        # A session of its own: Ctrl-C is for us, who tell the flow run first.
        self.process = subprocess.Popen(
            command, env=os.environ | self.environment | own, stdin=subprocess.DEVNULL,
            start_new_session=True, pass_fds=(self.scratch.lock.fileno(),) if self.scratch else (),
        )  # fmt: skip
        self.started = time.monotonic()

    def flow_runs(self) -> list[int]:
        """Process ids of the worker's flow runs, also of those that it has died under."""
        import psutil

        found = [one for one, born in self.left.items() if processes.born(one) == born]
        with contextlib.suppress(psutil.Error):
            if self.process and self.alive:
                found += [child.pid for child in psutil.Process(self.process.pid).children()]
        return found

    def find_left(self) -> None:
        """Find the flow runs that a worker has died under, which go on: in its session still."""
        import psutil

        self.left = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                in_session = self.process and os.getsid(process.pid) == self.process.pid
                if in_session and process.environ().get("TMPDIR") == self.folder():
                    born = processes.born(process.pid)
                    self.left |= {process.pid: born} if born is not None else {}

    def clean(self) -> None:
        """Remove what it has left, when nothing of it runs any more."""
        if self.scratch is not None:
            self.note.unlink(missing_ok=True)
            self.scratch.remove()
            self.scratch = None
