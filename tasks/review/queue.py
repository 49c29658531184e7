"""What to look at first: views ordered by risk under a budget, and a random control.

The queue holds decisions: of each of the riskiest objects, the label that is the riskiest.

An object is the same thing over time (`tasks.dataset.documents`): the riskiest of its labels stands
for all of them. What was decided on it can be spread to the rest. Beside a road, a detector may
find another car in every few metres of the same guard rail: objects of one class whose labels
overlap in the picture are of one place, and no place gets more than a share of the decisions.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from bson import ObjectId

from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import BUNDLED
from tasks.boxes.detectors import load_detector
from tasks.dataset.documents import detections_of
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import (
    DONE,
    LOG_FIELD,
    MACHINE_FIELD,
    OBJECT_PATH,
    OPEN,
    PREVIOUS_FIELD,
    REASONS_FIELD,
    REVIEWED_FIELD,
    RISK_FIELD,
    SHARE_FIELD,
    colour_classes,
    dataset_lock,
    offer_classes,
)
from tasks.review.actions import FIELDS, Chosen, as_corrected, choose, decide, deciding
from tasks.review.events import (
    ACCEPTED,
    CORRECTED,
    DELETED,
    NOTHING_HERE,
    REJECTED,
    Event,
    reviewer,
    standing_entries,
)
from tasks.review.opinions import Opinions, said_by_others, second_opinions_given
from tasks.risk.compute_risk import sequence_risk
from tasks.risk.geometry import shared_box_areas
from tasks.wording import counted

_INNER = f"{MACHINE_FIELD}.detections"
_FRAMES_BETWEEN_LOOKS = 64
_MOST_OF_A_PLACE = 0.1  # of the decisions
_CANDIDATES = 8  # objects looked at for each decision


SHARE_VARIABLE, DOUBLE_VARIABLE = "AUTOLABEL_SHARE", "AUTOLABEL_DOUBLE"
DOUBLE = 0.1


@dataclass(frozen=True)
class Share:
    """Which part of a team's queue is whose.

    Attributes:
        number: of the reviewer, from 1.
        of: how many reviewers there are.
        double: part of the frames whose labels the next reviewer, or who has everything, decides on
            once more.

    """

    number: int = 1
    of: int = 1
    double: float = 0.0

    @classmethod
    def parse(cls, text: str, double: float | None = None) -> Share:
        """Read `2/3`; "" is everything, and nothing twice unless `double` says so.

        Raises:
            AutolabelError: it is something else.

        """
        number, _, of = (text or "1/1").partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise AutolabelError(f"a share is 1/3, 2/3 or 3/3 for one of three, not {text!r}")
        usual = DOUBLE if int(of) > 1 else 0.0
        return cls(int(number), int(of), usual if double is None else double)

    @classmethod
    def of_this_process(cls) -> Share:
        """Return what `autolabel review` was asked for, also in the App that it has started."""
        double = os.environ.get(DOUBLE_VARIABLE)
        return cls.parse(os.environ.get(SHARE_VARIABLE, ""), float(double) if double else None)

    @property
    def seconds(self) -> int:
        """Number of the reviewer after whom this one decides."""
        return self.number - 1 or self.of

    def is_second(self, sample: Mapping[str, Any]) -> bool:
        """Whether this reviewer decides on a frame after the one who holds it, if anybody does."""
        name = f"double\0{sample['frame_key']}"
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return number < self.double * 2**64 and self.holder(sample) in {None, self.seconds}

    def holder(self, sample: Mapping[str, Any]) -> int | None:
        """Return the number of the reviewer who holds a frame among as many as these."""
        return (sample.get(SHARE_FIELD) or {}).get(str(self.of))

    @property
    def options(self) -> list[str]:
        """Options by which `autolabel review` gives this share."""
        usual = self == Share.parse(self.text)
        share = ["--share", self.text] if self.of > 1 else []
        return share + ([] if usual else ["--double", f"{self.double:g}"])

    @property
    def text(self) -> str:
        """What `parse` reads."""
        return f"{self.number}/{self.of}"

    def named(self, view: str) -> str:
        """Name of this reviewer's view."""
        return view if self.of == 1 else f"{view} {self.number} of {self.of}"


@dataclass(frozen=True, order=True)
class Doubt:
    """The riskiest undecided label of an object.

    Attributes:
        risk: of the label; above 1 of a mask that was followed to its frame, which comes first.
        label_id: of the label.
        frame_key: its frame.
        object_name: its object.
        kind: sequence, camera and class.
        bounding_box: x, y, width, height, relative to the picture.

    """

    risk: float
    label_id: str
    frame_key: str
    object_name: str
    kind: tuple[str, str, str] = ("", "", "")
    bounding_box: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


