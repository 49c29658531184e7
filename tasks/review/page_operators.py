"""Operators beside the decisions: whole datasets, masks mended by clicks, what the scripts ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fiftyone.operators as foo
from fiftyone.operators import types

from sam2_core.machine_errors import is_machine_error
from sam2_core.types import AutolabelError
from tasks.dataset.appearance import offered_classes
from tasks.dataset.ids import sample_id
from tasks.dataset.schema import open_dataset
from tasks.review.actions import Chosen, choose
from tasks.review.app_samples import is_patches
from tasks.review.export import export_reviews
from tasks.review.mask_repair import Clicked, mend, open_label, take, warm_up
from tasks.review.objects import spread
from tasks.review.operators import OPERATORS, PLUGIN, Done, GridOperator, ReviewOperator, reported
from tasks.review.queue import build_queue, known_classes
from tasks.review.selection import UnconfirmedError, chosen_labels
from tasks.review.sequences import MOST_LISTED, list_sequences, sequence_view
from tasks.review.undo import last_act
from tasks.wording import counted


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


class ExportReviews(GridOperator):
    """Write what was decided to the run's storage."""

    identity, label, icon = "export_reviews", "Export reviewed labels", "download"

    def act(self, ctx: Any) -> Done:
        """Export."""
        report = export_reviews(ctx.dataset.name)
        return Done(f"{report.text()} written to {report.table_uri}")


class RefreshQueue(GridOperator):
    """Order the queue again."""

    identity, label, icon = "refresh_queue", "Order the review queue again", "sort"

    def act(self, ctx: Any) -> Done:
        """Order it."""
        queue = build_queue(ctx.dataset, int(ctx.params.get("budget") or 200))
        ctx.ops.reload_dataset()
        return Done(queue.text())


class Spread(ReviewOperator):
    """Decide on all frames of an object as on one of its labels."""

    identity, label, icon = "spread", "Whole object (Shift+O)", "layers"

    def act(self, ctx: Any) -> Done:
        """Spread the decision on the labels that are selected, else this reviewer's last one."""
        chosen = _selected(ctx) or _last(ctx.dataset)
        events = spread(ctx.dataset, chosen)
        count = sum(len(event.decisions) for event in events)
        frames = counted(len({event.frame_key for event in events}), "frame")
        return Done(f"the whole object: {counted(count, 'more label')} on {frames}", events)


def _selected(ctx: Any) -> Sequence[Chosen]:
    if ctx.selected_labels or (is_patches(ctx.view) and ctx.selected):
        return chosen_labels(ctx)
    return ()


def _last(dataset: Any) -> Sequence[Chosen]:
    act = last_act(dataset)
    if not act:
        raise AutolabelError("decide on a label first, then on the rest of its object")
    frames = [str(sample_id(event.frame_key)) for event in act]
    return choose(dataset, frames, [label for event in act for label in event.decisions])


class OpenSequence(ReviewOperator):
    """Show one sequence, chosen from a list that can be searched; its button asks by itself."""

    identity, label, icon, asks = "open_sequence", "Open a sequence", "list", True

    def resolve_input(self, ctx: Any) -> Any:
        """Offer the sequences, the riskiest first; a part of a name will do."""
        inputs = types.Object()
        choices = types.AutocompleteView(allow_user_input=True)
        for name, text in list(list_sequences(ctx.dataset).items())[:MOST_LISTED]:
            choices.add_choice(name, label=text)
        inputs.str("sequence", label="Sequence, or a part of its name", view=choices)
        return types.Property(inputs, view=types.View(label=self.label))

    def act(self, ctx: Any) -> Done:
        """Show its frames in order."""
        name = str(ctx.params.get("sequence") or "").strip()
        view = sequence_view(ctx.dataset, name)
        ctx.ops.set_view(view=view)
        names = view.distinct("sequence_id")
        shown = names[0] if len(names) == 1 else counted(len(names), "sequence")
        return Done(f"{shown}: {counted(view.count(), 'frame')}")


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


OTHER_OPERATORS: tuple[type[foo.Operator], ...] = (
    ExportReviews, RefreshQueue, Spread, OpenSequence, Ask, Classes, Sequences, Sidebar,
    RepairOpen, RepairWarm, RepairClick, RepairAccept,
)  # fmt: skip
