"""What keys and buttons of the App ask for: one operator, whose parameter `act` says what to do.

An act is about the selected labels, the one with the focus, or those of the selected frames. In a
view of patches every tile is a label. More than one label that nobody selected is acted on only
after a question. The page draws what the answer says and shows its message.

A view of patches has samples of its own, in a dataset that FiftyOne generates: a sample's id is
that of its label, and `_sample_id` names the frame. Ids are led back to the frames.

The panel shows how the review goes.
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fiftyone.operators as foo
from bson import ObjectId
from fiftyone.operators import types

from sam2_core.clicks import drawn
from sam2_core.machine_errors import is_machine_error
from sam2_core.types import AutolabelError
from tasks.dataset.database import DatabaseAwayError, await_answer
from tasks.dataset.documents import detections_of, mask_of, sample_id, to_document
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import (
    LOG_FIELD,
    MACHINE_FIELD,
    OPEN,
    REVIEWED_FIELD,
    SHARE_FIELD,
    offered_classes,
    open_dataset,
)
from tasks.review import actions
from tasks.review.actions import Chosen, as_corrected, choose
from tasks.review.events import (
    NOTHING_HERE,
    Event,
    decided_by_now,
    deciders,
    last_act,
    redo,
    reviewer,
    undo,
)
from tasks.review.follow_from import begin, held
from tasks.review.mask_repair import Clicked, mend, open_label, take, take_drawn, warm_up
from tasks.review.opinions import second_opinions_given, unsettled
from tasks.review.queue import (
    CONTROL,
    DISAGREEMENTS,
    MOST_LISTED,
    NEEDS_REVIEW,
    ONE_SEQUENCE,
    ORDER_AGAIN,
    QUEUES,
    SECOND_OPINIONS,
    Share,
    asks_for_more,
    build_queue,
    everything,
    is_patches,
    known_classes,
    left_doubtful,
    left_of_objects,
    list_sequences,
    object_of,
    queue_standing,
    sequence_view,
    show_disagreements,
    show_second_opinions,
    spread,
    unseen_by_me,
    unseen_labels,
)  # fmt: skip
from tasks.review.stats import (
    decisions_plot,
    rates_plot,
    review_stats,
    risks_plot,
    shown_names,
    summary,
)
from tasks.risk.compute_risk import DESCRIPTIONS, WORDS
from tasks.wording import counted


def frames_of(view: Any, sample_ids: Sequence[str]) -> dict[str, str]:
    """Lead sample ids of a view back to the frames: id -> id of the frame's sample, in order.

    Ids that are those of frames already stay as they are, and so do all ids of a view of frames.
    """
    found: dict[str, str] = {}
    if is_patches(view):
        wanted = {"_id": {"$in": [ObjectId(one) for one in sample_ids]}}
        patches = sample_collection(view._patches_dataset)
        found = {
            str(one["_id"]): str(one["_sample_id"])
            for one in patches.find(wanted, {"_sample_id": 1})
        }
    return {one: found.get(one, one) for one in map(str, sample_ids)}


def labels_of_patches(view: Any, sample_ids: Sequence[str]) -> list[str]:
    """Label ids of patches: one each, or those that an evaluation has put together."""
    found: list[str] = []
    for field in view._label_fields:
        _, path = view._get_label_field_path(field)
        found += view.select(list(sample_ids)).values(f"{path}.id", unwind=True)
    return [str(one) for one in found if one]


SHOWN = ("risk", "reasons", "review_status")


def redrawn(dataset: Any, events: Sequence[Event]) -> dict[str, Any]:
    """Return what events changed, by sample id, as the App's own samples are written.

    `labels` has the labels by field, `gone` the ids of those that are no more, `values` the frame's
    other fields.
    """
    wanted: dict[Any, set[str]] = {}
    for event in events:
        made = {str(one["id"]) for one in event.upserts}
        changed = {*event.decisions, *event.overrides, *event.removed} | made
        wanted.setdefault(sample_id(event.frame_key), set()).update(changed)
    return labels_as_stored(dataset, wanted)


def labels_as_stored(dataset: Any, wanted: Mapping[Any, Collection[str]]) -> dict[str, Any]:
    """Return the same of labels by their samples' ids, whatever has happened to them."""
    from fiftyone.core.json import stringify

    # Masks are large, and a sequence that is marked as done has many.
    of_labels = (MACHINE_FIELD, REVIEWED_FIELD, LOG_FIELD) if any(wanted.values()) else ()
    projection = dict.fromkeys(("frame_key", SHARE_FIELD, *SHOWN, *of_labels), 1)
    found = sample_collection(dataset).find({"_id": {"$in": list(wanted)}}, projection)
    return {str(one["_id"]): stringify(_change(one, wanted[one["_id"]])) for one in found}


