"""What an operator is about: selected labels, the one with the focus, or those of selected frames.

In a view of patches every tile is a label: the selected or open ones. More than one label that
nobody selected is acted on only after a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.schema import MACHINE_FIELD
from tasks.review.actions import Chosen, as_corrected, choose
from tasks.review.app_samples import frames_of, is_patches, labels_of_patches
from tasks.review.queue import everything
from tasks.review.sample_changes import decided_by_now
from tasks.wording import counted

MAX_UNSELECTED_FRAMES = 20


class UnconfirmedError(Exception):
    """Something that is asked about first; says the question."""


def chosen_labels(ctx: Any) -> list[Chosen]:
    """Find what an operator is about.

    Raises:
        AutolabelError: nothing is selected, or far too much.
        UnconfirmedError: it is more than one label, nobody has selected them, and nobody was asked.

    """
    selected = ctx.selected_labels or []
    if selected:
        samples = frames_of(ctx.view, [one["sample_id"] for one in selected])
        labels = [one["label_id"] for one in selected]
        return choose(ctx.dataset, list(samples.values()), labels)
    if ctx.params.get("focus"):
        return _focused(ctx)
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
    chosen = choose(ctx.dataset, frames, _undecided(ctx, frames))
    if sum(len(frame.labels) for frame in chosen) > 1 and not ctx.params.get("confirmed"):
        raise UnconfirmedError(
            f"{count_labels(chosen)} on {counted(len(chosen), 'frame')}, none of them selected"
        )
    return chosen


def _focused(ctx: Any) -> list[Chosen]:
    """Find the label with the focus; the page says which decision it shows there.

    Another decision on a label is one on what the last one made of it.
    """
    focus = ctx.params["focus"]
    chosen = choose(ctx.dataset, [focus["sample_id"]], [focus["label_id"]])
    shown = focus.get("decision")
    for field, label in (one for frame in chosen for one in frame.labels):
        if field == MACHINE_FIELD and shown is not None and (label.get("decision") or "") != shown:
            raise AutolabelError(decided_by_now(label.get("label"), label))
    return [as_corrected(ctx.dataset, frame) for frame in chosen] if shown else chosen


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


def count_labels(chosen: Sequence[Chosen]) -> str:
    """Say how many labels there are."""
    return counted(sum(len(frame.labels) for frame in chosen), "label")
