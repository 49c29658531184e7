"""What the scripts of the review plugin ask the server; no operators that a person calls."""

from __future__ import annotations

from typing import Any

import fiftyone.operators as foo

from tasks.dataset.appearance import offered_classes
from tasks.review.operators import OPERATORS, PLUGIN
from tasks.review.queue import known_classes


class Ask(foo.Operator):  # type: ignore[misc]
    """Open the form of another operator: what a keyboard shortcut cannot do by itself."""

    @property
    def config(self) -> Any:
        """Name; not in the list of operators."""
        return foo.OperatorConfig(name="ask", label="Ask", unlisted=True)

    def execute(self, ctx: Any) -> None:
        """Open it."""
        known = {operator.identity for operator in OPERATORS if operator.asks}
        if ctx.params.get("operator") in known:
            ctx.prompt(f"{PLUGIN}/{ctx.params['operator']}", params=ctx.params.get("params"))


class Classes(foo.Operator):  # type: ignore[misc]
    """Say which classes there are to choose from."""

    @property
    def config(self) -> Any:
        """Name; not in the list of operators."""
        return foo.OperatorConfig(name="classes", label="Classes", unlisted=True)

    def execute(self, ctx: Any) -> dict[str, list[str]]:
        """List them."""
        return {"classes": offered_classes(ctx.dataset) or known_classes(ctx.dataset)}


PAGE_OPERATORS = (Ask, Classes)
