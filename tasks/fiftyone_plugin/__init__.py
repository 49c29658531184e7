"""The review plugin that FiftyOne loads from its plugin folder."""

from __future__ import annotations

from typing import Any


def register(plugin: Any) -> None:
    """Tell FiftyOne what is here."""
