"""`autolabel simulate`: how long a backfill would take on a fleet, what limits it, its cost."""

from itertools import accumulate
from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import FILE, check_writable, json_option, numbers, print_json
from flows.cli.display import print_table, results_console
from flows.cli.options import options_of, validated
from flows.plan.simulate import STATIONS, FleetParams
from tasks.wording import counted


@click.command()
@click.option("--gpus", metavar="A,B", callback=numbers, default="1,8,64",
              help="Numbers of GPUs to compare.")  # fmt: skip
@options_of(FleetParams, but={"gpus"})
@click.option("--plot", type=FILE, help="Write a plot (PNG).")
@json_option
def command(plot: Path | None, as_json: bool, **options: Any) -> None:
    """Simulate a backfill on GPUs that you do not have, from measured figures and assumed prices.

    Nothing is labeled or asked of any server. docs/scaling.md says what the model holds and how far
    it is from a real run.
    """
    from flows.plan.simulate import simulate

    if plot:
        check_writable(files=[plot])
    params = validated(FleetParams, **options)
    found = simulate(params)
    if plot:
        plot_fleets(found, plot)
    told = [{name: one[name] for name in one if name != "labeled"} for one in found]
    if not print_json(as_json, {"parameters": params.model_dump(), "fleets": told}):
        show(told)


def show(found: list[dict[str, Any]]) -> None:
    """Print a column for each fleet, and what limits it."""
    console = results_console()
    rows = {
        "hours": [f"{one['hours']:,.1f}" for one in found],
        "frames/s": [f"{one['frames_per_s']:,.0f}" for one in found],
        **{
            f"{name} busy": [f"{one['busy'][name]:.0%}" for one in found] for name in STATIONS
        },
        "GPU hours": [f"{one['gpu_hours']:,.0f}" for one in found],
        "GPUs, USD": [f"{one['gpu_usd']:,.0f}" for one in found],
        "requests, USD": [f"{one['requests_usd']:,.0f}" for one in found],
        "labels, TB": [f"{one['labels_tb']:,.2f}" for one in found],
        "labels, USD per month": [f"{one['storage_usd_per_month']:,.0f}" for one in found],
        "Prefect's database, GB": [f"{one['prefect_gb']:,.0f}" for one in found],
        "FiftyOne's database, TB": [f"{one['dataset_tb']:,.1f}" for one in found],
    }  # fmt: skip
    columns = ("GPUs", *(f"{one['gpus']:,}" for one in found))
    print_table(console, columns, ((name, *values) for name, values in rows.items()))
    for one in found:
        console.print(f"{counted(one['gpus'], 'GPU')}: limited by {one['limit']}; {one['advice']}")


def plot_fleets(found: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: frames labeled over time, and how busy everything was."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained", dpi=110)
    curves, bars = figure.subplots(1, 2)
    width = 0.8 / len(found)
    for number, one in enumerate(found):
        name = counted(one["gpus"], "GPU")
        hours, frames = zip(*((at / 3600, count) for at, count in one["labeled"]), strict=True)
        curves.plot(hours, list(accumulate(frames)), label=name)
        first = (number - (len(found) - 1) / 2) * width
        places = [place + first for place in range(len(STATIONS))]
        bars.bar(places, [one["busy"][name] for name in STATIONS], width, label=name)
    curves.set(xlabel="hours", ylabel="frames labeled", xscale="log", yscale="log")
    bars.set(ylabel="share of the time that it is busy", ylim=(0, 1))
    bars.set_xticks(range(len(STATIONS)), STATIONS, rotation=25, ha="right")
    curves.legend()
    figure.savefig(path, format="png")
