"""What a reviewer does to labels: accept, reject, fix the class, merge, delete, mark as done.

Machine labels stay as they are, apart from showing what was decided; what people hold to be right
is in the `reviewed` field.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from bson import ObjectId

from sam2_core.types import AutolabelError
from tasks.dataset.documents import (
    Values,
    detections_of,
    mask_of,
    reviewed_id,
    rle_of,
    sample_id,
    to_values,
    window_of,
)  # fmt: skip
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import DONE, LOG_FIELD, MACHINE_FIELD, OPEN, REVIEWED_FIELD
from tasks.review.events import (
    ACCEPTED,
    CORRECTED,
    DELETED,
    MERGED,
    NOTHING_HERE,
    REJECTED,
    Event,
    now_text,
    record,
    refuse_changed_labels,
    reviewer,
    said,
    standing_entries,
    stored_event,
)
from tasks.wording import counted

FIELDS = (MACHINE_FIELD, REVIEWED_FIELD)
# What says which frame a sample is of, to events and to people.
FRAME_FIELDS = (
    "sequence_id", "camera", "frame_number", "timestamp_ns", "frame_uri", "frame_address",
    "frame_etag",
)  # fmt: skip
FRAME = dict.fromkeys(("frame_key", "run_key", "model", "metadata", "filepath", *FRAME_FIELDS), 1)


@dataclass(frozen=True, eq=False)
class Chosen:
    """Labels of one frame that somebody selected.

    Attributes:
        frame_key, run_key, model, size_hw: of the sample.
        labels: (field, stored label) pairs.
        frame: which one it is, as stored (`FRAME_FIELDS`).
        filepath: what the App shows.
        blind: whether the person does not see what somebody else has decided on them.

    """

    frame_key: str
    run_key: str
    model: str
    size_hw: tuple[int, int]
    labels: tuple[tuple[str, Mapping[str, Any]], ...]
    frame: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    filepath: str = ""
    blind: bool = False

    def event(self, action: str, **values: Any) -> Event:
        """Start an event on this frame."""
        return Event(
            self.frame_key, action, run_key=self.run_key, model=self.model, frame=self.frame,
            second_opinion=self.blind, **values,
        )  # fmt: skip


def choose(dataset: Any, sample_ids: Sequence[str], label_ids: Sequence[str]) -> list[Chosen]:
    """Find selected labels, frame by frame.

    Raises:
        AutolabelError: none of them is there any more, or a picture is not the one labeled.

    """
    wanted = set(map(str, label_ids))
    frames = _frames_with(dataset, sample_ids, lambda label: str(label["_id"]) in wanted)
    found = [frame for frame, _ in frames if frame.labels]
    if not found:
        raise AutolabelError("these labels are gone: reload the page and select them again")
    return found


def whole_frames(dataset: Any, sample_ids: Sequence[str]) -> list[Chosen]:
    """Find frames with all labels that nobody holds to be wrong; not those that are done without.

    Raises:
        AutolabelError: a picture is not the one labeled.

    """
    wrong = {REJECTED, DELETED}
    frames = _frames_with(dataset, sample_ids, lambda label: label.get("decision") not in wrong)
    return [frame for frame, status in frames if frame.labels or status != DONE]


def _frames_with(
    dataset: Any, sample_ids: Sequence[str], is_wanted: Callable[[Mapping[str, Any]], bool]
) -> Iterator[tuple[Chosen, str]]:
    """Yield frames with some of their labels, and their review status."""
    ids = [ObjectId(one) for one in dict.fromkeys(map(str, sample_ids))]
    refuse_changed(dataset, ids)
    fields = {**FRAME, MACHINE_FIELD: 1, REVIEWED_FIELD: 1, "review_status": 1}
    for sample in sample_collection(dataset).find({"_id": {"$in": ids}}, fields):
        labels = tuple(one for one in labels_of(sample) if is_wanted(one[1]))
        yield replace(frame_of(sample), labels=labels), str(sample.get("review_status"))


def as_corrected(dataset: Any, frame: Chosen) -> Chosen:
    """Put what people made of machine labels in their place, where they made something of them."""
    where = {"frame_key": frame.frame_key}
    sample = sample_collection(dataset).find_one(where, {REVIEWED_FIELD: 1}) or {}
    made = {
        source: one
        for one in detections_of(sample, REVIEWED_FIELD)
        for source in one.get("sources") or ()
    }
    labels = [
        (REVIEWED_FIELD, made[str(label["_id"])])
        if field == MACHINE_FIELD and str(label["_id"]) in made
        else (field, label)
        for field, label in frame.labels
    ]
    once = {label["_id"]: (field, label) for field, label in labels}  # several may be merged
    return replace(frame, labels=tuple(once.values()))


def refuse_changed(dataset: Any, ids: Sequence[Any]) -> None:
    """Set frames aside whose pictures have changed.

    Raises:
        AutolabelError: there are some.

    """
    from tasks.review.set_aside import set_aside_changed

    count = set_aside_changed(dataset, ids)
    if count:
        raise AutolabelError(
            f"the picture has changed since it was labeled, of {counted(count, 'frame')}: set "
            "aside until labeled again; reload the page and look again"
        )


def frame_of(sample: Mapping[str, Any]) -> Chosen:
    """Describe a stored sample, without labels."""
    metadata = sample.get("metadata") or {}
    size_hw = (int(metadata.get("height") or 0), int(metadata.get("width") or 0))
    frame = {name: sample[name] for name in FRAME_FIELDS if name in sample}
    return Chosen(sample["frame_key"], sample.get("run_key") or "", sample.get("model") or "",
                  size_hw, (), frame, sample.get("filepath") or "")  # fmt: skip


def labels_of(sample: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Machine labels and reviewed instances of a stored sample."""
    for field in FIELDS:
        for label in detections_of(sample, field):
            yield field, label


