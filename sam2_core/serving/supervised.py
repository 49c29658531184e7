"""A server that is watched: started anew when a process of its models dies, ended when told to."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from sam2_core.serving.repository import models_in
from sam2_core.serving.server_process import STOP_S, RunningServer
from sam2_core.types import AutolabelError

_LOOK_S = 0.5


def _versions_in(repository: Path) -> dict[Path, int]:
    found = {}
    for path in repository.glob("*/*/model.py"):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


class SupervisedServer:
    """A Triton server and the processes of its models.

    Triton goes on without a process that was killed: it says that it is healthy, and refuses every
    request to that model.

    Args:
        start: starts a server, and another one of the same addresses after it.
        repository: of its models; versions that appear in it are loaded, without a pause.
        loading_s: as `RunningServer.wait_ready` takes it.
        tell: takes what happens.

    Attributes:
        told_to_end: whether `end` was called.

    """

    def __init__(
        self,
        start: Callable[[], RunningServer],
        repository: Path,
        loading_s: float,
        tell: Callable[[str], object],
    ) -> None:
        self._start, self._loading_s, self._tell = start, loading_s, tell
        self._repository = repository
        self._seen = self._loaded = _versions_in(repository)
        self.server = start()
        self.told_to_end = False
        self._zombies: set[int] = set()

    def end(self) -> None:
        """Let the server end; at once when told a second time. For signal handlers."""
        if self.told_to_end:
            self.server.kill()
            return
        self.told_to_end = True
        self.server.process.terminate()

    def wait_ready(self) -> None:
        """Wait until the models are loaded; returns early when told to end."""
        try:
            self.server.wait_ready(self._loading_s)
        except AutolabelError:
            if not self.told_to_end:
                raise

    def wait(self) -> None:
        """Wait until the server has ended because it was told to.

        Raises:
            AutolabelError: it has ended by itself, or does not start anew.

        """
        while not self.told_to_end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.server.process.wait(_LOOK_S)
                if not self.told_to_end:
                    raise AutolabelError(self.server.why_ended(status))
            if self._has_dead_models():
                self._start_anew()
            self._load_what_changed()
        # Triton may wait for ever for a request that is being computed, or crash in its exit.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.process.wait(STOP_S)
        self.server.stop(now=True)

    def _load_what_changed(self) -> None:
        """Load versions that were written, and let go of those that were removed."""
        before, self._seen = self._seen, _versions_in(self._repository)
        if self._seen != before or self._seen == self._loaded:  # still being written, or known
            return
        self._loaded = self._seen
        try:
            for model in models_in(self._repository):
                self.server.load(model, self._loading_s)
            self._tell("the versions of models that changed are loaded")
        except AutolabelError as error:
            if not self.told_to_end:
                self._tell(f"{error}; what was loaded before goes on")

    def _has_dead_models(self) -> bool:
        """Tell whether a process of a model has ended and Triton has not noticed since."""
        found: set[int] = set()
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.server.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.status() == psutil.STATUS_ZOMBIE:
                        found.add(child.pid)
        stayed, self._zombies = found & self._zombies, found
        return bool(stayed)

    def _start_anew(self) -> None:
        self._tell(
            "a model's process has died: the server starts anew (where memory was too small, the "
            "kernel's log says so: dmesg)"
        )
        self.server.stop(now=True)
        self._zombies = set()
        if self.told_to_end:
            return
        self.server = self._start()
        if self.told_to_end:  # meanwhile: the signal met the one before
            self.server.kill()
            return
        self.wait_ready()
        if not self.told_to_end:
            self._tell("ready again")
