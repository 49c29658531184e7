"""The review plugin that FiftyOne loads from its plugin folder."""

from __future__ import annotations

from typing import Any

from tasks.review.operators import OPERATORS
from tasks.review.page_operators import OTHER_OPERATORS
from tasks.review.panel import ReviewProgress


def register(plugin: Any) -> None:
    """Tell FiftyOne what is here."""
    for operator in (*OPERATORS, *OTHER_OPERATORS):
        plugin.register(operator)
    plugin.register(ReviewProgress)
