"""A process that does steps for a run: `python -m tasks.pipeline.step_process DESCRIPTOR`.

It reads what to do from a pipe and writes back what the steps tell, log and return. It ends when it
is told to or the pipe is closed, as by the end of the run's process; signals are for that one.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from sam2_core import redaction
from sam2_core.backend_choice import cuda_devices
from sam2_core.library_messages import preload_cuda
from sam2_core.machine_errors import causes, is_machine_error
from sam2_core.types import AutolabelError, MachineError
from tasks.dataset.lazy_imports import import_around_fiftyone
from tasks.errors import told
from tasks.observe.progress import Listener, Progress
from tasks.pipeline.chunk import Job
from tasks.pipeline.step_interpreters import LOADER, Expected
from tasks.pipeline.step_pipe import UNHEARD
from tasks.pipeline.tools import Tools
from tasks.pipeline.warm import warm_in_background, warm_up

# Steps wait for their turn with the device and for storage: more of them than cores.
AT_ONCE = 16
# What its steps were seen to import; nothing of Prefect, which would take over what is logged here.
AHEAD = (
    "cv2", "onnxruntime", "simplejpeg", "PIL.JpegImagePlugin", "PIL.PngImagePlugin", "numpy.ma",
    "pyarrow.parquet", "pyarrow.dataset", "s3fs", "trackforge", "sam2_core.trust.certify",
    "tasks.frames.images", "tasks.boxes.detect", "tasks.boxes.imported", "tasks.masks.segment",
    "tasks.pipeline.check", "tasks.pipeline.track",
)  # fmt: skip
Send = Callable[[str, Any], None]
log = logging.getLogger(__name__)


class _Relay(Listener):
    """Hands on how far a step has come."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Hand it on."""
        self._send("advanced", (stage, frames, kept))

    def chunk_done(self, seconds: Mapping[str, float], instances: int) -> None:
        """Hand it on."""
        self._send("chunk_done", (dict(seconds), instances))


class _LogRelay(logging.Handler):
    """Hands on what is logged; the run's process decides where it goes."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.INFO)
        self._send_on = send

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it on, without its traceback."""
        self._send_on("log", (record.name, record.levelno, record.getMessage()))


class Worker:
    """What the process does.

    Args:
        connection: to the run's process.
        job: what steps get first; None where they get none.

    """

    def __init__(self, connection: Connection, job: Job | None) -> None:
        self._connection, self._job = connection, job
        self._sending = threading.Lock()

    def serve(self) -> NoReturn:
        """Do what comes, until nothing more will."""
        _log_through(_LogRelay(lambda kind, value: self._send(0, kind, value)))
        if self._job is not None:
            warm_in_background(self._job)
        pool = ThreadPoolExecutor(AT_ONCE, "step")
        while True:
            try:
                asked = self._connection.recv()
            except (EOFError, OSError):
                asked = None
            if asked is None:
                _leave()
            pool.submit(self._do, *asked)

    def _send(self, number: int, kind: str, value: Any) -> None:
        data = pickle.dumps((number, kind, value))
        with self._sending:
            self._connection.send_bytes(data)

    def _do(self, number: int, step: Callable[..., Any], given: tuple[Any, ...]) -> None:
        def send(kind: str, value: Any) -> None:
            self._send(number, kind, value)

        try:
            send("done", self._result(step, given, send))
        except BaseException as error:  # noqa: BLE001 - raised where the step was asked for
            try:
                send("failed", carried(error))
            except BaseException as unsent:  # noqa: BLE001 - nobody would hear it any more
                words = f"{step.__name__}: {type(error).__name__}, untold: {told(unsent)}\n"
                with contextlib.suppress(OSError):
                    sys.stderr.write(words)
                os._exit(UNHEARD)  # whoever waits for the step learns at least that

    def _result(self, step: Callable[..., Any], given: tuple[Any, ...], send: Send) -> Any:
        if self._job is None:
            return step(*given)
        tools = copy.copy(self._job.tools)  # the same models; progress goes through the pipe
        tools.progress = Progress()
        with tools.progress.listening(_Relay(send)):
            return step(replace(self._job, tools=tools), *given)


def carried(error: BaseException) -> list[BaseException]:
    """Return an error and its causes as they can be sent; what cannot is told in words."""
    chain: list[BaseException] = []
    for one in causes(error):
        try:
            if not isinstance(one, Exception):  # such as SystemExit: it ends no run
                raise TypeError(type(one))
            chain.append(pickle.loads(pickle.dumps(one)))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - libraries' errors want whatever they want
            kind = MachineError if is_machine_error(one) else AutolabelError
            chain.append(kind(told(one)))
    return chain


def _log_through(handler: logging.Handler) -> None:
    redaction.install()
    logging.getLogger().addHandler(handler)
    for name in ("sam2_core", "tasks"):
        logging.getLogger(name).setLevel(logging.INFO)


def _leave() -> NoReturn:
    if "tasks.dataset.database" in sys.modules:
        from tasks.dataset.database import release_database

        release_database()
    os._exit(0)


def prepared(expected: Expected) -> Tools:
    """Import what a run will probably need; return what is loaded for it, if anything is.

    What fails here fails again, and is told, in the run.
    """
    tools = Tools()
    try:
        for name in AHEAD:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        if expected.model.backend == "torch":
            importlib.import_module("torch")
        elif expected.model.backend in ("onnxruntime-cuda", "tensorrt"):
            preload_cuda()
        cuda_devices()  # the driver takes a while to find them; none is used by that
        if expected.load and expected.model.backend != "triton":  # whose device is elsewhere
            warm_up(tools, expected.model, expected.detector, expected.detector_stamp)
    except Exception as error:  # noqa: BLE001
        log.debug("not prepared: %s", error)
        return Tools()
    return tools


def main() -> NoReturn:
    """Serve the process that started this one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection, tools = Connection(int(sys.argv[1])), Tools()
    try:
        given = connection.recv()
        if isinstance(given, Expected):
            tools = prepared(given)
            given = connection.recv()
        elif given == LOADER:
            import_around_fiftyone()
            given = connection.recv()
    except (EOFError, OSError):  # nobody wanted it
        _leave()
    Worker(connection, None if given is None else Job(**given, tools=tools)).serve()


if __name__ == "__main__":
    main()
