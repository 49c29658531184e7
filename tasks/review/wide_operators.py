"""Operators on more than what is open: an object in all its frames, one sequence, the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fiftyone.operators import types

from sam2_core.types import AutolabelError
from tasks.dataset.ids import sample_id
from tasks.review.actions import Chosen, choose
from tasks.review.export import export_reviews
from tasks.review.operators import Done, GridOperator, ReviewOperator
from tasks.review.patches import is_patches
from tasks.review.queue import build_queue
from tasks.review.selection import chosen_labels
from tasks.review.sequences import MOST_LISTED, list_sequences, sequence_view
from tasks.review.spread import spread
from tasks.review.undo import last_act
from tasks.wording import counted


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


WIDE_OPERATORS: tuple[type[ReviewOperator], ...] = (
    ExportReviews, RefreshQueue, Spread, OpenSequence,
)  # fmt: skip
