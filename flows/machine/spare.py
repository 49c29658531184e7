"""A process for a worker's next flow run, with its imports done: `python -m flows.machine.spare`.

It waits for one line on its standard input, the environment and the folder of a flow run, and is
from then on what `python -m prefect.engine` would be there. It ends with whoever started it. Its
environment is the run's from the beginning but for what Prefect tells each run alone, which Prefect
reads when the run begins: flows/machine/spare_runs.py gives it no other run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import sys

from tasks.pipeline import step_interpreters

# What was seen to be imported by a shard. What is not installed or is broken is the run's to tell.
MODULES = (
    "prefect.engine", "prefect.flow_engine", "prefect.task_engine", "prefect.task_runners",
    "prefect.events", "prefect.artifacts", "prefect._internal.metrics",
    "prefect._internal.observers", "prefect.utilities.visualization", "anyio._backends._asyncio",
    "websockets", "encodings.idna", "flows.shard", "tasks.pipeline.steps",
    "tasks.pipeline.given_boxes", "tasks.pipeline.track", "tasks.frames.video",
    "tasks.frames.images", "tasks.boxes.import_files", "PIL.JpegImagePlugin", "PIL.PngImagePlugin",
    "fsspec", "fsspec.implementations.local", "s3fs", "pyarrow.parquet", "pyarrow.dataset",
    "numpy.ma", "cv2", "onnxruntime", "trackforge",
)  # fmt: skip
LOOK_EVERY_S = 0.5


def import_ahead() -> None:
    """Import what the run will."""
    for name in MODULES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def wait_for_run() -> bytes:
    """Return the line that names a run; b"" if none comes any more.

    Meanwhile the run's processes are begun, once the present run has told what they are for.
    """
    begun, line = False, b""
    while not line.endswith(b"\n"):
        if not begun and (expected := step_interpreters.last_expected()):
            step_interpreters.begin(expected)
            begun = True
        if not select.select([0], [], [], None if begun else LOOK_EVERY_S)[0]:
            continue
        got = os.read(0, 1 << 16)
        if not got:
            return b""
        line += got
    return line


def main() -> None:
    """Wait for a run, then be it."""
    import_ahead()
    line = wait_for_run()
    if not line:
        return
    given = json.loads(line)
    os.environ.clear()
    os.environ.update(given["environment"])
    os.chdir(given["folder"])
    # As `python -m` leaves them.
    sys.path[0], sys.argv = given["folder"], ["prefect.engine"]
    sys.modules.pop("prefect.engine", None)
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
