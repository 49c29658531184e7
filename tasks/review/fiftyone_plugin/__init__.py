"""The review plugin that FiftyOne loads from its plugin folder."""

from typing import Any

from tasks.review.operators import Review, ReviewProgress


def register(plugin: Any) -> None:
    """Tell FiftyOne what is here."""
    plugin.register(Review)
    plugin.register(ReviewProgress)
