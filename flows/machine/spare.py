"""A process for a worker's next flow run, with its imports done: `python -m flows.machine.spare`.

It waits for one line on its standard input, the environment and the folder of a flow run, and is
from then on what `python -m prefect.engine` would be there. It ends with whoever started it. Its
environment is the run's from the beginning but for what Prefect tells each run alone, which Prefect
reads when the run begins: flows/machine/spare_runs.py gives it no other run.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import sys

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


class Ending:
    """The run's end without taking the interpreter apart, which takes half a second to a second.

    Made before anything else is imported: of what is to be done at exit it comes last.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.code is not None:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(self.code)


def import_ahead() -> None:
    """Import what the run will, and let the driver look for its devices without using them."""
    for name in MODULES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        importlib.import_module("sam2_core.backend_choice").cuda_devices()


def wait_for_run() -> bytes:
    """Return the line that names a run; b"" if none comes any more.

    Meanwhile imports are done, and before them, since they do the same, the run's processes are
    begun; beside a worker's first run later, when that has told what they are for.
    """
    begun = begin_expected()
    import_ahead()
    line = b""
    while not line.endswith(b"\n"):
        begun = begun or begin_expected()
        if not select.select([0], [], [], None if begun else LOOK_EVERY_S)[0]:
            continue
        got = os.read(0, 1 << 16)
        if not got:
            return b""
        line += got
    return line


def begin_expected() -> bool:
    """Begin the processes of a run like the last one; False if nobody has told of one."""
    from tasks.pipeline import step_interpreters

    expected = step_interpreters.last_expected()
    if expected:
        step_interpreters.begin(expected)
    return expected is not None


def main() -> None:
    """Wait for a run, then be it."""
    ending = Ending()
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
    try:
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            ending.code = end.code or 0
        raise
    ending.code = 0


if __name__ == "__main__":
    main()
