"""`python -m lab.training`: the bundled models from a seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import FILE, FOLDER
from sam2_core.checkpoints import PYTORCH
from sam2_core.types import AutolabelError

CONFIGS = Path(__file__).parent / "configs"


@click.command("python -m lab.training")
@click.option(
    "--config",
    "config_path",
    required=True,
    type=FILE,
    help="A TOML file, or the name of one that comes with this package (compact, smoke).",
)
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    help="Folder of the run; one that holds a run of this configuration goes on from it.",
)
@click.option("--job", type=click.Choice(["mask", "detector"]), help="Train only this one.")
@click.option("--no-export", is_flag=True, help="Leave the weights; write no ONNX files.")
def command(config_path: Path, out: Path, job: str | None, no_export: bool) -> None:
    """Train the compact mask model and detector on rendered scenes, from a seed to ONNX.

    The two train side by side, a process each. Needs the extra `export`.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise AutolabelError(f"training needs PyTorch: {PYTORCH}") from error
    from lab.training.config import load_config
    from lab.training.train import planned_jobs

    if not config_path.is_file() and (CONFIGS / f"{config_path}.toml").is_file():
        config_path = CONFIGS / f"{config_path}.toml"
    config = load_config(config_path)
    jobs = [job] if job else planned_jobs(config)
    if job:
        _train_one(config, job, out)
    else:
        _side_by_side(config_path, jobs, out)
    if not job and not no_export:
        from lab.training.finish import finish

        for path in finish(config, out):
            click.echo(str(path))


def _train_one(config: Any, job: str, out: Path) -> None:
    """Train in this process; a line of JSON on stderr now and then."""
    from lab.training.train import train_job

    train_job(config, job, out / job, _tell)


def _tell(run: Any) -> None:
    click.echo(json.dumps({"job": run.trained.job.name, **run.curves[-1]}), err=True)


def _side_by_side(config_path: Path, jobs: list[str], out: Path) -> None:
    """Train each model in a process of its own and wait for all."""
    command_line = [sys.executable, "-m", "lab.training"]
    arguments = ["--config", str(config_path), "--out", str(out)]
    running = {name: subprocess.Popen([*command_line, *arguments, "--job", name]) for name in jobs}
    try:
        failed = [name for name, process in running.items() if process.wait() != 0]
    finally:
        for process in running.values():
            process.terminate()
    if failed:
        raise AutolabelError(f"training failed: {', '.join(failed)}; its messages are above")


if __name__ == "__main__":
    command()