def object_of(label: Mapping[str, Any]) -> str:
    """Name of a stored label's object; a label that was never linked is one of its own."""
    return str(label.get("object") or label["_id"])


def decided_objects(dataset: Any) -> set[str]:
    """Objects that somebody has decided on, by any of their labels.

    That nothing is in a frame says nothing of what its labels' objects are in others.
    """
    fields = {f"{_INNER}._id": 1, f"{_INNER}.object": 1, f"{_INNER}.decision": 1, LOG_FIELD: 1}
    decided = set[str]()
    for sample in sample_collection(dataset).find({f"{LOG_FIELD}.0": {"$exists": True}}, fields):
        last = dict[str, str]()
        for entry in standing_entries(sample):
            last |= dict.fromkeys(entry["decisions"], entry["action"])
        decided |= {
            object_of(label)
            for label in detections_of(sample, MACHINE_FIELD)
            if label.get("decision") and last.get(str(label["_id"])) != NOTHING_HERE
        }
    return decided


def few_of_each_place(doubts: Sequence[Doubt], count: int) -> list[Doubt]:
    """Choose `count` of doubts that come riskiest first; more of a place only if there is room."""
    most = max(1, round(_MOST_OF_A_PLACE * count))
    chosen: list[Doubt] = []
    rest: list[Doubt] = []
    taken: Counter[int] = Counter()
    for doubt, place in zip(doubts, _places(doubts), strict=True):
        taken[place] += 1
        (chosen if taken[place] <= most else rest).append(doubt)
    return sorted([*chosen, *rest][:count], reverse=True)


