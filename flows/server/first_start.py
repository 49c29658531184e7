"""What the first start of anything would do, done by `make setup` beforehand.

Python compiles what it imports, which takes longer than importing it, and a Prefect server applies
a hundred migrations to an empty database.
"""

from __future__ import annotations

import importlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from flows.server.own import FOLDER_PREFIX, OwnApi, sound, template_of
from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.dataset.later import import_later
from tasks.dataset.mongod import URI_VARIABLE
from tasks.store.own_folder import OwnFolder

# What commands, flow runs, workers and the server import, each of them in its own process.
_MODULES = (
    "flows.cli.label_run", "flows.shard", "flows.server.process", "prefect.engine",
    "prefect.cli.worker", "prefect.workers.process", "prefect.cli", "prefect.server.api.server",
    "uvicorn", "onnxruntime", "cv2", "trackforge", "fiftyone", "tasks.load.prepare",
)  # fmt: skip


def compile_imports() -> None:
    """Have Python write the bytecode of what every start imports."""
    os.environ.setdefault(URI_VARIABLE, "mongodb://127.0.0.1:9")  # FiftyOne would start a database
    import_later()
    for one in _MODULES:
        importlib.import_module(one)


def make_template() -> bool:
    """Make the migrated, empty database that Prefect's servers begin with; False if it is there.

    Raises:
        AutolabelError: the server that makes it does not start.

    """
    template = template_of(cache_folder())
    if sound(template):
        return False
    folder = OwnFolder(FOLDER_PREFIX)
    server = OwnApi(folder.path, template, pass_fds=(folder.lock.fileno(),))
    try:
        server.wait()
    finally:
        server.stop()
        folder.remove()
    return True


def main() -> None:
    """Do it; what fails here costs nothing but the time that the first start then takes."""
    try:
        with ThreadPoolExecutor(1) as beside:
            made = beside.submit(make_template)
            compile_imports()
            made.result()
    except (AutolabelError, ImportError, OSError) as error:
        print(f"the first start will take longer: {error}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
