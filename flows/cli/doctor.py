"""`autolabel doctor`: what this machine has, what it lacks, and what to do."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from flows.cli.common_options import json_option


@click.command(short_help="Check what this machine has and lacks.")
@json_option
def command(as_json: bool) -> None:
    """Check Python, ONNX Runtime, GPUs, models, MongoDB, the cache and credentials.

    Exit code 0: labeling works here; 1: something required is missing.
    """
    from rich.markup import escape

    from flows.cli.display import stderr_console
    from flows.cli.doctor_run import examine

    findings = examine()
    console = stderr_console()
    marks = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "missing": "[red]✗[/]"}
    for one in findings:
        console.print(f"{marks[one.state]} [bold]{one.name:<12}[/] {escape(one.found)}")
        if one.advice:
            console.print(f"  {'':<12} → {escape(one.advice)}")
    broken = any(one.state == "missing" for one in findings)
    if as_json:
        values = {one.name: asdict(one) for one in findings}
        click.echo(json.dumps({"ok": not broken, "findings": values}, indent=2))
    raise SystemExit(1 if broken else 0)
