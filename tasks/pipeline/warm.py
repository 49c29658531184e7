"""The models of a run, loaded while other things start: the first frame does not wait for both."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.pipeline.chunk import Job
from tasks.pipeline.device_processes import DeviceProcesses, wanted_processes

if TYPE_CHECKING:
    from tasks.masks.model import ModelChoice
    from tasks.pipeline.tools import Tools

log = logging.getLogger(__name__)


@contextlib.contextmanager
def warmed(job: Job, dataset: str | None = None) -> Iterator[None]:
    """Get ready, while other things start, what a run on a GPU needs; end it with the block.

    That is processes beside this one where the machine has the cores and the device the memory for
    them, else models in this process. Blocks may be nested; the outermost one counts.

    Args:
        job: of the run.
        dataset: that it loads labels into.

    """
    tools = job.tools
    count = 0 if tools.processes else wanted_processes(job.model.backend)
    if not count:
        if tools.processes is None:
            warm_in_background(job)
        yield
        return
    tools.processes, tools.loader = DeviceProcesses(count, job), DeviceProcesses(max(count // 2, 1))
    tools.labeling = threading.Semaphore(count + 1)
    tools.processes.start()
    if dataset:
        threading.Thread(target=_warm_loader, args=(tools.loader,), daemon=True).start()
    try:
        yield
    finally:
        tools.processes.end()
        tools.loader.end()
        tools.processes = tools.loader = None


def _warm_loader(loader: DeviceProcesses) -> None:
    """Let processes import FiftyOne, which takes seconds; it wants to know its database first."""
    from tasks.dataset.database import ensure_database

    try:
        ensure_database()
        loader.start()
    except Exception as error:  # noqa: BLE001 - told where labels are loaded
        log.debug("the loader is not warm: %s", error)


def import_fiftyone() -> None:
    """Import what loading needs; who was begun before the run joins the database first."""
    from tasks.dataset.database import ensure_database

    ensure_database()
    importlib.import_module("tasks.load.into_fiftyone")
    importlib.import_module("fiftyone")


def warm_in_background(job: Job) -> threading.Thread | None:
    """Load a run's detector and mask model on a thread, and run each once on the device.

    Only for a GPU: on a CPU this would take the cores from what starts meanwhile. What fails here
    fails again, and is reported, where it is needed.
    """
    if job.model.backend == "onnxruntime-cpu":
        return None
    thread = threading.Thread(target=_warm, args=(job,), name="warm")
    thread.start()
    return thread


def warm_up(tools: Tools, model: ModelChoice, detector: str, stamp: str) -> None:
    """Load a detector ("": none), that of a stamp, and a mask model; run each once.

    Raises:
        AutolabelError: as `Detectors.load` and `Segmenters.load`.

    """
    if detector:
        tools.detectors.load(detector, stamp=stamp, backend=model.backend).warm_up()
    tools.segmenters.load(model).backend.warm_up()


def _warm(job: Job) -> None:
    try:
        warm_up(job.tools, job.model, job.detector, job.stamp.detector)
    except Exception as error:  # noqa: BLE001 - told where the model is needed
        log.debug("not warm: %s", error)
