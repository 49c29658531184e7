"""Which Prefect API a command talks to: the user's, else that of `autolabel up`, if any."""

import os
import sys
from pathlib import Path

from flows.machine.services import folder, running_api
from flows.server.sign_in import CLIENT_AUTH, known_auth
from sam2_core.types import AutolabelError

_CLIENT_ENVIRONMENT = {
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
}


def configured_api() -> str | None:
    """URL of the Prefect API that the user chose, by environment or profile; None for none."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    if not (home / "profiles.toml").is_file():
        return None
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value()


def use_api() -> str:
    """Make Prefect's client use a server that is there.

    Without this Prefect would start a temporary server that has no deployments and no workers.

    Raises:
        AutolabelError: no server is configured and `autolabel up` has started none, or an older
            version's has no password.

    """
    found = api_that_runs()
    if not found:
        raise AutolabelError(
            "no Prefect server: start one with `autolabel up`, or set PREFECT_API_URL to a "
            "running one"
        )
    return found


def api_that_runs() -> str | None:
    """Choose the user's API, else that of `up`, whose password we know; returns its URL."""
    chosen, ours = configured_api(), running_api()
    if ours and (chosen or ours).rstrip("/") == ours:
        choose_api(ours, os.environ.get(CLIENT_AUTH) or known_auth(folder()))
    return chosen or ours


def choose_api(url: str, auth: str) -> None:
    """Make this process and its children use an API, even where Prefect is imported already."""
    os.environ |= {"PREFECT_API_URL": url, CLIENT_AUTH: auth}
    if "prefect" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


def use_quietly() -> None:
    """Have Prefect say nothing of its own in this process, and see that its server answers.

    Raises:
        AutolabelError: it does not.

    """
    os.environ |= _CLIENT_ENVIRONMENT | os.environ  # what the user has set stays
    from flows.server.client import asked_once, connected

    with asked_once(), connected() as client:
        client.hello()