def decide(dataset: Any, chosen: Sequence[Chosen], events: Sequence[Event]) -> list[Event]:
    """Record events on labels that nobody else has decided on since they were chosen.

    Raises:
        AutolabelError: somebody has.

    """
    return record(dataset, events, check=lambda: refuse_changed_labels(dataset, chosen))


def accept(dataset: Any, chosen: Sequence[Chosen]) -> list[Event]:
    """Accept labels as they are."""
    return decide(dataset, chosen, [deciding(frame, ACCEPTED) for frame in chosen])


def fix_class(dataset: Any, chosen: Sequence[Chosen], label: str) -> list[Event]:
    """Hold labels to be right but for their class.

    Raises:
        AutolabelError: the class name is empty.

    """
    name = label.strip()
    if not name:
        raise AutolabelError("a class needs a name")
    return decide(dataset, chosen, [deciding(frame, CORRECTED, name) for frame in chosen])


def reject(dataset: Any, chosen: Sequence[Chosen]) -> list[Event]:
    """Reject labels."""
    return decide(dataset, chosen, [deciding(frame, REJECTED) for frame in chosen])


def delete(dataset: Any, chosen: Sequence[Chosen]) -> list[Event]:
    """Remove labels that are superfluous, such as the second one of an object."""
    return decide(dataset, chosen, [deciding(frame, DELETED) for frame in chosen])


def merge(dataset: Any, chosen: Sequence[Chosen]) -> list[Event]:
    """Make one instance of the labels selected in each frame: the union of their masks.

    Raises:
        AutolabelError: fewer than two labels in a frame.

    """
    if any(len(frame.labels) < 2 for frame in chosen):
        raise AutolabelError("select two labels or more of one frame to merge them")
    return decide(dataset, chosen, [_merging(frame) for frame in chosen])


def last_said(dataset: Any, frame: Any, label_id: str) -> dict[str, Event]:
    """Return what each person has decided on a machine's label last, with class and mask."""
    sample = sample_collection(dataset).find_one({"_id": frame}, {LOG_FIELD: 1}) or {}
    entries = {one["by"]: one for one in standing_entries(sample) if label_id in said(one)}
    return {who: stored_event(dataset, entry) for who, entry in entries.items()}


def decide_as(dataset: Any, frame: Chosen, label_id: str, who: str) -> list[Event]:
    """Decide on a machine's label as somebody has before: with that person's class and mask.

    Raises:
        AutolabelError: that person has taken the decision back.

    """
    event = last_said(dataset, sample_id(frame.frame_key), label_id).get(who)
    if not event:
        raise AutolabelError(f"{who} has taken that decision back: reload the page")
    at, by, identity = now_text(), reviewer(), str(reviewed_id(label_id))
    upserts = tuple(
        {**one, "reviewer": by, "reviewed_at": at}
        for one in event.upserts
        if label_id in one["sources"]
    )
    again = frame.event(
        event.action, at=at, by=by, upserts=upserts, removed=() if upserts else (identity,),
        decisions={label_id: event.decisions[label_id]},
        changes={identity: event.changes[identity]},
    )  # fmt: skip
    return decide(dataset, [frame], [again])


def mark_sequence(dataset: Any, sequence_id: str) -> list[Event]:
    """Mark all open frames of a sequence as reviewed.

    Raises:
        AutolabelError: a picture is not the one labeled; nothing is marked.

    """
    wanted = {"sequence_id": sequence_id, "review_status": OPEN}
    samples = list(sample_collection(dataset).find(wanted, FRAME))
    refuse_changed(dataset, [one["_id"] for one in samples])
    frames = [frame_of(one) for one in samples]
    return record(dataset, [frame.event("done", status=DONE) for frame in frames])


def nothing_here(dataset: Any, frames: Sequence[Chosen]) -> list[Event]:
    """Confirm that frames show no object: their labels are wrong, and the frames are done.

    Raises:
        AutolabelError: somebody has decided on one of the labels since they were chosen.

    """
    return decide(
        dataset, frames,
        [replace(_removing(frame, NOTHING_HERE, REJECTED), status=DONE) for frame in frames],
    )  # fmt: skip


