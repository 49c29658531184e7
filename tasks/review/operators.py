"""Operators of the review plugin: thin, what they do is in `tasks.review.actions`.

They act on the labels that are selected in the App; with none selected, on the undecided labels of
the open or selected frames. In a view of patches every tile is a label: the selected or open ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fiftyone.operators as foo
from fiftyone.operators import types

from sam2_core.types import AutolabelError
from tasks.dataset.appearance import offered_classes
from tasks.dataset.schema import MACHINE_FIELD
from tasks.review import actions
from tasks.review.actions import Chosen, choose
from tasks.review.export import export_reviews
from tasks.review.patches import frames_of, is_patches, labels_of_patches
from tasks.review.queue import build_queue, everything, known_classes
from tasks.review.relabel_requests import PROMPTS, request_relabel
from tasks.review.submit import submit_relabel
from tasks.wording import counted

MAX_UNSELECTED_FRAMES = 20


def chosen_labels(ctx: Any) -> list[Chosen]:
    """Find what an operator is about.

    Raises:
        AutolabelError: nothing is selected, or far too much.

    """
    selected = ctx.selected_labels or []
    if selected:
        samples = frames_of(ctx.view, [one["sample_id"] for one in selected])
        labels = [one["label_id"] for one in selected]
        return choose(ctx.dataset, list(samples.values()), labels)
    frames = [ctx.current_sample] if ctx.current_sample else list(ctx.selected or [])
    if not frames:
        raise AutolabelError("select labels, or frames, or open a frame first")
    if is_patches(ctx.view):
        samples = frames_of(ctx.view, frames)
        return choose(ctx.dataset, list(samples.values()), labels_of_patches(ctx.view, frames))
    if len(frames) > MAX_UNSELECTED_FRAMES:
        raise AutolabelError(
            f"{counted(len(frames), 'frame')} selected; "
            f"select at most {MAX_UNSELECTED_FRAMES} at a time"
        )
    return choose(ctx.dataset, frames, _undecided(ctx, frames))


def _undecided(ctx: Any, frames: Sequence[str]) -> list[str]:
    """Undecided machine labels of frames, those only that the current view shows."""
    shown = everything(ctx.dataset) if ctx.view is None else ctx.view
    if shown.media_type == "group":
        shown = shown.select_group_slices(_allow_mixed=True)
    inner = f"{MACHINE_FIELD}.detections"
    ids, decisions = shown.select(list(frames)).values([f"{inner}.id", f"{inner}.decision"])
    return [
        label
        for row, decided in zip(ids, decisions, strict=True)
        for label, decision in zip(row or (), decided or (), strict=True)
        if not decision
    ]


def reported(ctx: Any, act: Callable[[], str]) -> dict[str, Any]:
    """Run an action and say in the App how it went."""
    try:
        text = act()
    except AutolabelError as error:
        ctx.ops.notify(str(error), variant="error")
        return {"message": str(error), "ok": False}
    ctx.ops.clear_selected_labels()
    ctx.ops.reload_dataset()
    if ctx.current_sample:  # an open frame is drawn anew only when it is opened anew
        ctx.ops.close_sample()
        ctx.ops.open_sample(id=ctx.current_sample)
    ctx.ops.notify(text, variant="success")
    return {"message": text, "ok": True}


class ReviewOperator(foo.Operator):  # type: ignore[misc]
    """What the review operators share: one button, one action."""

    identity = ""
    label = ""
    icon = "check"
    place = types.Places.SAMPLES_VIEWER_ACTIONS
    asks = False

    @property
    def config(self) -> Any:
        """Name and looks."""
        return foo.OperatorConfig(
            name=self.identity, label=self.label, icon=self.icon, dynamic=self.asks
        )

    def resolve_placement(self, ctx: Any) -> Any:
        """Show a button beside an open frame."""
        button = types.Button(label=self.label, icon=f"/assets/{self.icon}.svg", prompt=self.asks)
        return types.Placement(self.place, button)

    def execute(self, ctx: Any) -> dict[str, Any]:
        """Act on what is selected."""
        return reported(ctx, lambda: self.act(ctx))

    def act(self, ctx: Any) -> str:
        """Do it and say what was done."""
        raise NotImplementedError

    def resolve_output(self, ctx: Any) -> Any:
        """Show nothing: a notification says how it went."""
        return None


def _count(chosen: Sequence[Chosen]) -> str:
    return counted(sum(len(frame.labels) for frame in chosen), "label")


class DecideOperator(ReviewOperator):
    """What needs nothing but the labels: one decision, and how it is told."""

    decide: Callable[[Any, Sequence[Chosen]], object]
    told = ""

    def act(self, ctx: Any) -> str:
        """Decide."""
        chosen = chosen_labels(ctx)
        self.decide(ctx.dataset, chosen)
        return f"{self.told} {_count(chosen)}"


class Accept(DecideOperator):
    """Accept the labels."""

    identity, label, icon = "accept", "Accept labels (Shift+A)", "check"
    decide = staticmethod(actions.accept)
    told = "accepted"


class Reject(DecideOperator):
    """Reject the labels."""

    identity, label, icon = "reject", "Reject labels (Shift+R)", "close"
    decide = staticmethod(actions.reject)
    told = "rejected"


class Delete(DecideOperator):
    """Remove labels that are superfluous."""

    identity, label, icon = "delete", "Delete labels (Shift+D)", "delete"
    decide = staticmethod(actions.delete)
    told = "deleted"


class Merge(DecideOperator):
    """Make one instance of several labels."""

    identity, label, icon = "merge", "Merge labels (Shift+M)", "merge"
    decide = staticmethod(actions.merge)
    told = "merged"


class FixClass(ReviewOperator):
    """Give the labels another class."""

    identity, label, icon, asks = "fix_class", "Fix the class (Shift+F)", "label", True

    def resolve_input(self, ctx: Any) -> Any:
        """Ask for the class; those of the dataset are offered."""
        inputs = types.Object()
        known = offered_classes(ctx.dataset) or known_classes(ctx.dataset)
        choices = types.AutocompleteView(allow_user_input=True)
        for name in known:
            choices.add_choice(name, label=name)
        inputs.str("class_name", label="Class", required=True, view=choices)
        return types.Property(inputs, view=types.View(label=self.label))

    def act(self, ctx: Any) -> str:
        """Give them the class."""
        chosen = chosen_labels(ctx)
        name = str(ctx.params.get("class_name") or "")
        actions.fix_class(ctx.dataset, chosen, name)
        return f"{_count(chosen)} are now {name}"


class SendToRelabel(ReviewOperator):
    """Have the labels made again."""

    identity, label, icon, asks = "send_to_relabel", "Send to relabel (Shift+L)", "refresh", True

    def resolve_input(self, ctx: Any) -> Any:
        """Ask for prompt and model."""
        inputs = types.Object()
        inputs.enum("prompt", list(PROMPTS), default="box", label="Prompt",
                    description="the box as it is, or 10% wider or tighter")  # fmt: skip
        inputs.str("model", label="Model", required=False,
                   description="preset or path; empty: the one that made the labels")  # fmt: skip
        return types.Property(inputs, view=types.View(label=self.label))

    def act(self, ctx: Any) -> str:
        """Write the request and hand it on."""
        chosen = chosen_labels(ctx)
        request = request_relabel(
            ctx.dataset, chosen, ctx.params.get("model") or "", ctx.params.get("prompt") or "box"
        )
        return f"sent {_count(chosen)}: {submit_relabel(ctx.dataset, request)}"


class SequenceDone(ReviewOperator):
    """Mark the sequence of the open or selected frame as reviewed."""

    identity, label, icon = "sequence_done", "Sequence done (Shift+E)", "done_all"

    def act(self, ctx: Any) -> str:
        """Mark every frame."""
        frames = [ctx.current_sample] if ctx.current_sample else list(ctx.selected or [])
        if not frames:
            raise AutolabelError("open or select a frame of the sequence first")
        samples = frames_of(ctx.view, frames).values()
        names = {ctx.dataset[one].sequence_id for one in samples}
        count = sum(actions.mark_sequence(ctx.dataset, name) for name in names)
        return f"{', '.join(sorted(names))}: {counted(count, 'frame')} marked as done"


class ExportReviews(ReviewOperator):
    """Write what was decided to the run's storage."""

    identity, label, icon = "export_reviews", "Export reviewed labels", "download"
    place = types.Places.SAMPLES_GRID_SECONDARY_ACTIONS

    def act(self, ctx: Any) -> str:
        """Export."""
        report = export_reviews(ctx.dataset.name)
        return f"{report.text()} written to {report.table_uri}"


class RefreshQueue(ReviewOperator):
    """Order the queue again."""

    identity, label, icon = "refresh_queue", "Order the review queue again", "sort"
    place = types.Places.SAMPLES_GRID_SECONDARY_ACTIONS

    def act(self, ctx: Any) -> str:
        """Order it."""
        queue = build_queue(ctx.dataset, int(ctx.params.get("budget") or 200))
        ctx.ops.reload_dataset()
        return queue.text()


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
            ctx.prompt(f"sam2-autolabel/{ctx.params['operator']}")


OPERATORS: tuple[type[ReviewOperator], ...] = (
    Accept, Reject, FixClass, Merge, Delete, SendToRelabel, SequenceDone, ExportReviews,
    RefreshQueue,
)  # fmt: skip
