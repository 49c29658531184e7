"""What two people have decided on one label, and what is left to settle between them.

A second opinion is given without seeing the first, and changes nothing: it lies in the log beside
the decision, which stands until somebody settles the disagreement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tasks.dataset.documents import reviewed_id
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import LOG_FIELD
from tasks.review.events import (
    ACCEPTED,
    CORRECTED,
    DELETED,
    REJECTED,
    reviewer,
    said,
    standing_entries,
)

# What another person can say yes or no to; a merged label is a label of its own.
SECONDED = (ACCEPTED, REJECTED, CORRECTED, DELETED)


def said_by_others(sample: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Tell labels on which others have decided alone from those that have a second opinion, too."""
    me, last, closed = reviewer(), dict[str, str](), set[str]()
    for entry in standing_entries(sample):
        last |= entry["decisions"]
        if entry["by"] == me or entry.get("second_opinion"):
            closed |= said(entry).keys()
    return {label for label, what in last.items() if what in SECONDED} - closed, closed


@dataclass(frozen=True)
class Opinions:
    """What two reviewers, one after the other, have decided on a label.

    Attributes:
        label_id, label: of the machine's label, and its class.
        frame_key, sequence_id, camera, frame_number: of its frame.
        people: the two, by name.
        verdicts: theirs, in the same order: right, wrong (rejected or deleted), mask repaired,
            or the class that the label should have.
        unseen: whether the later one did not see what the other had decided.
        settled: who has decided after two that disagree, and the verdict; None while nobody has.
        risk: of the machine's label, from 0 to 1.

    """

    label_id: str
    label: str
    frame_key: str
    sequence_id: str
    camera: str
    frame_number: int
    people: tuple[str, str]
    verdicts: tuple[str, str]
    unseen: bool
    settled: tuple[str, str] | None = None
    risk: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether they disagree and nobody has decided since."""
        return not (self.agree or self.settled)

    @property
    def agree(self) -> bool:
        """Whether they are of one mind."""
        return len(set(self.verdicts)) == 1


def second_opinions_given(dataset: Any, frames: Mapping[str, Any] | None = None) -> list[Opinions]:
    """Find labels on which two reviewers have decided, on some frames; of several pairs the last.

    The order is that in which the App shows them: by frame, riskiest first.
    """
    fields = ("frame_key", "sequence_id", "camera", "frame_number", LOG_FIELD)
    wanted = {f"{LOG_FIELD}.1": {"$exists": True}, **(frames or {})}
    found: dict[str, Opinions] = {}
    for sample in sample_collection(dataset).find(wanted, dict.fromkeys(fields, 1)):
        where = (str(sample["frame_key"]), str(sample["sequence_id"]), sample.get("camera") or "",
                 int(sample.get("frame_number") or 0))  # fmt: skip
        last: dict[str, tuple[str, str]] = {}  # label -> who, verdict
        for entry in standing_entries(sample):
            if entry["action"] in {"edit", "remove"}:
                continue  # whose they are, nobody knows
            unseen = bool(entry.get("second_opinion"))
            for label, decision in said(entry).items():
                if decision not in SECONDED:
                    last.pop(label, None)
                    continue
                noted = entry["changes"].get(str(reviewed_id(label))) or {}
                mine = (entry["by"], _verdict(decision, noted.get("changed", "")))
                before, known = last.get(label, mine), found.get(label)
                if before[0] != mine[0] and (unseen or not (known and known.is_open)):
                    (one, verdict), (other, another) = sorted([before, mine])
                    pair = ((one, other), (verdict, another), unseen)
                    risk = float(noted.get("risk") or 0.0)
                    found[label] = Opinions(label, noted.get("label", ""), *where, *pair, risk=risk)
                elif known and not known.agree:
                    found[label] = replace(known, settled=mine)
                if label in entry["decisions"]:  # an opinion leaves the first one's word
                    last[label] = mine
    return sorted(found.values(), key=lambda one: (one.frame_key, -one.risk, one.label_id))


def unsettled(opinions: Iterable[Opinions]) -> int:
    """Count open disagreements."""
    return sum(one.is_open for one in opinions)


def _verdict(decision: str, changed: str) -> str:
    if decision == CORRECTED:
        return changed.rpartition(" -> ")[2] if changed.startswith("label: ") else "mask repaired"
    words = {ACCEPTED: "right", REJECTED: "wrong", DELETED: "wrong"}
    return words.get(decision, decision)
