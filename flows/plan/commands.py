"""Commands for people to paste, made of a run's parameters."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from flows.params import LabelParams
from tasks.store import storage

MOST_SOURCES = 10


def backfill_again(label: LabelParams, *more: str, sequences: Sequence[str] = ()) -> str:
    """Return the `autolabel backfill` that labels with these parameters, quoted for a shell.

    Args:
        label: of the run, as its shards have it.
        more: other options.
        sequences: ids of what it is to take; of several, whoever reads has to say it.

    Returns:
        The command, and in words what it lacks: sources of a long list stand in no line, and no
        shard knows of `--since`, `--until` or `--sequences`.

    """
    many = len(label.sources) > MOST_SOURCES
    words = [
        "autolabel",
        "backfill",
        *(() if many else map(storage.redact, label.sources)),
        *_options(label),
        *more,
    ]
    if len(sequences) == 1:
        words += ["--sequences", sequences[0]]
    lacking = [f"its {len(label.sources):,} sources"] if many else []
    if len(sequences) != 1:
        lacking += ["--since, --until or --sequences, if it had some"]
    with_ = f" (with {' and with '.join(lacking)})" if lacking else ""
    return f"`{shlex.join(words)}`{with_}"


def _options(label: LabelParams) -> Iterator[str]:
    """Options of what is not as by default; names are those that `flows.cli.options` makes."""
    for name, value in label.model_dump(exclude_defaults=True, exclude={"sources"}).items():
        yield from _option(name, value)


def _option(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if name == "load_dataset":
        yield "--no-dataset"
    elif isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif value is not None:
        values = value if isinstance(value, (tuple, list)) else [value]
        text = ",".join(storage.redact(str(one)) for one in values)
        yield from (f"--{flag}", text) if not text.startswith("-") else (f"--{flag}={text}",)