def _places(doubts: Sequence[Doubt]) -> list[int]:
    """Give each doubt's place a number: boxes of one kind overlap, or others do in between."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    if not doubts:
        return []
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row, doubt in enumerate(doubts):
        rows.setdefault(doubt.kind, []).append(row)
    near = np.zeros((len(doubts), len(doubts)), np.bool_)
    for kind in rows.values():
        xywh = np.array([doubts[row].bounding_box for row in kind], np.float64)
        corners = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)
        near[np.ix_(kind, kind)] = shared_box_areas(corners, corners) > 0
    return [int(one) for one in connected_components(csr_array(near), directed=False)[1]]


def riskiest_objects(dataset: Any, decided: Collection[str], budget: int) -> list[Doubt]:
    """Find the riskiest objects that nobody has decided on, a few for each decision of a budget.

    A frame's risk is that of its riskiest undecided label and has an index: frames are read from
    the riskiest one on, until no other can have a label that belongs here.
    """
    count = _CANDIDATES * budget
    fields = {"frame_key": 1, "risk": 1, "sequence_id": 1, "camera": 1}
    names = ("_id", "object", "risk", "decision", "label", "bounding_box", "changed")
    fields |= {f"{_INNER}.{name}": 1 for name in names}
    samples, is_open = sample_collection(dataset), {"review_status": OPEN}
    followed = {**is_open, f"{LOG_FIELD}.0": {"$exists": True}, f"{_INNER}.changed": {"$gt": ""}}
    found = samples.find(is_open, fields).sort("risk", -1)
    best: dict[str, Doubt] = {}
    for read, sample in enumerate(chain(samples.find(followed, fields), found)):
        if read % _FRAMES_BETWEEN_LOOKS == 0 and len(best) >= count:
            limit = sample.get("risk") or 0.0
            if sum(one.risk > limit for one in best.values()) >= count:
                break
        for doubt in _doubts(sample):
            known = best.get(doubt.object_name)
            if doubt.object_name not in decided and (known is None or doubt > known):
                best[doubt.object_name] = doubt
    return sorted(best.values(), reverse=True)[:count]


def _doubts(sample: Mapping[str, Any]) -> list[Doubt]:
    where = (sample.get("sequence_id") or "", sample.get("camera") or "")
    return [
        Doubt(
            float(one["risk"]) + bool(one.get("changed")), str(one["_id"]),
            str(sample["frame_key"]), object_of(one),
            (*where, one.get("label") or ""), tuple(one.get("bounding_box") or (0.0,) * 4),
        )
        for one in detections_of(sample, MACHINE_FIELD)
        if not one.get("decision") and one.get("risk") is not None
    ]  # fmt: skip


def deal(dataset: Any, doubts: Sequence[Doubt], share: Share) -> dict[int, list[Doubt]]:
    """Divide doubts, riskiest first, among reviewers by their frames: number -> those of each.

    Who holds a frame keeps it. The others go to who has the fewest doubts then, and stay there.
    """
    if share.of == 1:
        return {1: list(doubts)}
    parts: dict[int, list[Doubt]] = {number + 1: [] for number in range(share.of)}
    by_frame: dict[str, list[Doubt]] = {}
    for one in doubts:
        by_frame.setdefault(one.frame_key, []).append(one)
    samples = sample_collection(dataset)
    with dataset_lock(dataset.name):
        wanted = {"frame_key": {"$in": list(by_frame)}}
        for sample in samples.find(wanted, {"frame_key": 1, SHARE_FIELD: 1}):
            if number := share.holder(sample):
                parts[number] += by_frame.pop(sample["frame_key"])
        given: dict[int, list[str]] = {number: [] for number in parts}
        for frame_key, found in by_frame.items():
            number = min(parts, key=lambda one: len(parts[one]))
            parts[number] += found
            given[number].append(frame_key)
        for number, keys in given.items():
            held = {"$set": {f"{SHARE_FIELD}.{share.of}": number}}
            samples.update_many({"frame_key": {"$in": keys}}, [held])
    return {number: sorted(found, reverse=True) for number, found in parts.items()}


def spread(dataset: Any, chosen: Sequence[Chosen]) -> list[Event]:
    """Decide on the other undecided labels of the same objects as on these; return the events.

    Raises:
        AutolabelError: none of these labels is decided, or none of their objects has another label
            that is not; or their decision holds for one frame only.

    """
    rulings = {
        object_of(label): _ruling(dataset, frame, label)
        for frame in chosen
        for field, label in frame.labels
        if field == MACHINE_FIELD and label.get("decision")
    }
    if not rulings:
        raise AutolabelError("decide on a label first, then on the rest of its object")
    frames, labels = _undecided_of(dataset, rulings)
    alike: dict[tuple[str, str], list[str]] = {}  # decision, and class where that is corrected
    for one, (object_name, label) in labels.items():
        decision, name = rulings[object_name]
        is_right = decision in {ACCEPTED, CORRECTED}
        if label == name:
            alike.setdefault((ACCEPTED if is_right else decision, ""), []).append(one)
        elif is_right:
            alike.setdefault((CORRECTED, name), []).append(one)
    if not alike:
        raise AutolabelError("these objects have no other label that is undecided")
    parts = [(how, one) for how, ids in alike.items() for one in choose(dataset, frames, ids)]
    events = [deciding(frame, *how) for how, frame in parts]
    return decide(dataset, [frame for _, frame in parts], events)


def _ruling(dataset: Any, frame: Chosen, label: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was decided on a label: the decision, and the class that the label has now."""
    decision = str(label["decision"])
    if decision not in {ACCEPTED, REJECTED, DELETED, CORRECTED}:
        raise AutolabelError(f"what was {decision} in one frame cannot be spread to others")
    ((_, now),) = as_corrected(dataset, replace(frame, labels=((MACHINE_FIELD, label),))).labels
    return decision, str(now["label"])


def left_of_objects(dataset: Any, chosen: Sequence[Chosen], *, alike: bool) -> int:
    """Count undecided labels of the objects of machine labels; of their classes only if `alike`."""
    classes = {
        object_of(label): str(label["label"])
        for frame in chosen
        for field, label in frame.labels
        if field == MACHINE_FIELD
    }
    rest = _undecided_of(dataset, classes)[1].values()
    return sum(not alike or classes[name] == label for name, label in rest)


def left_doubtful(dataset: Any, sequences: Sequence[str]) -> int:
    """Count undecided labels in sequences: followed ones, or with an object that was rejected."""
    fields = {f"{_INNER}.{name}": 1 for name in ("_id", "object", "decision", "changed")}
    found = sample_collection(dataset).find({"sequence_id": {"$in": [*sequences]}}, fields)
    labels = [label for sample in found for label in detections_of(sample, MACHINE_FIELD)]
    rejected = {object_of(label) for label in labels if label.get("decision") == REJECTED}
    undecided = [label for label in labels if not label.get("decision")]
    return sum(bool(one.get("changed")) or object_of(one) in rejected for one in undecided)