def _change(sample: Mapping[str, Any], touched: Collection[str]) -> dict[str, Any]:
    # Also after an opinion, or an undo, nobody sees what the other has decided.
    unseen = unseen_labels(sample)
    found = {
        MACHINE_FIELD: [
            {**one, "decision": unseen.get(str(one["_id"]), one.get("decision"))}
            for one in detections_of(sample, MACHINE_FIELD)
        ],
        REVIEWED_FIELD: [
            one
            for one in detections_of(sample, REVIEWED_FIELD)
            if unseen.keys().isdisjoint(one.get("sources", ()))
        ],
    }
    labels = {
        field: [one for one in rows if str(one["_id"]) in touched] for field, rows in found.items()
    }
    present = {str(one["_id"]) for rows in labels.values() for one in rows}
    values = {name: sample[name] for name in SHOWN if name in sample}
    return {"labels": labels, "gone": sorted(set(touched) - present), "values": values}


_WORDS = {**WORDS, "none": "no reason"}
WHOLE_UP_TO = 10  # below it Plotly would divide an axis of counts into fractions


class ReviewProgress(foo.Panel):  # type: ignore[misc]
    """How the review goes; counts whenever somebody comes to it."""

    @property
    def config(self) -> Any:
        """Name and looks."""
        return foo.PanelConfig(
            name="review_progress", label="Review progress", icon="fact_check", surfaces="grid"
        )

    def refresh(self, ctx: Any) -> None:
        """Count everything again."""
        stats = review_stats(ctx.dataset)
        ctx.panel.set_state("summary", summary(stats))
        differing = unsettled(stats.opinions)
        second = queue_standing(ctx.dataset, Share.of_this_process().named(SECOND_OPINIONS))
        mine = second.left if second.view.startswith(SECOND_OPINIONS) else 0
        views = [
            ("Needs review", stats.queue.view, stats.labels),
            ("Control sample: random labels", CONTROL, stats.control_size),
            (counted(mine, "second opinion"), second.view, mine),
            (counted(differing, "disagreement"), DISAGREEMENTS, differing),
        ]
        ctx.panel.set_state("views", [[label, view] for label, view, count in views if count])
        reasons = {_WORDS.get(name, name): rate for name, rate in stats.by_reason.items()}
        plots = {
            "decisions": decisions_plot(stats),
            "by_class": rates_plot(stats.by_class),
            "by_reason": rates_plot(reasons),
            "by_sequence": risks_plot(stats.by_sequence),
        }
        for name, plot in plots.items():
            ctx.panel.set_data(name, plot)
            ctx.panel.set_state(f"layout_{name}", _layout(name, plot))

    on_change_selected = on_change_current_sample = refresh  # decisions were made, perhaps

    def on_load(self, ctx: Any) -> None:
        """Count, and have FiftyOne count: back at the grid it asks for tiles anew, not for that."""
        self.refresh(ctx)
        ctx.ops.reload_samples()

    on_change_dataset = on_load  # whenever the panel is shown again

    def open(self, ctx: Any) -> None:
        """Show the view of a button on the grid, which the panel may lie over."""
        ctx.ops.set_view(name=ctx.params["view"])
        ctx.ops.open_panel("Samples")

    def render(self, ctx: Any) -> Any:
        """Lay the panel out."""
        panel = types.Object()
        buttons = panel.h_stack("buttons", gap=2)
        for row, (label, view) in enumerate(ctx.panel.get_state("views") or ()):
            buttons.btn(f"view_{row}", label=label, on_click=self.open, params={"view": view})
        panel.md(ctx.panel.get_state("summary") or "counting ...", name="summary_text")
        told = f"**Hand on:** {_handing_on(ctx.dataset)}, or in other formats"
        panel.md(told, name="export_text")
        for name in _TITLES:
            layout = ctx.panel.get_state(f"layout_{name}") or {}
            # The wheel scrolls the panel.
            config = {"displayModeBar": False, "scrollZoom": False}
            panel.plot(name, layout=layout, config=config)
        return types.Property(panel, view=types.GridView(orientation="vertical", gap=3, pad=3))


