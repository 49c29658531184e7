"""Words that every message shares."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Return a name from elsewhere as it can be shown: control characters by their codes."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return "1 frame", "2 frames", "1,000 frames"; `plural` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
