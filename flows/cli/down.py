"""`autolabel down`: stop what `autolabel up` started."""

from collections.abc import Sequence

import click

from flows.cli.common_options import json_option, print_json
from flows.cli.display import say


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Stop exactly what `autolabel up` started; running shards go back to the queue.

    Also stops a database that the killed processes of a command left running.
    """
    from flows.machine.services import stop_all
    from tasks.dataset.database import running_server

    def tell(names: Sequence[str]) -> None:
        shards = any(name.startswith("worker-") for name in names)
        what = ": running shards finish their chunk and go back to the queue" if shards else ""
        say(f"waiting for {', '.join(names) or 'the supervisor'}{what}", err=True)

    stopped = stop_all(tell)
    database = running_server()
    if database and database.stop_if_unused():
        stopped.append("the database, which nobody used")
    if not print_json(as_json, {"stopped": stopped}):
        nothing = "nothing that `autolabel up` started is running"
        say(f"stopped: {', '.join(stopped)}" if stopped else nothing)
