"""What a worker offers to label with, told in its name: Prefect shows names to whoever plans."""

from __future__ import annotations

from collections.abc import Iterable

from sam2_core.backend_choice import BEST_FIRST

# Between a worker's name and what it offers, and between its offers.
OFFERS, AND = "~", "+"


def named(name: str, offers: Iterable[str]) -> str:
    """Return a worker's name with what it offers."""
    return OFFERS.join([name, AND.join(offers)])


def offers_of(name: str) -> tuple[str, ...]:
    """Return what a worker's name says that it offers; nothing for those that others started."""
    return backends_in(name.partition(OFFERS)[2])


def backends_in(text: str) -> tuple[str, ...]:
    """Return the backends of a text, which has a + between them."""
    return tuple(one for one in text.split(AND) if one in BEST_FIRST)