_TITLES = {
    "decisions": "Decisions",
    "by_class": "Error rate by class, with 95% interval and number of decided labels",
    "by_reason": "Error rate by reason, with 95% interval and number of decided labels",
    "by_sequence": "Sequences that are not done: risk of their worst frames",
}  # fmt: skip


def _layout(name: str, plot: list[dict[str, Any]]) -> dict[str, Any]:
    is_rate, rows = name in {"by_class", "by_reason"}, len(plot[0]["y"])
    axis: dict[str, Any] = {"tickformat": ".0%"} if is_rate or name == "by_sequence" else {}
    if name == "decisions" and max(plot[0]["x"]) < WHOLE_UP_TO:
        axis = {"dtick": 1, "rangemode": "nonnegative"}
    # The least margin: FiftyOne gives long names the room that they need.
    return {
        "title": {"text": _TITLES[name], "font": {"size": 14}}, "height": max(260, 70 + 24 * rows),
        "bargap": 0.3, "margin": {"l": 150, "r": 20, "t": 40, "b": 30}, "showlegend": False,
        "xaxis": axis, "yaxis": {"dtick": 1, **shown_names(plot)},
        "hoverlabel": {"bgcolor": "#111827", "font": {"color": "#f3f4f6"}},
    }  # fmt: skip


MOST_UNSELECTED_FRAMES = 20
Answer = dict[str, Any]


class UnconfirmedError(Exception):
    """Something that is asked about first; says the question."""


@dataclass(frozen=True)
class Done:
    """What an act did.

    Attributes:
        message: said in the App.
        events: what it changed, drawn anew.
        focus: id of the label that gets the focus; by default the next one.
        frame: id of the sample to show; by default the open one.
        left: what the decision leaves open, said beside it in the strip.

    """

    message: str
    events: Sequence[Event] = ()
    focus: str = ""
    frame: str = ""
    left: str = ""


class Review(foo.Operator):  # type: ignore[misc]
    """Does what the page asks."""

    @property
    def config(self) -> Any:
        """Name; not in the list of operators, as keys and buttons ask it."""
        return foo.OperatorConfig(name="review", label="Review", unlisted=True)

    def execute(self, ctx: Any) -> Answer:
        """Do it and say how it went.

        Returns:
            `ok`; `message` for people; a `question` to be asked before it is done; `away` without a
            database; what `app_samples.redrawn` says of the `samples` that it changed, or of the
            one that was asked about in vain; or what was asked for.

        """
        try:
            await_answer()
            done = ACTS[ctx.params["act"]](ctx)
        except DatabaseAwayError as error:
            return {"ok": False, "message": str(error), "away": True}
        except UnconfirmedError as question:
            return {"ok": False, "question": str(question)}
        except AutolabelError as error:
            focus = ctx.params.get("focus")
            asked = {ObjectId(focus["sample_id"]): {focus["label_id"]}} if focus else {}
            stored = labels_as_stored(ctx.dataset, asked)
            return {"ok": False, "message": str(error), "samples": stored}
        except Exception as error:
            if not is_machine_error(error):
                raise
            return {"ok": False, "message": f"this machine cannot do it: {error}"}
        if not isinstance(done, Done):
            return {"ok": True, **done}
        samples = redrawn(ctx.dataset, done.events)
        where = {"focus": done.focus, "frame": done.frame, "left": done.left}
        return {"ok": True, "message": done.message, "samples": samples, **where}


NOT_BLIND = {"merge", "spread", "repair_open", "follow_begin", "nothing_here"}


def chosen_labels(ctx: Any) -> list[Chosen]:
    """Find what an act is about.

    Raises:
        AutolabelError: nothing is selected, or far too much.
        UnconfirmedError: it is more than one label, nobody has selected them, and nobody was asked.

    """
    return _by_sight(ctx, _chosen(ctx))


