"""What people decided on a frame, label by label."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tasks.dataset.documents import Values, detections_of, to_values
from tasks.dataset.schema import DONE, MACHINE_FIELD, REVIEWED_FIELD
from tasks.review.actions import frame_of
from tasks.review.events import DELETED, REJECTED
from tasks.review.set_aside import finishing, last_decisions

PASSED = "passed"
NOT_RIGHT = frozenset({REJECTED, DELETED})


def rows_of(sample: Mapping[str, Any]) -> Iterator[Values]:
    """Labels of a sample that people decided on, with what they decided."""
    frame, common = frame_of(sample), _frame_values(sample)
    for label in detections_of(sample, REVIEWED_FIELD):
        values = to_values(label, frame.size_hw)
        who = {name: label.get(name) or "" for name in ("reviewer", "reviewed_at")}
        yield {**values, **common, **who, "track_id": label.get("index")}
    last, done = last_decisions(sample), finishing(sample)
    # Of another run's labels, made since, nobody has said anything.
    is_done = sample["review_status"] == DONE and done.get("run_key") in {None, common["run_key"]}
    for label in detections_of(sample, MACHINE_FIELD):
        decision, who = last.get(str(label["_id"]), ("", {}))
        if not decision and is_done:
            decision = PASSED
            who = {"reviewer": done.get("by") or "", "reviewed_at": done.get("at") or ""}
        if decision in {PASSED, REJECTED, DELETED}:
            values = to_values(label, frame.size_hw, decision=decision)
            values["sources"] = [str(label["_id"])]
            yield {**values, **common, **who, "track_id": label.get("index")}


def _frame_values(sample: Mapping[str, Any]) -> Values:
    return {
        "frame_key": sample["frame_key"], "index": sample.get("frame_number"),
        "run_key": sample.get("run_key") or "", "frame_status": sample["review_status"],
        **{n: sample.get(n) for n in ("sequence_id", "camera", "frame_uri", "frame_etag")},
    }  # fmt: skip


def is_decided(sample: Mapping[str, Any]) -> bool:
    """Whether a decision on a frame stands: it was not taken back."""
    stands = any(action for action, _ in last_decisions(sample).values())
    return stands or sample["review_status"] == DONE or bool(detections_of(sample, REVIEWED_FIELD))


def is_empty(sample: Mapping[str, Any], rows: Iterable[Values]) -> bool:
    """Whether a person has confirmed that a frame shows nothing: done, and no label is right."""
    return sample["review_status"] == DONE and all(one["decision"] in NOT_RIGHT for one in rows)
