"""`autolabel docs`: the pages, as a site that needs no network."""

import webbrowser
from pathlib import Path

import click

from flows.cli.display import say
from sam2_core.types import AutolabelError

# `make docs` builds it; a release's wheel holds it.
SITE = Path(__file__).parents[1] / "site"


@click.command()
@click.option("--no-browser", is_flag=True, help="Only print where they are.")
def command(no_browser: bool) -> None:
    """Open the guides and references of this version, without a network."""
    start = SITE / "index.html"
    if not start.is_file():
        raise AutolabelError(
            f"{SITE} is not there: `make docs` in a checkout builds it from the pages in docs/"
        )
    say(start.as_uri())
    if not no_browser:
        webbrowser.open(start.as_uri())
