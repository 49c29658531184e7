"""What the first start of anything would do, done by `make setup` beforehand.

Python compiles what it imports, which takes longer than importing it, and Prefect applies a hundred
migrations to an empty database.
"""

import importlib
import os
import sys

from flows.server import postgres
from sam2_core.types import AutolabelError
from tasks.dataset.database import URI_VARIABLE
from tasks.dataset.lazy_imports import import_later

# What commands, flow runs, workers and the server import, each of them in its own process.
_MODULES = (
    "flows.cli.label", "flows.shard", "flows.server.process", "prefect.engine",
    "flows.server.worker", "prefect.workers.process", "prefect.cli",
    "prefect.server.api.server", "uvicorn", "asyncpg", "onnxruntime", "cv2", "trackforge",
    "fiftyone", "tasks.load.into_fiftyone",
)  # fmt: skip


def main() -> None:
    """Do it; what fails here costs nothing but the time that the first start then takes."""
    try:
        postgres.Postgres().leave()
        # FiftyOne would start a database.
        os.environ.setdefault(URI_VARIABLE, "mongodb://127.0.0.1:9")
        import_later()
        for one in _MODULES:
            importlib.import_module(one)
    except (AutolabelError, ImportError, OSError) as error:
        print(f"the first start will take longer: {error}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
