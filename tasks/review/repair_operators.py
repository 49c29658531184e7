"""Operators behind the page that mends a mask by clicking: thin, as all operators are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sam2_core.machine_errors import is_machine_error
from sam2_core.types import AutolabelError
from tasks.dataset.ids import sample_id
from tasks.dataset.schema import open_dataset
from tasks.review.mask_repair import Clicked, mend, open_label, take, warm_up
from tasks.review.operators import Done, reported
from tasks.review.page_operators import Unlisted
from tasks.review.selection import UnconfirmedError, chosen_labels


class RepairOpen(Unlisted):
    """Say what the page shows first of the label that is selected or has the focus."""

    identity = "repair_open"

    def execute(self, ctx: Any) -> dict[str, Any]:
        """Find the label."""
        try:
            chosen = chosen_labels(ctx)
            if len(chosen) != 1 or len(chosen[0].labels) != 1:
                raise UnconfirmedError
            _, label = chosen[0].labels[0]
            frame = str(sample_id(chosen[0].frame_key))
            return open_label(ctx.dataset, frame, str(label["_id"]))
        except UnconfirmedError:
            problem = "select one label: its mask is repaired"
        except AutolabelError as error:
            problem = str(error)
        ctx.ops.notify(problem, variant="error")
        return {"problem": problem}


class RepairWarm(Unlisted):
    """Load the model and encode what clicks will look at."""

    identity = "repair_warm"

    def execute(self, ctx: Any) -> dict[str, Any]:
        """Load it."""
        about = [str(ctx.params.get(name)) for name in ("sample_id", "label_id")]
        return _answered(lambda: {"model": warm_up(_dataset_of(ctx), *about)})


class RepairClick(Unlisted):
    """Make the mask of clicks."""

    identity = "repair_click"

    def execute(self, ctx: Any) -> dict[str, Any]:
        """Make it."""

        def made() -> dict[str, Any]:
            _, mended = mend(_dataset_of(ctx), Clicked.of(ctx.params))
            return mended.shown()

        return _answered(made)


class RepairAccept(Unlisted):
    """Take the mask of clicks as the label's correction."""

    identity = "repair_accept"

    def execute(self, ctx: Any) -> dict[str, Any]:
        """Store it, as every decision."""

        def act() -> Done:
            clicked = Clicked.of(ctx.params)
            return Done(f"corrected the mask with {clicked.told()}", take(ctx.dataset, clicked))

        return reported(ctx, act, self.identity)


def _dataset_of(ctx: Any) -> Any:
    """Open the dataset as it was opened before: `ctx.dataset` is all loaded anew for each click."""
    return open_dataset(str(ctx.dataset_name))


def _answered(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return an answer, or the problem in words."""
    try:
        return act()
    except AutolabelError as error:
        return {"problem": str(error)}
    except Exception as error:
        if not is_machine_error(error):
            raise
        return {"problem": f"this machine cannot do it: {error}"}


REPAIR_OPERATORS = (RepairOpen, RepairWarm, RepairClick, RepairAccept)
