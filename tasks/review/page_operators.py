"""What the scripts of the review plugin ask the server; no operators that a person calls."""

from __future__ import annotations

from typing import Any

import fiftyone.operators as foo

from tasks.dataset.appearance import offered_classes
from tasks.review.operators import OPERATORS, PLUGIN
from tasks.review.queue import known_classes


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


PAGE_OPERATORS = (Ask, Classes)
