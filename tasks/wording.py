"""Words that every message shares."""

import html
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from sam2_core.redaction import one_line

_MARKS = re.compile(r"[\\`*\[\]|~$]|\b_|_\b")


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line, in a table too."""
    return _MARKS.sub(r"\\\g<0>", html.escape(one_line(text), quote=False))


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, with an empty one after it."""
    lines = [columns, ["---"] * len(columns), *([plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return "1 frame", "2 frames", "1,000 frames"; `plural` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def local_time(moment: str, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a moment in ISO form with its offset, for people: in this machine's time zone."""
    return datetime.fromisoformat(moment).astimezone().strftime(form)


def local_date(moment: str) -> str:
    """Return the day of a moment in ISO form with its offset, in this machine's time zone."""
    return local_time(moment, "%Y-%m-%d")
