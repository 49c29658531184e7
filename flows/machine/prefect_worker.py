"""A plain `prefect worker start` that ends with whoever started it, even one that was killed.

`python -m flows.machine.prefect_worker OPTIONS`. Its standard input is a pipe whose other end the
starter holds. A worker that outlived its starter would take shards beside those of the next one,
and nobody would know of it.
"""

from __future__ import annotations

import runpy
import sys
import threading

from tasks.processes import end_with_parent


def main() -> None:
    """Run Prefect's command in this process."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.argv = ["prefect", "worker", "start", *sys.argv[1:]]
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
