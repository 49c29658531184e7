"""`autolabel models triton-repository`: a model repository for a Triton server elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import (
    FOLDER,
    json_option,
    load_timeout_option,
    precision_option,
    print_json,
)
from flows.cli.models_build import numbers


@click.command("triton-repository", short_help="Write a Triton model repository.")
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    metavar="MODEL",
    help="As for `autolabel label`; append `:whole` for whole frames. Repeat for several models.",
)
@click.option("--out", type=FOLDER, required=True, help="Folder to write.")
@click.option(
    "--backend",
    type=click.Choice(["onnxruntime-cpu", "onnxruntime-cuda", "tensorrt", "torch"]),
    default="onnxruntime-cpu",
    help="What runs the model on the server.",
)
@precision_option
@click.option("--gpus", callback=numbers, metavar="0,1", help="CUDA devices. Default: the CPU.")
@click.option(
    "--instances",
    type=click.IntRange(1),
    default=2,
    help="Processes of a model per device; while one segments, another answers clicks.",
)
@click.option("--cache-mb", type=click.IntRange(16), default=1024, help="Memory for open images.")
@load_timeout_option
@click.option(
    "--version",
    type=click.IntRange(1),
    default=1,
    help="Number of this version; other versions stay.",
)
@json_option
def triton_repository(models: tuple[str, ...], out: Path, **options: Any) -> None:
    """Write a Triton model repository: the graphs, config.pbtxt and a line of Python for each.

    The server needs sam2-autolabel installed, as in deploy/triton/Dockerfile.
    """
    from sam2_core.backend_choice import precision_for
    from sam2_core.serving.repository import RepositoryOptions, write_repository
    from sam2_core.serving.server_model import ModelSettings

    precision = precision_for(options["backend"], options["precision"])
    settings = ModelSettings(
        backend=options["backend"], precision=precision, image_bytes=options["cache_mb"] << 20,
        loading_s=options["load_timeout"],
    )  # fmt: skip
    names = write_repository(
        out, models, RepositoryOptions(settings, options["gpus"], options["instances"]),
        version=options["version"], with_graphs=True,
    )  # fmt: skip
    if not print_json(options["as_json"], {"folder": str(out), "models": names}):
        for name in names:
            click.echo(f"{name}: {out / name}")
