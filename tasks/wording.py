"""Words that every message shares."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return "1 frame", "2 frames", "1,000 frames"; `plural` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