def _undecided_of(
    dataset: Any, objects: Mapping[str, Any]
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Find undecided labels of objects on open frames: samples' ids, label id -> object, class."""
    fields = {f"{_INNER}.{name}": 1 for name in ("_id", "object", "decision", "label")}
    wanted = {OBJECT_PATH: {"$in": sorted(objects)}, "review_status": OPEN}
    frames: list[str] = []
    labels: dict[str, tuple[str, str]] = {}
    for sample in sample_collection(dataset).find(wanted, fields).sort("_id", 1):
        frames.append(str(sample["_id"]))
        labels |= {
            str(one["_id"]): (object_of(one), str(one["label"]))
            for one in detections_of(sample, MACHINE_FIELD)
            if object_of(one) in objects and not one.get("decision")
        }
    return frames, labels


NEEDS_REVIEW, CONTROL = "needs review", "control sample"
LABEL_BY_LABEL = "label by label"
SECOND_OPINIONS, DISAGREEMENTS = "second opinions", "disagreements"
SECOND_TOLD = "labels that another reviewer has decided on, which is not shown"
CHANGED_FRAMES, CHANGED_LABELS = "changed by a new model", "changed by a new model, label by label"
NO_LABELS = "no labels"
ONE_SEQUENCE = "one sequence"
ORDER_AGAIN = "'Order again' above the grid (in a narrow window behind the orange arrow there)"
DEFAULT_BUDGET = 200
UNCHANGED = 0.02  # a pixel here or there is no difference
CONTROL_SIZE = 60


@dataclass(frozen=True)
class Queue:
    """What was put before the reviewer.

    Attributes:
        decisions: how many labels are in "needs review", one of each object.
        frames: on how many frames.
        threshold: their lowest risk.
        control: how many labels the control sample has.
        second: how many labels of another reviewer wait for this one's opinion.

    """

    decisions: int
    frames: int
    threshold: float
    control: int
    second: int = 0

    def text(self) -> str:
        """Say what there is to do."""
        more = f"; {counted(self.second, 'second opinion')}" if self.second else ""
        if not self.decisions:
            return f"nothing more to ask: every object (track) has a decision{more}"
        # Masks of `follow from here`, which nobody has seen, are asked about whatever their risk.
        risk = f", all with a risk of at least {self.threshold:.0%}" if self.threshold < 1 else ""
        return (
            f"{counted(self.decisions, 'decision')} on {counted(self.frames, 'frame')}, one label "
            f"of each object{risk}; a decision is about that label alone, Shift+O makes it for its "
            f"whole object{more}"
        )


QUEUES = "queues"  # of a dataset's info: view -> label id -> its frame's key


@dataclass(frozen=True)
class Standing:
    """How far the queue is.

    Attributes:
        label_ids: one label for each decision, in the order in which the frames show them.
        decided: those that need none any more: they have one, or that of this reviewer, or one
            after two that disagree, or their frame is done.
        view: name of the view that shows them.

    """

    label_ids: tuple[str, ...]
    decided: frozenset[str]
    view: str = ""

    @property
    def left(self) -> int:
        """How many decisions are left."""
        return len(self.label_ids) - len(self.decided)


def queue_standing(dataset: Any, view: str = "") -> Standing:
    """Look up which labels of a queue, as it was built last, are decided.

    Args:
        dataset: a dataset of ours.
        view: name of the view that shows the queue; any other is this reviewer's "needs review".

    """
    queues = dataset.info.get(QUEUES, {})
    view = view if view in queues else Share.of_this_process().named(NEEDS_REVIEW)
    queued: Mapping[str, str] = queues.get(view, {})
    if view == DISAGREEMENTS:
        left = [one.label_id for one in second_opinions_given(dataset) if one.is_open]
        return Standing(
            tuple(dict.fromkeys([*queued, *left])), frozenset({*queued} - {*left}), view
        )
    if view.startswith(SECOND_OPINIONS):
        waiting = {label for label, mine in unseen_by_me(dataset).items() if not mine}
        return Standing(tuple(queued), frozenset(queued.keys() - waiting), view)
    fields = {f"{_INNER}._id": 1, f"{_INNER}.decision": 1, "review_status": 1}
    wanted = {"frame_key": {"$in": sorted(set(queued.values()))}}
    decided = {
        str(label["_id"])
        for sample in sample_collection(dataset).find(wanted, fields)
        for label in detections_of(sample, MACHINE_FIELD)
        if label.get("decision") or sample["review_status"] == DONE
    }
    return Standing(tuple(queued), frozenset(decided & set(queued)), view)


def _in_order(doubts: Sequence[Doubt]) -> dict[str, str]:
    """Return label id -> frame in the order of the view: riskiest frames first."""
    highest: dict[str, float] = {}
    for doubt in doubts:
        highest[doubt.frame_key] = max(doubt.risk, highest.get(doubt.frame_key, 0.0))
    ordered = sorted(doubts, key=lambda one: (-highest[one.frame_key], one.frame_key, -one.risk))
    return {one.label_id: one.frame_key for one in ordered}


def build_queue(
    dataset: Any,
    budget: int | None = None,
    control: int = CONTROL_SIZE,
    share: Share | None = None,
) -> Queue:
    """Save the views that a review session works through; existing ones are brought up to date.

    Args:
        dataset: a dataset of ours.
        budget: how many decisions somebody has time for; by default as many as the last time, of
            which those made count while others are left: who joins changes nobody's numbers. A
            queue with nothing more to ask stays as it is.
        control: how many labels to draw at random from the rest.
        share: of the reviewer, who then has views of the same names with `2 of 3` behind them;
            everything by default.

    """
    share = share or Share()
    made, goes_on = _made(dataset, share, budget)
    budget = budget or int(dataset.info.get("budget", DEFAULT_BUDGET))
    decided = decided_objects(dataset)
    parts = deal(dataset, riskiest_objects(dataset, decided, budget * share.of), share)
    queues = {number: few_of_each_place(found, budget) for number, found in parts.items()}
    doubts = queues[share.number][: max(0, budget - (len(made) if goes_on else 0))]
    threshold = min(1.0, doubts[-1].risk) if doubts else 1.0
    wanted = (made if goes_on or not doubts else {}) | _in_order(doubts)
    # Of all reviewers: the control sample is of what nobody looks at.
    queued = {one.object_name for queue in queues.values() for one in queue}
    drawn = draw_control(dataset, queued, decided, control)
    second = second_opinions(dataset, share)
    riskiest = next(iter(sequence_risks(dataset)), "none is open")
    text = f"the riskiest label of each of the {len(wanted)} riskiest objects"
    views = {
        # Pages open only views that were there when they were loaded.
        share.named(ONE_SEQUENCE): (
            frames_view(dataset, {"sequence_id": riskiest}),
            f"{riskiest}, the riskiest",
        ),
        share.named(NEEDS_REVIEW): (needs_review(dataset, wanted), text),
        share.named(LABEL_BY_LABEL): (label_by_label(dataset, wanted), f"{text}, one a tile"),
    }
    if second:
        views[share.named(SECOND_OPINIONS)] = (unseen_view(dataset, second), SECOND_TOLD)
    nothing = everything(dataset).match({"review_status": OPEN, "instances": 0, "reasons": []})
    if nothing.count():
        views[NO_LABELS] = (nothing, "open frames in which the machine has found nothing")
    if drawn:
        text = "labels drawn at random from those that nobody will look at"
        views[CONTROL] = (only_labels(dataset, drawn), text)
    unused = _unused(dataset)
    if PREVIOUS_FIELD not in unused:
        text = "those that a new model has made otherwise, most changed first"
        before = f"{text}; '{PREVIOUS_FIELD}' in the sidebar shows what was there before"
        views[CHANGED_FRAMES] = (changed_frames(dataset), f"frames with {before}")
        views[CHANGED_LABELS] = (changed_labels(dataset), text)
    views = {name: (_without(view, unused), text) for name, (view, text) in views.items()}
    with dataset_lock(dataset.name):
        dataset.reload()
        # Views of ours that hold nothing by now, as the control sample of a smaller queue.
        ours = {CONTROL, CHANGED_FRAMES, CHANGED_LABELS, NO_LABELS}
        ours |= {share.named(SECOND_OPINIONS)}
        for name in set(dataset.list_saved_views()) & (ours - set(views)):
            dataset.delete_saved_view(name)
        for name, (view, text) in views.items():
            dataset.save_view(name, view, description=text, overwrite=True)
        classes = known_classes(dataset)
        offer_classes(dataset, [*classes, *detector_classes(dataset)])
        colour_classes(dataset, classes)
        mine = {
            share.named(NEEDS_REVIEW): wanted, share.named(SECOND_OPINIONS): second,
            share.named(LABEL_BY_LABEL): made | {one.label_id: one.frame_key for one in doubts},
        }  # fmt: skip
        dataset.info[QUEUES] = dataset.info.get(QUEUES, {}) | mine | {CONTROL: drawn}
        dataset.info["budget"] = budget
        dataset.save()
    show_disagreements(dataset, second_opinions_given(dataset))
    frames = len({one.frame_key for one in doubts})
    return Queue(len(doubts), frames, threshold, len(drawn), len(second))


def asks_for_more(dataset: Any, share: Share) -> bool:
    """Whether another queue would have anything for this reviewer."""
    budget = share.of * int(dataset.info.get("budget", DEFAULT_BUDGET))
    doubts = riskiest_objects(dataset, decided_objects(dataset), budget)
    mine = {
        "frame_key": {"$in": [one.frame_key for one in doubts]},
        f"{SHARE_FIELD}.{share.of}": {"$in": [None, share.number]},
    }
    is_left = sample_collection(dataset).find_one(mine, {"_id": 1})
    return bool(is_left or second_opinions(dataset, share))


def _made(dataset: Any, share: Share, budget: int | None) -> tuple[dict[str, str], bool]:
    """Find decided labels of a reviewer's queue: id -> frame's key, and whether it goes on."""
    view = share.named(NEEDS_REVIEW)
    queued, standing = dataset.info.get(QUEUES, {}).get(view, {}), queue_standing(dataset, view)
    decided = {one: queued[one] for one in queued if one in standing.decided}
    return decided, standing.left > 0 and not budget


def show_disagreements(dataset: Any, opinions: Sequence[Opinions]) -> int:
    """Save the view of the labels on which two people differ; return how many are open.

    There always is one: pages open only views that were there when they were loaded.
    """
    waiting = {one.label_id: one.frame_key for one in opinions if one.is_open}
    with dataset_lock(dataset.name):
        dataset.reload()
        view = _without(only_labels(dataset, waiting), _unused(dataset))
        dataset.save_view(
            DISAGREEMENTS, view, description="labels on which two reviewers differ", overwrite=True
        )
        dataset.info[QUEUES] = dataset.info.get(QUEUES, {}) | {DISAGREEMENTS: waiting}
        dataset.save()
    return len(waiting)


def second_opinions(dataset: Any, share: Share) -> dict[str, str]:
    """Find labels that another reviewer has decided on and this one decides on, too.

    Returns:
        Label id -> frame's key; of an object the riskiest label, and of none that has a second
        opinion or that this reviewer has decided on.

    """
    if not share.double:
        return {}
    best, closed = dict[str, Doubt](), set[str]()
    fields = {f"{_INNER}.{name}": 1 for name in ("_id", "object", "risk")}
    fields |= {"frame_key": 1, LOG_FIELD: 1, SHARE_FIELD: 1}
    for sample in sample_collection(dataset).find({f"{LOG_FIELD}.0": {"$exists": True}}, fields):
        key = str(sample["frame_key"])
        waiting, decided = said_by_others(sample)
        for label in detections_of(sample, MACHINE_FIELD):
            name = str(label["_id"])
            doubt = Doubt(float(label.get("risk") or 0.0), name, key, object_of(label))
            if name in decided:
                closed.add(doubt.object_name)
            elif name in waiting and share.is_second(sample):
                best[doubt.object_name] = max(doubt, best.get(doubt.object_name, doubt))
    return _in_order([one for name, one in best.items() if name not in closed])


def unseen_view(dataset: Any, wanted: Mapping[str, str]) -> Any:
    """View of labels without what people made of them, which the tab Annotate would show."""
    return _without(only_labels(dataset, wanted), [*_unused(dataset), REVIEWED_FIELD])


def show_second_opinions(dataset: Any, name: str, left: Collection[str]) -> None:
    """Save a view of second opinions with those labels of its queue that are left."""
    with dataset_lock(dataset.name):
        dataset.reload()
        queued = dataset.info[QUEUES][name]
        view = unseen_view(dataset, {one: queued[one] for one in queued if one in left})
        dataset.save_view(name, view, description=SECOND_TOLD, overwrite=True)


def unseen_labels(sample: Mapping[str, Any]) -> dict[str, str]:
    """Find labels whose decision the reviewer of this process does not see -> what is shown.

    That is the reviewer's own opinion, if nobody has decided since; "" where none is given yet.
    """
    is_second = Share.of_this_process().is_second(sample)
    mine = dict[str, str]()
    for entry in standing_entries(sample):
        mine = {label: what for label, what in mine.items() if label not in entry["decisions"]}
        mine |= entry.get("opinions") or {} if entry["by"] == reviewer() else {}
    return dict.fromkeys(said_by_others(sample)[0] if is_second else (), "") | mine


def unseen_by_me(dataset: Any) -> dict[str, str]:
    """Find `unseen_labels` of all frames, if the reviewer of this process gives second opinions."""
    if not Share.of_this_process().double:
        return {}
    fields = {"frame_key": 1, LOG_FIELD: 1, SHARE_FIELD: 1}
    found = sample_collection(dataset).find({f"{LOG_FIELD}.0": {"$exists": True}}, fields)
    return {label: mine for one in found for label, mine in unseen_labels(one).items()}


# Of a frame, and of no use to a reviewer; the risk that people read is that of a label.
_NOT_SHOWN = (
    RISK_FIELD, "timestamp_ns", "frame_uri", "frame_address", "frame_etag", "frame_key", "run_key",
    "model", "stamp", "previous_model", "loaded_at", "control", "difference", LOG_FIELD,
    SHARE_FIELD, REASONS_FIELD,
)  # fmt: skip


def _unused(dataset: Any) -> list[str]:
    """Fields that no reviewer needs; `previous` where no label has changed."""
    # FiftyOne writes None for the fields that a frame lacks when its tab Annotate saves it.
    before = {"previous_model": {"$nin": [None, ""]}}
    changed = sample_collection(dataset).find_one(before, {"_id": 1})
    return [*_NOT_SHOWN, *([] if changed else [PREVIOUS_FIELD])]


def is_patches(view: Any) -> bool:
    """Whether the samples of a view are labels."""
    from fiftyone.core.patches import EvaluationPatchesView, PatchesView

    return isinstance(view, (PatchesView, EvaluationPatchesView))


def _without(view: Any, fields: Sequence[str]) -> Any:
    """Leave fields out of a view; one of patches has none of them."""
    if is_patches(view):
        return view
    return view.exclude_fields([name for name in fields if name in view.get_field_schema()])


def F(path: str) -> Any:  # noqa: N802 - as FiftyOne's pages call it
    """Return a field, for the expressions of views."""
    from fiftyone import ViewField

    return ViewField(path)


def known_classes(dataset: Any) -> list[str]:
    """Classes that occur in a dataset, machine's and people's."""
    labels = sample_collection(dataset)
    found = [labels.distinct(f"{field}.detections.label") for field in FIELDS]
    return sorted({name for names in found for name in names if name})


def detector_classes(dataset: Any) -> list[str]:
    """Classes that the labels' detectors look for, found or not; of the package's and YOLOX'."""
    samples = sample_collection(dataset)
    known = set(samples.distinct("stamp.parameters.classes"))
    for stamp in samples.distinct("stamp.detector"):
        if (name := stamp.partition("@")[0]) in BUNDLED:
            known.update(load_detector(name).classes)
    return sorted(known)


def everything(dataset: Any) -> Any:
    """Return all samples as one flat view, whatever the camera."""
    if dataset.media_type == "group":
        return dataset.select_group_slices(_allow_mixed=True)
    return dataset.view()


def sequence_risks(dataset: Any) -> dict[str, float]:
    """Risk of every sequence with frames that are open, riskiest first; read from an index."""
    frames: dict[str, list[float]] = {}
    projection = {"_id": 0, "sequence_id": 1, "risk": 1}
    for one in sample_collection(dataset).find({"review_status": OPEN}, projection):
        frames.setdefault(one["sequence_id"], []).append(one.get("risk") or 0.0)
    risks = {name: sequence_risk(np.array(values)) for name, values in frames.items()}
    return dict(sorted(risks.items(), key=lambda one: -one[1]))


MOST_LISTED = 1000  # what a list in the App can hold; a part of a name finds the others


def list_sequences(dataset: Any) -> dict[str, str]:
    """Name -> what there is to know, riskiest first and those that are done last."""
    each = {"$group": {"_id": "$sequence_id", "frames": {"$sum": 1}}}
    frames = {one["_id"]: one["frames"] for one in sample_collection(dataset).aggregate([each])}
    risks = sequence_risks(dataset)
    listed = {}
    for name in [*risks, *sorted(set(frames) - set(risks))]:
        state = f"risk {risks[name]:.0%}" if name in risks else "done"
        listed[name] = f"{name}  ({counted(frames[name], 'frame')}, {state})"
    return listed


def sequence_view(dataset: Any, name: str) -> Any:
    """View of all frames of a sequence in order, or of all whose names have this part.

    Raises:
        AutolabelError: there is none.

    """
    part = F("sequence_id").contains_str(name, case_sensitive=False)
    for wanted in ({"sequence_id": name}, part):
        view = frames_view(dataset, wanted)
        if name and view.count():
            return view
    raise AutolabelError(f"no sequence has '{name}' in its name")


def frames_view(dataset: Any, wanted: Any) -> Any:
    """View of frames in order, with the fields that a reviewer needs."""
    view = everything(dataset).match(wanted)
    view = view.sort_by([("sequence_id", 1), ("frame_number", 1), ("camera", 1)])
    return _without(view, _unused(dataset))


def needs_review(dataset: Any, wanted: Mapping[str, str]) -> Any:
    """View of those of some labels that are undecided, by their frames.

    Args:
        dataset: a dataset of ours.
        wanted: label id -> its frame's key.

    """
    view = only_labels(dataset, wanted).match({"review_status": OPEN})
    return view.filter_labels(MACHINE_FIELD, F("decision") == "")


# What a tile says of its frame.
OF_FRAMES = ("sequence_id", "camera", "frame_number")


def label_by_label(dataset: Any, wanted: Mapping[str, str]) -> Any:
    """View of the same labels as tiles of their own, riskiest first; decided ones leave it."""
    frames = only_labels(dataset, wanted).match({"review_status": OPEN})
    patches = frames.to_patches(MACHINE_FIELD, other_fields=list(OF_FRAMES))
    undecided = patches.match(F(f"{MACHINE_FIELD}.decision") == "")
    return undecided.sort_by(f"{MACHINE_FIELD}.risk", reverse=True)


def only_labels(dataset: Any, drawn: Mapping[str, str]) -> Any:
    """View of some machine labels, id -> frame's key, with their frames in this order.

    So the page can say of each which one of them all it is. FiftyOne's `select_labels` would leave
    out all other fields, and what somebody draws in the App would take the place of the reviewed
    labels that it does not see.
    """
    keys = list(dict.fromkeys(drawn.values()))
    view = everything(dataset).select_by("frame_key", keys, ordered=True)
    return view.filter_labels(MACHINE_FIELD, F("_id").is_in([ObjectId(one) for one in drawn]))


def draw_control(
    dataset: Any, queued: Collection[str], decided: Collection[str], count: int
) -> dict[str, str]:
    """Draw labels that nobody will look at at random: id -> frame, frames in a random order.

    These are labels of objects that are neither in the queue nor decided on, and those drawn
    before: so another queue takes a few labels away or adds some, and what was decided on most of
    the sample stays: it is what the estimate is made of.
    """
    before = control_labels(dataset)
    # Frames in the order of their fixed random number, more than enough, then labels of them.
    pipeline = [
        {"$match": {"instances": {"$gt": 0}}}, {"$sort": {"control": 1}}, {"$limit": 2 * count},
        {"$project": {"frame_key": 1, "labels": {"$map": {
            "input": f"${MACHINE_FIELD}.detections",
            "in": {"_id": "$$this._id", "object": "$$this.object", "risk": "$$this.risk"},
        }}}},
    ]  # fmt: skip
    pool = {
        str(label["_id"]): str(sample["frame_key"])
        for sample in sample_collection(dataset).aggregate(pipeline, allowDiskUse=True)
        for label in sorted(sample["labels"] or [], key=lambda one: -(one.get("risk") or 0.0))
        if object_of(label) not in queued
        and (object_of(label) not in decided or str(label["_id"]) in before)
    }
    # As good as random, and the same for everybody who builds the queue.
    order = {label: hashlib.sha256(f"control\0{label}".encode()).digest() for label in pool}
    chosen = set(sorted(pool, key=order.__getitem__)[:count])
    return {label: frame for label, frame in pool.items() if label in chosen}


def changed_frames(dataset: Any) -> Any:
    """View that compares `previous` with `detections`: what changed, most changed frames first."""
    view = everything(dataset).match({"difference": {"$gt": UNCHANGED}})
    view = view.sort_by("difference", reverse=True)
    for field in (MACHINE_FIELD, PREVIOUS_FIELD):
        view = view.filter_labels(field, F("difference") > UNCHANGED, only_matches=False)
    return view


def changed_labels(dataset: Any) -> Any:
    """View of single labels that changed, most changed first."""
    patches = changed_frames(dataset).to_patches(MACHINE_FIELD)
    return patches.sort_by(f"{MACHINE_FIELD}.difference", reverse=True)


def control_labels(dataset: Any) -> set[str]:
    """Return the ids of the control sample's labels."""
    return set(dataset.info.get(QUEUES, {}).get(CONTROL, ()))
