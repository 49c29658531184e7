"""How to install what is missing: a checkout has make, whose environment has no pip."""

from __future__ import annotations


def how_to_install(extra: str, target: str = "") -> str:
    """Return what installs an extra of this package.

    Args:
        extra: its name in pyproject.toml.
        target: of the Makefile; `extra-NAME` when empty.

    """
    make = target or f"extra-{extra}"
    return (
        f"`make {make}` in a checkout of this project, else pip install 'sam2-autolabel[{extra}]'"
    )
