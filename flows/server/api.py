"""Which Prefect API a command talks to: the user's choice, else the one of `autolabel up`."""

from __future__ import annotations

import os
import sys

from flows.server.own import add_own_password, configured_api
from flows.server.sign_in import CLIENT_AUTH, known_auth
from sam2_core.types import AutolabelError


def use_api() -> str:
    """Make Prefect's client use a server that is there; call before anything imports `prefect`.

    Without this Prefect would start a temporary server that has no deployments and no workers.

    Raises:
        AutolabelError: no server is configured and `autolabel up` has started none, or an older
            version's has no password.

    """
    chosen = configured_api()
    if chosen:
        add_own_password()
        return chosen
    from flows.machine.services import folder, running_api

    found = running_api()
    if not found:
        raise AutolabelError(
            "no Prefect server: start one with `autolabel up`, or set PREFECT_API_URL to a "
            "running one"
        )
    choose_api(found, known_auth(folder()))
    return found


def choose_api(url: str, auth: str) -> None:
    """Make this process and its children use an API, even where Prefect is imported already."""
    os.environ |= {"PREFECT_API_URL": url, CLIENT_AUTH: auth}
    if "prefect" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