def _by_sight(ctx: Any, chosen: Sequence[Chosen]) -> list[Chosen]:
    """Part labels on which the reviewer gives a second opinion, without seeing the first.

    Where second opinions are given, all decisions are such; where disagreements are settled, none.
    Elsewhere it depends on what the page shows of the label with the focus: in any view somebody
    may have decided on it meanwhile.
    """
    shown = (ctx.params.get("focus") or {}).get("decision")
    view = str(ctx.params.get("view") or "").replace("-", " ")  # addresses have no spaces
    wanted = {"_id": {"$in": [sample_id(frame.frame_key) for frame in chosen]}}
    found = sample_collection(ctx.dataset).find(wanted, _OF_SIGHT)
    samples = {one["frame_key"]: one for one in found}
    differing = second_opinions_given(ctx.dataset, wanted) if view == DISAGREEMENTS else ()
    settled = {one.label_id for one in differing if one.is_open}
    parts: list[Chosen] = []
    for frame in chosen:
        sample = samples.get(frame.frame_key, {})
        unseen = {} if view == DISAGREEMENTS else unseen_labels(sample)
        blind = [
            (field, label)
            for field, label in frame.labels
            if (mine := unseen.get(str(label["_id"]))) is not None
            and (mine == (shown or "") or view.startswith(SECOND_OPINIONS))
        ]
        seen = [one for one in frame.labels if one not in blind]
        for field, label in seen:
            is_stored = shown in {None, label.get("decision") or ""}
            if field == MACHINE_FIELD and not (is_stored or str(label["_id"]) in settled):
                raise AutolabelError(decided_by_now(label.get("label"), label, sample))
        if blind and ctx.params["act"] in NOT_BLIND:
            raise AutolabelError(
                "a second opinion is accept, reject, fix class or delete: nothing else is "
                "compared with what the other reviewer has decided"
            )
        both = ((seen, False), (blind, True))
        parts += [replace(frame, labels=tuple(some), blind=is_it) for some, is_it in both if some]
    return parts


_OF_SIGHT = {"frame_key": 1, SHARE_FIELD: 1, LOG_FIELD: 1}


def _chosen(ctx: Any) -> list[Chosen]:
    selected = ctx.selected_labels or []
    if selected:
        samples = frames_of(ctx.view, [one["sample_id"] for one in selected])
        labels = [one["label_id"] for one in selected]
        return choose(ctx.dataset, list(samples.values()), labels)
    if focus := ctx.params.get("focus"):
        return choose(ctx.dataset, [focus["sample_id"]], [focus["label_id"]])
    frames = _selected_frames(ctx)
    if is_patches(ctx.view):
        samples = frames_of(ctx.view, frames)
        return choose(ctx.dataset, list(samples.values()), labels_of_patches(ctx.view, frames))
    if len(frames) > MOST_UNSELECTED_FRAMES:
        raise AutolabelError(
            f"{counted(len(frames), 'frame')} selected; "
            f"select at most {MOST_UNSELECTED_FRAMES} at a time"
        )
    chosen = choose(ctx.dataset, frames, _undecided(ctx, frames))
    if sum(len(frame.labels) for frame in chosen) > 1 and not ctx.params.get("confirmed"):
        raise UnconfirmedError(
            f"no label is selected, so it is about all {_count(chosen, 'undecided label')} that "
            f"the view shows on {counted(len(chosen), 'frame')}. Go on?"
        )
    return chosen


def _selected_frames(ctx: Any) -> list[str]:
    frames = [ctx.current_sample] if ctx.current_sample else list(ctx.selected or [])
    if not frames:
        raise AutolabelError("select labels, or frames, or open a frame first")
    return frames


def _undecided(ctx: Any, frames: Sequence[str]) -> list[str]:
    """Undecided machine labels of frames, as this reviewer sees them, in the current view."""
    shown = everything(ctx.dataset) if ctx.view is None else ctx.view
    if shown.media_type == "group":
        shown = shown.select_group_slices(_allow_mixed=True)
    labels = shown.select(list(frames)).values(f"{MACHINE_FIELD}.detections", unwind=True)
    unseen = unseen_by_me(ctx.dataset)
    return [one.id for one in labels if one and (not one.decision or unseen.get(one.id) == "")]


def _count(chosen: Sequence[Chosen], noun: str = "label") -> str:
    return counted(sum(len(frame.labels) for frame in chosen), noun)


