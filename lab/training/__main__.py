"""`python -m lab.training`: the bundled models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flows.cli.common_options import FILE, FOLDER
from sam2_core.checkpoints import PYTORCH
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from lab.training.loop import Run

CONFIGS = Path(__file__).parent / "configs"


@click.command("python -m lab.training")
@click.option(
    "--config",
    "config_path",
    required=True,
    type=FILE,
    help="A TOML file, or the name of one that comes with this package (detector, masks).",
)
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    help="Folder of the run; one that holds a run of this configuration goes on from it.",
)
def command(config_path: Path, out: Path) -> None:
    """Train the compact mask model or detector, from rendered scenes and photographs to ONNX.

    Needs the extra `export`, and the photographs that the configuration names.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise AutolabelError(f"training needs PyTorch: {PYTORCH}") from error
    from lab.training.config import load_config
    from lab.training.finish import finish
    from lab.training.train import train

    if not config_path.is_file() and (CONFIGS / f"{config_path}.toml").is_file():
        config_path = CONFIGS / f"{config_path}.toml"
    config = load_config(config_path)
    train(config, out, _tell)
    click.echo(str(finish(config, out)))


def _tell(run: Run) -> None:
    """Say how it goes, a line of JSON on stderr."""
    click.echo(json.dumps({"job": run.trained.job.name, **run.curves[-1]}), err=True)


if __name__ == "__main__":
    command()
