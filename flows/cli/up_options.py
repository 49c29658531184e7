"""Options of `autolabel up` that something stands against: it runs already, and otherwise."""

from __future__ import annotations

from urllib.parse import urlsplit

from flows.machine.gpus import UnlistedError, gpu_ids
from flows.machine.services import Service, running, running_api
from flows.server.api import configured_api
from sam2_core.redaction import redact
from sam2_core.types import AutolabelError
from tasks import processes


def refuse_ignored(port: int | None, workers: int | None, app_port: int | None) -> None:
    """Refuse options that would change nothing, for `up` leaves alone what runs.

    Args:
        port: of Prefect's server; None where none was asked for, as the others.
        workers: GPU workers.
        app_port: of the App.

    Raises:
        AutolabelError: naming the first such option, what runs, and how to get what was asked for.

    """
    found, chosen = running(), configured_api()
    if port and chosen and chosen.rstrip("/") != running_api():
        raise AutolabelError(
            f"--port {port} would be ignored: PREFECT_API_URL or a profile names the server "
            f"{redact(chosen)}; leave out --port, or unset that for a server of `autolabel up`"
        )
    for name, what, option, asked in (
        ("server", "Prefect's server", "--port", port),
        ("app", "the App", "--app-port", app_port),
    ):
        there = urlsplit(found[name].url).port if name in found else asked
        if asked and there != asked:
            raise _runs_otherwise(f"{what} listens on port {there}", f"{option} {asked}")
    if workers and (gpu := found.get("worker-gpu")):
        count = workers_of(gpu)
        if count != workers:
            told = f"{count} GPU {'worker runs' if count == 1 else 'workers run'}"
            raise _runs_otherwise(told, f"--workers {workers}")


def workers_of(service: Service) -> int:
    """Return how many workers a service of workers was started with."""
    words = processes.command_line(service.pid)
    if "--count" in words[:-1]:
        return int(words[words.index("--count") + 1])
    try:
        return len(gpu_ids()) or 1
    except UnlistedError:
        return 1  # and that one takes no work


def _runs_otherwise(what: str, option: str) -> AutolabelError:
    return AutolabelError(
        f"{what} already, and `up` leaves alone what runs: for {option} run `autolabel down` "
        f"(running shards go back to the queue), then `autolabel up {option}`"
    )
