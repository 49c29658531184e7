"""The review plugin that FiftyOne loads from its plugin folder."""

from __future__ import annotations

from typing import Any

from tasks.review.operators import OPERATORS
from tasks.review.page_operators import PAGE_OPERATORS
from tasks.review.panel import ReviewProgress
from tasks.review.repair_operators import REPAIR_OPERATORS
from tasks.review.wide_operators import WIDE_OPERATORS


def register(plugin: Any) -> None:
    """Tell FiftyOne what is here."""
    for operator in (*OPERATORS, *WIDE_OPERATORS, *REPAIR_OPERATORS, *PAGE_OPERATORS):
        plugin.register(operator)
    plugin.register(ReviewProgress)
