"""Kinds of values, and options, that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PRECISION = click.Choice(["auto", "fp32", "fp16"])
GRAPH = click.Choice(["restructured", "published"])
PORT = click.IntRange(1, 65535)

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
    help="How long loading a model may take, with building its TensorRT engines.",
)
precision_option = click.option(
    "--precision", type=PRECISION, default="auto", help="By default fp16 on a GPU, else fp32."
)
