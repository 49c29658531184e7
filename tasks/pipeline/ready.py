"""What a run on a GPU works with, loaded while other things start."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Iterator

from sam2_core.machine import DEVICE_PROCESSES
from tasks.dataset.database import ensure_database
from tasks.pipeline.device_processes import DeviceProcesses, wanted_processes
from tasks.pipeline.run_context import Job

log = logging.getLogger(__name__)


@contextlib.contextmanager
def ready(job: Job) -> Iterator[None]:
    """Load, while other things start, what a run on a GPU needs; end it with the block.

    That is processes beside this one where the machine has the cores and the device the memory for
    them, else models in this process. Blocks may be nested; the outermost one counts.

    Beside a GPU, labels are loaded by processes of their own, which leave Python's lock to whoever
    feeds the device.
    """
    context, backend = job.context, job.model.backend
    if context.processes or context.loader:
        yield
        return
    count = wanted_processes(backend)
    if count:
        context.processes = DeviceProcesses(count, job)
        context.labeling = threading.Semaphore(count + 1)
        context.processes.start()
    else:
        warm_in_background(job)
    if count or (backend != "onnxruntime-cpu" and DEVICE_PROCESSES.read() is None):
        context.loader = DeviceProcesses(max(count // 2, 1))
        if job.dataset:
            threading.Thread(target=_warm_loader, args=(context.loader,), daemon=True).start()
    try:
        yield
    finally:
        for processes in filter(None, (context.processes, context.loader)):
            processes.end()
        context.processes = context.loader = None


def _warm_loader(loader: DeviceProcesses) -> None:
    """Let processes import FiftyOne, which takes seconds; it wants to know its database first."""
    try:
        ensure_database()
        loader.start()
    except Exception as error:  # noqa: BLE001 - reported where labels are loaded
        log.debug("the loader is not warm: %s", error)


def import_fiftyone() -> None:
    """Import what loading needs; a process started before the run must join the database first."""
    ensure_database()
    importlib.import_module("tasks.load.into_fiftyone")
    importlib.import_module("fiftyone")


def warm_in_background(job: Job) -> None:
    """Load a run's detector and mask model on a thread, and run each once on the device.

    Only for a GPU: on a CPU this would take the cores from what starts meanwhile. What fails here
    fails again, and is reported, where it is needed.
    """
    if job.model.backend != "onnxruntime-cpu":
        threading.Thread(target=_warm, args=(job,), name="warm").start()


def _warm(job: Job) -> None:
    try:
        if job.detector:
            job.load_detector().warm_up()
        job.context.segmenters.load(job.model).backend.warm_up()
    except Exception as error:  # noqa: BLE001 - reported where the model is needed
        log.debug("not warm: %s", error)
