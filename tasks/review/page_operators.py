"""What the scripts of the review plugin ask the server; no operators that a person calls."""

from __future__ import annotations

from typing import Any

import fiftyone.operators as foo

from tasks.dataset.appearance import offered_classes
from tasks.review.operators import OPERATORS, PLUGIN
from tasks.review.queue import known_classes
from tasks.review.sequences import MOST_LISTED, list_sequences


class Unlisted(foo.Operator):  # type: ignore[misc]
    """One that a page asks, and people do not."""

    identity = ""

    @property
    def config(self) -> Any:
        """Name; not in the list of operators."""
        return foo.OperatorConfig(name=self.identity, label=self.identity, unlisted=True)


class Ask(Unlisted):
    """Open the form of another operator: what a keyboard shortcut cannot do by itself."""

    identity = "ask"

    def execute(self, ctx: Any) -> None:
        """Open it."""
        known = {operator.identity for operator in OPERATORS if operator.asks}
        if ctx.params.get("operator") in known:
            ctx.prompt(f"{PLUGIN}/{ctx.params['operator']}", params=ctx.params.get("params"))


class Classes(Unlisted):
    """Say which classes there are to choose from."""

    identity = "classes"

    def execute(self, ctx: Any) -> dict[str, list[str]]:
        """List them."""
        return {"classes": offered_classes(ctx.dataset) or known_classes(ctx.dataset)}


class Sequences(Unlisted):
    """Say which sequences there are to open."""

    identity = "sequences"

    def execute(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """List them, the riskiest first: name, and what there is to know."""
        return {"sequences": list(list_sequences(ctx.dataset).items())[:MOST_LISTED]}


class Sidebar(Unlisted):
    """Say how the dataset's fields are grouped beside the grid."""

    identity = "sidebar"

    def execute(self, ctx: Any) -> dict[str, Any]:
        """List the groups."""
        groups = ctx.dataset.app_config.sidebar_groups or ()
        return {
            "groups": [
                {"name": one.name, "paths": list(one.paths), "expanded": one.expanded}
                for one in groups
            ]
        }


PAGE_OPERATORS = (Ask, Classes, Sequences, Sidebar)