def _decide(ctx: Any) -> Done:
    """Decide on labels: on what the last decision made of one, if that is seen."""
    act = str(ctx.params["act"])
    found = chosen_labels(ctx)
    chosen = [one if one.blind else as_corrected(ctx.dataset, one) for one in found]
    more = [str(ctx.params.get("class_name") or "")] if act == "fix_class" else []
    events = DECISIONS[act](ctx.dataset, chosen, *more)
    count = _count(chosen)
    told = f"{count} now of class {more[0]}" if more else f"{SAID[act]} {count}"
    if act == "merge":  # which holds for one frame
        return Done(told, events)
    labels = {str(label["_id"]) for one in chosen for _, label in one.labels}
    if len(labels) > 1:
        queue = queue_standing(ctx.dataset, ctx.request_params.get("view_name") or "").label_ids
        asked = len(labels.intersection(queue))
        told += f", {asked} of them in the queue" if asked < len(labels) else ""
    # Of their objects; a second opinion is of one label.
    seen = [one for one in chosen if not one.blind]
    left = left_of_objects(ctx.dataset, seen, alike=act != "accept")
    objects = {object_of(label) for one in seen for _, label in one.labels}
    whose = "the same object" if len(objects) == 1 else "the same objects"
    return Done(told, events, left=f"Shift+O: {left:,} more of {whose}" if left else "")


DECISIONS: Mapping[str, Callable[..., list[Event]]] = {
    "accept": actions.accept, "reject": actions.reject, "delete": actions.delete,
    "merge": actions.merge, "fix_class": actions.fix_class,
}  # fmt: skip
# An act in the strip's words; others are called by what they are.
SAID = {
    "accept": "accepted", "reject": "rejected", "delete": "deleted", "merge": "merged",
    "fix_class": "class corrected", "repair": "mask repaired", "add": "added", "follow": "followed",
    "nothing_here": "nothing here", "done": "sequence done",
}  # fmt: skip


def _take(ctx: Any) -> Done:
    """Settle a disagreement as one of the reviewers has decided."""
    label, who = str(ctx.params["focus"]["label_id"]), str(ctx.params["who"])
    (frame,) = choose(ctx.dataset, [ctx.params["focus"]["sample_id"]], [label])
    return Done(f"as {who} decided", actions.decide_as(ctx.dataset, frame, label, who))


def _sequence_done(ctx: Any) -> Done:
    samples = frames_of(ctx.view, _selected_frames(ctx)).values()
    names = sorted({ctx.dataset[one].sequence_id for one in samples})
    if not ctx.params.get("confirmed"):
        left = left_doubtful(ctx.dataset, names)
        beside = (
            f", also {counted(left, 'label')} that were followed and not seen, or of objects that "
            "have a rejected label (Shift+O rejects a whole object)"
        )
        raise UnconfirmedError(
            f"all frames of {', '.join(names)}; labels that nobody touched count as right"
            f"{beside if left else ''}"
        )
    events = [event for name in names for event in actions.mark_sequence(ctx.dataset, name)]
    return Done(f"{', '.join(names)}: {counted(len(events), 'frame')} marked as done", events)


def _nothing_here(ctx: Any) -> Done:
    frames = list(frames_of(ctx.view, _selected_frames(ctx)).values())
    chosen = actions.whole_frames(ctx.dataset, frames)
    _by_sight(ctx, chosen)  # refuses it where a second opinion is asked for
    if not chosen:
        raise AutolabelError("confirmed as empty already: done, and no label is left there")
    if any(frame.labels for frame in chosen) and not ctx.params.get("confirmed"):
        raise UnconfirmedError(
            f"{counted(len(chosen), 'frame')} without any object; "
            f"{counted(sum(map(actions.count_once, chosen)), 'label')} there count as wrong"
        )
    events = actions.nothing_here(ctx.dataset, chosen)
    return Done(f"{counted(len(chosen), 'frame')} confirmed as empty", events)


def _revert(ctx: Any) -> Done:
    """Undo or redo; the focus goes to a label that is undecided again, else to the next one."""
    act = str(ctx.params["act"])
    events = {"undo": undo, "redo": redo}[act](ctx.dataset)
    frame, focus = _place_of(ctx, events)
    what = ", ".join(dict.fromkeys(str(one.changes[act]) for one in events))
    told = f"{act}: {what.replace('_', ' ')}"
    return Done(told, events, focus if act == "undo" else "", frame)


