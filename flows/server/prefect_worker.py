"""A plain `prefect worker start`: `python -m flows.server.prefect_worker POOL NAME BACKEND ...`.

`flows.machine.worker` starts it. In the same process, for importing Prefect takes seconds, it first
has its pool say what its workers offer, then looks for lost runs, and at its end signs off.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from flows.machine.self_test import JOINED_VARIABLE, NOTE_VARIABLE
from flows.server.api import use_api
from sam2_core.cache import write_whole
from tasks.errors import error_text
from tasks.processes import collect_seldom


def main() -> None:
    """Work until SIGTERM; a worker that its pool refuses notes why."""
    pool, name, *offers = sys.argv[1:]
    note = Path(os.environ[NOTE_VARIABLE])
    collect_seldom()
    from prefect.cli import app

    from flows.server.client import connected, server_time
    from flows.server.fleet import join
    from flows.server.runs import looking_after
    from flows.server.submit import sign_off

    try:
        use_api()
        join(pool, name, offers)
        with connected() as client:
            behind_s = (server_time(client) - datetime.now(UTC)).total_seconds()
    except Exception as error:  # noqa: BLE001 - whatever it is, `status` has to tell
        write_whole(note, " ".join(error_text(error).split()))
        sys.exit(1)
    note.unlink(missing_ok=True)
    Path(os.environ[JOINED_VARIABLE]).touch()
    print(f"{name} takes work", file=sys.stderr)  # noqa: T201
    try:
        with looking_after():
            sys.argv = [
                "prefect", "worker", "start", "--pool", pool, "--name", name, "--type", "process",
                "--limit", "1", "--no-create-pool-if-not-found",
            ]  # fmt: skip
            if behind_s > 1:  # it asks for what is due by its own clock
                sys.argv += ["--prefetch-seconds", f"{behind_s:.0f}"]
            app()
    finally:
        sign_off(pool, [name])


if __name__ == "__main__":
    main()