def sources_of(field: str, label: Mapping[str, Any]) -> list[str]:
    """Machine labels that a label stands for."""
    if field == MACHINE_FIELD:
        return [str(label["_id"])]
    return [str(one) for one in label.get("sources") or []]


def count_once(frame: Chosen) -> int:
    """Count labels, a machine's and what people have made of it as one."""
    return len({_identity(field, label) for field, label in frame.labels})


def _identity(field: str, label: Mapping[str, Any]) -> str:
    """Id that a label has, or gets, among the reviewed ones."""
    if field == REVIEWED_FIELD:
        return str(label["_id"])
    return str(reviewed_id(str(label["_id"])))


def confirming(
    frame: Chosen, action: str, decision: str, change: Callable[[Mapping[str, Any]], Values]
) -> Event:
    """Start the event that holds labels to be right, but for what `change` returns of each.

    Who accepts what a machine's label has become confirms that: it stays a corrected one.
    """
    at, by = now_text(), reviewer()
    upserts: list[Values] = []
    decisions: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for field, label in frame.labels:
        identity, sources = _identity(field, label), sources_of(field, label)
        confirmed = (field, decision) == (REVIEWED_FIELD, ACCEPTED) and label.get("decision")
        now = confirmed or decision
        values = to_values(label, frame.size_hw, id=identity, sources=sources, decision=now,
                           reviewer=by, reviewed_at=at)  # fmt: skip
        upserts.append(values | change(label))
        decisions |= dict.fromkeys(sources, now)
        changes[identity] = _noted(label, upserts[-1]["changed"])
    return frame.event(
        action, upserts=tuple(upserts), decisions=decisions, changes=changes, at=at, by=by
    )


def deciding(frame: Chosen, decision: str, name: str = "") -> Event:
    """Start the event that decides on labels; corrected ones get the class of this name."""

    def renamed(old: Mapping[str, Any]) -> Values:
        return {"label": name, "changed": f"label: {old.get('label')} -> {name}"}

    if decision == ACCEPTED:
        return confirming(frame, "accept", ACCEPTED, lambda _: {})
    if decision == CORRECTED:
        return confirming(frame, "fix_class", CORRECTED, renamed)
    return _removing(frame, {REJECTED: "reject", DELETED: "delete"}[decision], decision)


def _removing(frame: Chosen, action: str, decision: str) -> Event:
    decisions: dict[str, str] = {}
    for field, label in frame.labels:
        decisions |= dict.fromkeys(sources_of(field, label), decision)
    return frame.event(
        action,
        removed=tuple(dict.fromkeys(_identity(field, label) for field, label in frame.labels)),
        decisions=decisions,
        changes={_identity(field, label): _noted(label) for field, label in frame.labels},
    )


def _noted(label: Mapping[str, Any], changed: str = "") -> Values:
    """Note what statistics need to know about the label decided on."""
    return {
        "label": label.get("label") or "", "risk": label.get("risk"),
        "reasons": list(label.get("reasons") or []), "changed": changed,
    }  # fmt: skip


def _merging(frame: Chosen) -> Event:
    at, by = now_text(), reviewer()
    fields = [field for field, _ in frame.labels]
    labels = [one for _, one in frame.labels]
    sources = sorted({s for field, one in frame.labels for s in sources_of(field, one)})
    windows = [window_of(one["bounding_box"], frame.size_hw) for one in labels]
    left, top = (min(window[i] for window in windows) for i in (0, 1))
    right, bottom = (max(window[i] for window in windows) for i in (2, 3))
    union = np.zeros((bottom - top, right - left), np.bool_)
    for one, (x0, y0, x1, y1) in zip(labels, windows, strict=True):
        union[y0 - top : y1 - top, x0 - left : x1 - left] |= mask_of(one, frame.size_hw)
    largest = max(labels, key=lambda one: one.get("area_px") or 0)
    identity = str(reviewed_id(*(sources or [str(one["_id"]) for one in labels])))
    changed = f"merged {counted(len(labels), 'label')}"
    values = to_values(
        largest, frame.size_hw, id=identity, sources=sources, decision=MERGED, reviewer=by,
        reviewed_at=at, changed=changed, box_xyxy_px=[left, top, right, bottom],
        rle=rle_of(union, left, top, frame.size_hw), area_px=int(union.sum()),
    )  # fmt: skip
    old = [str(o["_id"]) for f, o in zip(fields, labels, strict=True) if f == REVIEWED_FIELD]
    old += [_identity(field, one) for field, one in frame.labels]
    return frame.event(
        "merge", upserts=(values,), removed=tuple(sorted(set(old) - {identity})),
        decisions=dict.fromkeys(sources, MERGED), at=at, by=by,
        changes={identity: _noted(largest, changed)},
    )  # fmt: skip