def _place_of(ctx: Any, events: Sequence[Event]) -> tuple[str, str]:
    """Find the frame and the label to go to, of those that the view shows; "" for none.

    FiftyOne puts an error in the place of the page where it opens a frame that its view does not
    show, as those to which a decision was spread or followed.
    """
    places = [
        (str(sample_id(event.frame_key)), label)
        for event in events
        for label in [
            *sorted(event.decisions, key=event.decisions.__getitem__),  # undecided ones first
            *(one["id"] for one in event.upserts),
        ]
        or [""]
    ]
    places.sort(key=lambda one: one[0] != str(ctx.current_sample))  # who is at one stays there
    view = ctx.view
    if view.media_type == "group":
        view = view.select_group_slices(_allow_mixed=True)
    patches = is_patches(view)
    view = view.select(list({label if patches else frame for frame, label in places} - {""}))
    shown = set(map(str, view.values("id")))
    if not patches:
        for field in {MACHINE_FIELD, REVIEWED_FIELD} & view.get_field_schema().keys():
            shown |= set(map(str, view.values(f"{field}.detections.id", unwind=True)))
    return next((one for one in places if (one[1] or one[0]) in shown), ("", ""))


def _spread(ctx: Any) -> Done:
    """Decide on all frames of objects as on the selected labels, else as this reviewer did last."""
    events = spread(ctx.dataset, _selected_or_last(ctx))
    count = sum(len(event.decisions) for event in events)
    frames_text = counted(len({event.frame_key for event in events}), "frame")
    return Done(f"the whole object: {counted(count, 'more label')} on {frames_text}", events)


def _selected_or_last(ctx: Any) -> list[Chosen]:
    """Find the selected labels, else those that this reviewer decided on last."""
    if ctx.selected_labels or (is_patches(ctx.view) and ctx.selected):
        return chosen_labels(ctx)
    act = last_act(ctx.dataset)
    if act and (act[0].action == NOTHING_HERE or act[0].second_opinion):
        raise AutolabelError("what you decided last holds for this frame, not for whole objects")
    frames = [str(sample_id(event.frame_key)) for event in act]
    labels = [label for event in act for label in event.decisions]
    labels += [one["id"] for event in act for one in event.upserts if not one["sources"]]
    return choose(ctx.dataset, frames, labels) if labels else []


def _follow_begin(ctx: Any) -> Answer:
    """Begin with the selected label, the decided one with the focus, or the one decided on last."""
    chosen = chosen_labels(ctx) if ctx.params.get("focus") else _selected_or_last(ctx)
    if len(chosen) != 1 or len(chosen[0].labels) != 1:
        raise AutolabelError("repair or accept a mask, or select one label: its object is followed")
    return begin(ctx.dataset, chosen[0])


def _follow_step(ctx: Any) -> Answer:
    return held(str(ctx.params.get("following"))).advance()


def _follow_take(ctx: Any) -> Done:
    following = held(str(ctx.params.get("following")))
    events = following.take()
    told = following.told(events)
    if not events:
        raise AutolabelError(told)
    return Done(told, events)


def _refresh_queue(ctx: Any) -> Done:
    share = Share.of_this_process()
    queue = build_queue(ctx.dataset, share=share)
    ctx.ops.reload_dataset()
    if ctx.request_params.get("view_name") == share.named(ONE_SEQUENCE):
        ctx.ops.set_view(name=share.named(NEEDS_REVIEW))
    return Done(queue.text())


def _open_sequence(ctx: Any) -> Done:
    share = Share.of_this_process()
    view = sequence_view(ctx.dataset, str(ctx.params.get("sequence") or "").strip())
    names = view.distinct("sequence_id")
    shown = names[0] if len(names) == 1 else counted(len(names), "sequence")
    ctx.dataset.save_view(share.named(ONE_SEQUENCE), view, description=shown, overwrite=True)
    ctx.ops.set_view(name=share.named(ONE_SEQUENCE))
    return Done(
        f"{shown}: {counted(view.count(), 'frame')}; choose '{share.named(NEEDS_REVIEW)}' at the "
        "top left to go back to the queue"
    )


def _classes(ctx: Any) -> Answer:
    return {"classes": offered_classes(ctx.dataset) or known_classes(ctx.dataset)}


