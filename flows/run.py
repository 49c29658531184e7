"""Runs from Python, as their commands do them."""

from __future__ import annotations

from typing import Any

from flows.cli.label import run_label
from flows.params import LabelParams


def label(params: LabelParams) -> dict[str, Any]:
    """Label as `autolabel label` does; what it says goes to stderr, Ctrl-C is Python's own.

    `flows.label.label` is the same as a Prefect flow, for deployments. Called where no server is
    configured, that has Prefect start a server of its own, which takes longer and keeps no runs.

    Returns:
        The summary, what `autolabel label --json` prints.

    Raises:
        AutolabelError: nothing could be started (missing source, unusable model, ...).

    """
    return run_label(params, stopped="")
