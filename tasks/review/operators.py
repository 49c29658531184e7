"""Operators of the review plugin: thin, what they do is in `tasks.review.actions`.

What they act on is in `tasks.review.selection`. Keys and buttons are in the plugin's JavaScript,
which also draws the open frame anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import fiftyone.operators as foo
from fiftyone.operators import types

from sam2_core.types import AutolabelError
from tasks.dataset.appearance import offered_classes
from tasks.dataset.database_access import DatabaseAwayError
from tasks.dataset.database_keeper import await_answer
from tasks.dataset.ids import sample_id
from tasks.review import actions
from tasks.review.actions import Chosen
from tasks.review.app_samples import as_stored, frames_of, is_patches, redrawn
from tasks.review.events import Event
from tasks.review.queue import known_classes
from tasks.review.relabel_requests import PROMPTS, request_relabel, sent_back, submit_relabel
from tasks.review.selection import UnconfirmedError, chosen_labels, count_labels
from tasks.review.undo import redo, undo
from tasks.wording import counted

PLUGIN = "sam2-autolabel"


@dataclass(frozen=True)
class Done:
    """What an operator did.

    Attributes:
        text: said in the App.
        events: what it changed, drawn anew.
        focus: id of the label that gets the focus; by default the next one.
        frame: id of the sample to show; by default the open one.

    """

    text: str
    events: Sequence[Event] = ()
    focus: str = ""
    frame: str = ""


def reported(ctx: Any, act: Callable[[], Done], again: str = "") -> dict[str, Any]:
    """Run an action, draw what it changed anew, and say in the App how it went.

    A page that asks directly, past FiftyOne's own queue, has drawn it already: it gets what is
    stored as the result, and says itself what went wrong.

    Args:
        ctx: of the operator.
        act: what to do.
        again: operator that does it if somebody says yes to a question.

    """
    try:
        await_answer()
        done = act()
    except DatabaseAwayError as error:
        if not ctx.params.get("direct"):
            ctx.ops.notify(str(error), variant="error")
        return {"message": str(error), "ok": False, "away": True}
    except UnconfirmedError as question:
        asked = {"question": str(question), "operator": again, "params": dict(ctx.params)}
        ctx.trigger(f"{PLUGIN}/confirm", asked)
        return {"message": str(question), "ok": False}
    except AutolabelError as error:
        if ctx.params.get("direct"):
            focus = ctx.params["focus"]
            stored = as_stored(ctx.dataset, focus["sample_id"], focus["label_id"])
            return {"message": str(error), "ok": False, "samples": stored}
        ctx.ops.notify(str(error), variant="error")
        return {"message": str(error), "ok": False}
    if ctx.params.get("direct"):
        return {"message": done.text, "ok": True, "samples": redrawn(ctx.dataset, done.events)}
    if done.events:
        if ctx.selected_labels:  # the App asks for all buttons anew when a selection changes
            ctx.ops.clear_selected_labels()
        if is_patches(ctx.view):
            ctx.ops.clear_selected_samples()
        shown = {"focus": done.focus, "frame": done.frame, "step": 1 if again == "redo" else -1}
        samples = redrawn(ctx.dataset, done.events)
        ctx.trigger(f"{PLUGIN}/redraw", {"samples": samples, **shown})
    ctx.ops.notify(done.text, variant="success")
    return {"message": done.text, "ok": True, "redraws": bool(done.events)}


class ReviewOperator(foo.Operator):  # type: ignore[misc]
    """What the review operators share: one button, one action."""

    identity = ""
    label = ""
    icon = "check"
    asks = False

    @property
    def config(self) -> Any:
        """Name and looks."""
        return foo.OperatorConfig(
            name=self.identity, label=self.label, icon=self.icon, dynamic=self.asks
        )

    def execute(self, ctx: Any) -> dict[str, Any]:
        """Act on what is selected."""
        return reported(ctx, lambda: self.act(ctx), self.identity)

    def act(self, ctx: Any) -> Done:
        """Do it and say what was done."""
        raise NotImplementedError

    def resolve_output(self, ctx: Any) -> Any:
        """Show nothing: a notification says how it went."""
        return None


class GridOperator(ReviewOperator):
    """One with a button above the grid."""

    def resolve_placement(self, ctx: Any) -> Any:
        """Show it."""
        button = types.Button(label=self.label, icon=f"/assets/{self.icon}.svg", prompt=self.asks)
        return types.Placement(types.Places.SAMPLES_GRID_SECONDARY_ACTIONS, button)


class DecideOperator(ReviewOperator):
    """What needs nothing but the labels: one decision, and what the App says of it."""

    decide: Callable[[Any, Sequence[Chosen]], list[Event]]
    told = ""

    def act(self, ctx: Any) -> Done:
        """Decide."""
        chosen = chosen_labels(ctx)
        return Done(f"{self.told} {count_labels(chosen)}", self.decide(ctx.dataset, chosen))


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
        """Ask for the class, at first the one that the labels have; the dataset's are offered."""
        inputs = types.Object()
        known = offered_classes(ctx.dataset) or known_classes(ctx.dataset)
        choices = types.AutocompleteView(allow_user_input=True)
        for name in known:
            choices.add_choice(name, label=name)
        now = set[str]()
        with contextlib.suppress(AutolabelError, UnconfirmedError):  # `act` says what is wrong
            now = {label["label"] for frame in chosen_labels(ctx) for _, label in frame.labels}
        default = now.pop() if len(now) == 1 else None
        inputs.str("class_name", label="Class", required=True, view=choices, default=default)
        return types.Property(inputs, view=types.View(label=self.label))

    def act(self, ctx: Any) -> Done:
        """Give them the class."""
        chosen = chosen_labels(ctx)
        name = str(ctx.params.get("class_name") or "")
        events = actions.fix_class(ctx.dataset, chosen, name)
        return Done(f"{count_labels(chosen)} now of class {name}", events)


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

    def act(self, ctx: Any) -> Done:
        """Write the request and hand it on."""
        chosen = chosen_labels(ctx)
        request = request_relabel(
            ctx.dataset, chosen, ctx.params.get("model") or "", ctx.params.get("prompt") or "box"
        )
        text = f"sent {count_labels(chosen)}: {submit_relabel(ctx.dataset, request)}"
        labels = {one.frame_key: one.label_ids for one in request.frames}
        return Done(text, [sent_back(one, labels.get(one.frame_key, ())) for one in chosen])