def _sequences(ctx: Any) -> Answer:
    return {"sequences": list(list_sequences(ctx.dataset).items())[:MOST_LISTED]}


def _standing(ctx: Any) -> Answer:
    """Return what the page says besides labels: of the queue, and how its sidebar is ordered."""
    view = ctx.request_params.get("view_name") or ""
    standing, act = queue_standing(ctx.dataset, view), last_act(ctx.dataset)
    share = Share.of_this_process()
    differing = second_opinions_given(ctx.dataset) if view == DISAGREEMENTS else ()
    arisen = {*standing.label_ids} - {*ctx.dataset.info.get(QUEUES, {}).get(view, ())}
    if differing and arisen and not ctx.current_sample:  # since the view was saved
        show_disagreements(ctx.dataset, differing)
        ctx.ops.set_view(name=DISAGREEMENTS)
        standing = queue_standing(ctx.dataset, view)
    if standing.view == share.named(SECOND_OPINIONS) and not ctx.current_sample:
        left = {*standing.label_ids} - standing.decided
        if left != {*ctx.view.values(f"{MACHINE_FIELD}.detections.id", unwind=True)}:
            show_second_opinions(ctx.dataset, view, left)
            ctx.ops.set_view(name=view)
    said = {
        one.label_id: dict(zip(one.people, one.verdicts, strict=True))
        for one in differing
        if one.is_open
    }
    again = ["autolabel", "review", ctx.dataset.name, "--reviewer", reviewer(), *share.options]
    random = " (drawn at random from what nobody else looks at)" if view == CONTROL else ""
    return {
        "about": "" if view == standing.view else _about_view(ctx),
        "where": f"'{standing.view}'{random}",
        "queue": standing.label_ids, "decided": sorted(standing.decided), "said": said,
        "unseen": unseen_by_me(ctx.dataset),
        "words": WORDS, "told": DESCRIPTIONS, "last": _in_words(act) if act else "",
        "next": "" if standing.left else _next_after(ctx.dataset),
        "who": reviewer(), "command": shlex.join(again),
        "groups": [
            {"name": one.name, "paths": list(one.paths), "expanded": one.expanded}
            for one in ctx.dataset.app_config.sidebar_groups or ()
        ],
    }  # fmt: skip


def _around(ctx: Any) -> Answer:
    """Return who has decided on a frame's labels, and all of these, whatever the view shows."""
    wanted = {"_id": ObjectId(ctx.params["sample_id"])}
    sample = sample_collection(_dataset_of(ctx)).find_one(wanted, {LOG_FIELD: 1, **_PLACES}) or {}
    labels = detections_of(sample, MACHINE_FIELD)
    return {
        "by": deciders(sample),
        "labels": [{**one, "id": str(one.pop("_id"))} for one in labels],
    }


_OF_PLACES = ("_id", "label", "bounding_box", "decision")
_PLACES = {f"{MACHINE_FIELD}.detections.{name}": 1 for name in _OF_PLACES}


def _handing_on(dataset: Any) -> str:
    name = shlex.quote(dataset.name)
    return f"`autolabel export {name} --reviewed --format coco --to FOLDER` writes what is decided"


def _next_after(dataset: Any) -> str:
    """Say what comes after a queue without anything left."""
    share = Share.of_this_process()
    views = (DISAGREEMENTS, *map(share.named, (NEEDS_REVIEW, SECOND_OPINIONS)), CONTROL)
    told = (
        f"next: {counted(many, 'label')} in the view '{name}'"
        for name in views
        if (many := queue_standing(dataset, name).left)
    )
    then = next(told, "")  # the views after it are not counted
    if not then and asks_for_more(dataset, share):
        then = f"{ORDER_AGAIN} asks about the next objects"
    finished = (
        "nothing more to ask: every object (track) has a decision; its other labels have it only "
        "where Shift+O was pressed"
    )
    steps = ["the queue is finished", then] if then else [finished]
    if sample_collection(dataset).find_one({"review_status": OPEN}, {"_id": 1}):
        steps.append(
            "Shift+E on a frame of a drive ('Open a sequence' shows them) ends it: what nobody "
            "touched in it counts as right"
        )
    return "; ".join([*steps, _handing_on(dataset)])


