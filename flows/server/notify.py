"""Who hears of a bad night: one message by apprise, to Slack, Teams, e-mail, a webhook and more."""

import contextlib
import logging
import os
from collections.abc import Sequence
from string import Template
from typing import Any

from flows.params import BackfillParams
from flows.server.status import collect_status
from sam2_core.redaction import redact

logger = logging.getLogger(__name__)


def tell(params: BackfillParams, name: str, message: str) -> None:
    """Tell that a night or a backfill ended badly; what fails here is logged.

    Args:
        params: what was labeled, and the addresses of its messages.
        name: of the night or the backfill.
        message: how it ended; below it stands what `autolabel status` says is to do.

    """
    lines = [message]
    with contextlib.suppress(Exception):  # a server that is away may be why the night ended
        runs = collect_status(hours=24)["runs"] if params.notify else []
        lines += [to_do for run in runs if run["out"] == params.label.out for to_do in run["to_do"]]
    for problem in notify(params.notify, f"autolabel: {name} ended badly", lines):
        logger.warning("not notified: %s", problem)


def tell_of_night(flow: Any, flow_run: Any, state: Any) -> None:
    """Tell of a night that failed: a hook of its flow."""
    tell(
        BackfillParams.model_validate(flow_run.parameters["params"]),
        flow_run.name,
        state.message or state.name,
    )


def notify(addresses: Sequence[str], title: str, lines: Sequence[str]) -> list[str]:
    """Send a message to each address, of which `$NAME` is a variable of the environment.

    Returns:
        Why some got none; nothing is raised.

    """
    from apprise import Apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it says addresses
    problems = []
    for address in addresses:
        try:
            target = Apprise()
            known = target.add(Template(address).substitute(os.environ))
            if not known:
                problems.append(f"{address}: apprise knows no such address")
            elif not target.notify(redact("\n".join(lines)), title=redact(title)):
                problems.append(f"{address}: its service did not take the message")
        except KeyError as error:
            problems.append(f"{address}: the environment has no variable {error}")
        except Exception as error:  # noqa: BLE001 - a message never breaks a night
            problems.append(f"{address}: {type(error).__name__}")  # its text may hold the address
    return problems
