"""The models of a run, loaded while other things start: the first frame does not wait for both."""

from __future__ import annotations

import logging
import threading

from tasks.pipeline.chunk import Job

log = logging.getLogger(__name__)


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


def _warm(job: Job) -> None:
    try:
        if job.detector:
            backend = job.model.backend
            found = job.tools.detectors.load(
                job.detector, stamp=job.stamp.detector, backend=backend
            )
            found.warm_up()
        job.tools.segmenters.load(job.model).backend.warm_up()
    except Exception as error:  # noqa: BLE001 - told where the model is needed
        log.debug("not warm: %s", error)