def _in_words(act: Sequence[Event]) -> str:
    what = ", ".join(dict.fromkeys(SAID.get(one.action, one.action) for one in act))
    noted = [one for event in act for one in event.changes.values() if isinstance(one, Mapping)]
    if not noted:
        return what
    if len(noted) > 1:
        frames = len({event.frame_key for event in act})
        where = f" on {counted(frames, 'frame')}" if frames > 1 else ""
        return f"{what}: {counted(len(noted), 'label')}{where}"
    from_to = noted[0]["changed"].removeprefix("label: ").split(" -> ")
    return f"{what}: {' → '.join(from_to) if len(from_to) == 2 else noted[0]['label']}"


def _about_view(ctx: Any) -> str:
    """Say what the open view holds, if it is a saved one."""
    name = ctx.request_params.get("view_name") or ""
    if not ctx.dataset.has_saved_view(name):
        return ""
    told = ctx.dataset.get_saved_view_info(name)["description"]
    empty = "" if ctx.view.limit(1).count() else " has nothing left to decide"
    return f"the view '{name}'{f' ({told})' if told else ''}{empty}"


def _opinions(ctx: Any) -> Answer:
    """Return the masks that people, by name, hold a label to have."""
    frame, label = ObjectId(ctx.params["sample_id"]), str(ctx.params["label_id"])
    made = {
        who: (one["size_hw"], to_document(one))
        for who, event in actions.last_said(_dataset_of(ctx), frame, label).items()
        for one in event.upserts
        if label in one["sources"]
    }
    return {
        who: {
            "bounding_box": one["bounding_box"],
            **drawn(mask_of(one, size_hw), 0, 0, (0, 0, 0, 255)),
        }
        for who, (size_hw, one) in made.items()
    }


def _repair_open(ctx: Any) -> Answer:
    chosen = chosen_labels(ctx)
    if len(chosen) != 1 or len(chosen[0].labels) != 1:
        raise AutolabelError("select one label: its mask is repaired")
    _, label = chosen[0].labels[0]
    return open_label(ctx.dataset, str(sample_id(chosen[0].frame_key)), str(label["_id"]))


def _repair_warm(ctx: Any) -> Answer:
    about = [str(ctx.params.get(name)) for name in ("sample_id", "label_id")]
    return {"model": warm_up(_dataset_of(ctx), *about)}


def _repair_click(ctx: Any) -> Answer:
    _, mended = mend(_dataset_of(ctx), Clicked.of(ctx.params))
    return mended.shown()


def _repair_accept(ctx: Any) -> Done:
    clicked = Clicked.of(ctx.params)
    return Done(f"corrected the mask with {clicked.text()}", take(ctx.dataset, clicked))


def _drawn(ctx: Any) -> Done:
    """Record what was drawn in the tab Annotate; the last label of it has the focus then."""
    frames = frames_of(ctx.view, ctx.params["sample_ids"]).values()
    events, wrong = take_drawn(ctx.dataset, list(frames))
    if wrong and not events:
        raise AutolabelError(wrong)
    names = ", ".join(one["label"] for event in events for one in event.upserts)
    told = f"added {names}: Shift+T follows it, click it for F (class) or C (mask)" if names else ""
    where = [(event.upserts[-1]["id"], str(sample_id(event.frame_key))) for event in events]
    return Done(wrong or told, events, *(where or [("", "")])[-1])


def _dataset_of(ctx: Any) -> Any:
    """Open the dataset as it was opened before: `ctx.dataset` is all loaded anew for each click."""
    return open_dataset(str(ctx.dataset_name))


ACTS: Mapping[str, Callable[[Any], Done | Answer]] = {
    **dict.fromkeys(DECISIONS, _decide), **dict.fromkeys(("undo", "redo"), _revert),
    "take": _take, "spread": _spread,
    "sequence_done": _sequence_done, "nothing_here": _nothing_here,
    "refresh_queue": _refresh_queue,
    "open_sequence": _open_sequence, "classes": _classes, "sequences": _sequences,
    "standing": _standing, "around": _around, "drawn": _drawn, "opinions": _opinions,
    "repair_open": _repair_open, "repair_warm": _repair_warm, "repair_click": _repair_click,
    "repair_accept": _repair_accept, "follow_begin": _follow_begin, "follow_step": _follow_step,
    "follow_take": _follow_take,
}  # fmt: skip
