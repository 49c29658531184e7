"""`autolabel nightly`: sets what every night labels, and when."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from flows.cli.commands import Command
from flows.cli.common_options import json_option, notify_option, print_json
from flows.cli.display import say
from flows.cli.options import LABEL_FIRST, backfill_params, label_options, options_of
from flows.params import BackfillParams, LabelParams
from flows.server.api import use_api
from sam2_core.types import AutolabelError
from tasks.store import storage
from tasks.store.manifests import list_runs
from tasks.store.roots import read_root
from tasks.types import ALL_FRAMES

NIGHTS_SHOWN = 5


def _off(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Turn the nights off and end: no other option is needed."""
    if not value or ctx.resilient_parsing:
        return
    from flows.server.deployments import turn_off

    use_api()
    turn_off()
    if not print_json(ctx.params["as_json"], {"on": False}):
        say("nights are off; repeat the command with SOURCE to turn them on again")
    ctx.exit()


@click.command(cls=Command, first=f"{LABEL_FIRST} at off sequences as_json")
@label_options
@options_of(BackfillParams, only=["sequences"])
@click.option(
    "--at",
    metavar="HH:MM",
    type=click.DateTime(["%H:%M"]),
    help="When each night starts. Default: as set before, at first 01:00.",
)
@click.option("--timezone", metavar="NAME", help="Its time zone. Default: as before, at first UTC.")
@click.option(
    "--off", is_flag=True, expose_value=False, callback=_off,
    help="Turn the nights off; needs no SOURCE.",
)  # fmt: skip
@notify_option
@json_option
def command(at: datetime | None, timezone: str | None, as_json: bool, **options: Any) -> None:
    """Label what is new in SOURCE every night, and load it.

    Sets the parameters and the schedule of the deployment nightly/nightly and prints the next runs.
    There is one schedule: name all sources in one command. Sources that this machine does not find
    are refused. It tests whether workers offer the backend, not what they can read.
    `autolabel status` also shows what is labeled every night, and how the last night ended.
    """
    from flows.machine.programs import CPU_POOL
    from flows.plan.backfill import plan_backfill
    from flows.server.deployments import NIGHTLY, plan_nights, time_of, turn_on
    from flows.server.fleet import decided, workers_online
    from tasks.dataset.schema import refuse_before_labeling

    params = backfill_params(options)
    use_api()
    for address in filter(storage.is_s3, (*params.label.sources, params.label.out)):
        next(storage.s3_pages(address, Delimiter="/"))  # what would fail every night is refused now
    sources = refuse_absent(params.label.sources)
    refuse_before_labeling(params.label.dataset_name, params.label.out)
    refuse_other_names(params.label, sources)
    refusal = ""
    try:
        decided(params.label)
    except AutolabelError as error:
        refusal = str(error)
    if params.label.selection != ALL_FRAMES and not refusal and list_runs(params.label.out):
        plan_backfill(params)  # refuses to lose labels that others made here
    before, rule = turn_on(params, f"{at.minute} {at.hour} * * *" if at else None, timezone)
    when, zone = time_of(rule.cron), rule.timezone or "UTC"
    instead = replaced(before.get("label", {}), params.label)
    nights = [night.astimezone(ZoneInfo(zone)) for night in plan_nights(NIGHTS_SHOWN)]
    served = bool(workers_online(CPU_POOL))
    if not served:
        say(f"no worker of pool {CPU_POOL} is online: `autolabel up` starts one", err=True)
    if refusal:
        say(f"as things are now every night would fail: {refusal}", err=True)
    result = {
        "at": when, "timezone": zone,
        "next_runs": [night.isoformat(timespec="minutes") for night in nights],
        "replaced": instead, "worker_online": served, "refused": refusal,
    }  # fmt: skip
    if print_json(as_json, result):
        return
    if instead:
        say(f"no longer labeled every night: {instead}")
    say(f"every night at {when} {zone}, the next:")
    for moment in nights:
        say(f"  {moment:%a %Y-%m-%d %H:%M %Z}")
    say(f"one now: 'Quick run' of {NIGHTLY} on Prefect's page")


def replaced(before: Mapping[str, Any], now: LabelParams) -> str:
    """Return what nights labeled until now and do no longer, or ""."""
    out = before.get("out", "")
    kept = now.sources if out == now.out else ()
    gone = [source for source in before.get("sources", ()) if source not in kept]
    return f"{', '.join(gone)} to {out}" if gone else ""


def refuse_absent(sources: Sequence[str]) -> list[str]:
    """Refuse what is not on this machine: a slip would take the place of good nights.

    Returns:
        What the sources are, each pattern replaced by what fits it.

    Raises:
        AutolabelError: a folder or file is not there, or a pattern fits nothing.

    """
    from tasks.frames.discover import expanded

    found = list(expanded(sources))
    for source in found:
        if storage.is_local(source) and not storage.local_path(source).exists():
            raise AutolabelError(
                f"{source} is not on this machine, and the nights stay as they are: correct it, or "
                "give this command where it is, on a worker for instance"
            )
    return found


def refuse_other_names(label: LabelParams, sources: Iterable[str]) -> None:
    """Refuse sources that cannot give the names that a storage knows; looks at none of them inside.

    Raises:
        NamedOtherwiseError: they cannot.

    """
    from tasks.frames.naming import Names
    from tasks.frames.readers.choice import reader_of

    names = Names(read_root(label.out), label.root)
    for source in sources if names.known else ():
        names.check_source(source, reader_of(source, label.layout).name)
