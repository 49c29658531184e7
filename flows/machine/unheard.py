"""A flow run whose worker was killed goes on to its polite end, though nobody reads what it prints.

What Prefect logs goes through Rich, which ends the process at the first line that nobody reads: the
shard would be Crashed, instead of given back at the end of the chunk at hand.
"""

from __future__ import annotations

import os
import sys


def go_on_unheard() -> None:
    """Let the consoles of this process fall silent where their reader is gone."""
    from rich.console import Console

    Console.on_broken_pipe = _fall_silent  # type: ignore[method-assign,assignment]


def _fall_silent(_: object) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