class SequenceDone(ReviewOperator):
    """Mark the sequence of the open or selected frame as reviewed."""

    identity, label, icon = "sequence_done", "Sequence done (Shift+E)", "done_all"

    def act(self, ctx: Any) -> Done:
        """Mark every frame."""
        frames = [ctx.current_sample] if ctx.current_sample else list(ctx.selected or [])
        if not frames:
            raise AutolabelError("open or select a frame of the sequence first")
        samples = frames_of(ctx.view, frames).values()
        names = sorted({ctx.dataset[one].sequence_id for one in samples})
        if not ctx.params.get("confirmed"):
            raise UnconfirmedError(
                f"all frames of {', '.join(names)}; labels that nobody touched count as right"
            )
        count = sum(actions.mark_sequence(ctx.dataset, name) for name in names)
        return Done(f"{', '.join(names)}: {counted(count, 'frame')} marked as done")


class Undo(ReviewOperator):
    """Take this reviewer's last decision back."""

    identity, label, icon = "undo", "Undo the last decision (Shift+Z)", "undo"
    turn = staticmethod(undo)
    focuses = True

    def act(self, ctx: Any) -> Done:
        """Revert it."""
        events = self.turn(ctx.dataset)
        first = next((label for event in events for label in event.decisions), "")
        frame = str(sample_id(events[0].frame_key))
        (done,) = {name for event in events for name in event.changes.values()} or {""}
        text = f"{self.identity}: {str(done).replace('_', ' ')}"
        return Done(text, events, first if self.focuses else "", frame)


class Redo(Undo):
    """Decide again what was undone last."""

    identity, label, icon = "redo", "Redo (Shift+Y)", "redo"
    turn = staticmethod(redo)
    focuses = False  # it is decided again, so the next one has it


OPERATORS: tuple[type[ReviewOperator], ...] = (
    Accept, Reject, FixClass, Merge, Delete, SendToRelabel, SequenceDone, Undo, Redo,
)  # fmt: skip
