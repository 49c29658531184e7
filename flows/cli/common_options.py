"""Kinds of values, and options, that several commands have."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click


class FloatRange(click.FloatRange):
    """Numbers between bounds; refuses "nan", which passes every bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; the usage error says what was wrong."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PRECISION = click.Choice(["auto", "fp32", "fp16"])
GRAPH = click.Choice(["restructured", "published"])
PORT = click.IntRange(1, 65535)


def numbers(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read numbers with commas between them."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers separated by commas, got {text!r}") from None


def print_json(wanted: bool, result: Any) -> bool:
    """Print a command's result as one JSON object on stdout, if `--json` was given.

    Returns whether it was, in which case nothing else goes to stdout.
    """
    if wanted:
        click.echo(json.dumps(result, indent=2))
    return wanted


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
cache_option = click.option(
    "--cache",
    type=FOLDER,
    help="Cache folder [default: $AUTOLABEL_CACHE, else ~/.cache/autolabel].",
)
load_timeout_option = click.option(
    "--load-timeout",
    type=click.IntRange(1),
    default=600,
    metavar="SECONDS",
    help="How long loading a model may take, including TensorRT engines.",
)
precision_option = click.option(
    "--precision", type=PRECISION, default="auto", help="By default fp16 on a GPU, else fp32."
)
