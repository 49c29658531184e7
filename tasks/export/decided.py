"""What people decided on the frames of a chunk, as a dataset knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.dataset.documents import Values, detections_of, log_of, sample_id, to_values
from tasks.dataset.schema import DONE, LOG_FIELD, MACHINE_FIELD, sample_collection
from tasks.export.types import Instance
from tasks.frames.identity import frame_identity
from tasks.review.actions import frame_of
from tasks.review.export import is_decided, rows_of
from tasks.review.set_aside import last_decisions
from tasks.store.manifests import Manifest
from tasks.store.tables import LabeledFrame

WRONG = frozenset({"rejected", "deleted", "relabel"})


@dataclass(frozen=True)
class Decided:
    """What people hold to be right on one frame.

    Attributes:
        instances: accepted, corrected and added labels, and those of a finished frame.
        remade: labels that were made again and that nobody has decided on since.
        settled: positions of the machine's boxes that these take the place of, or that are wrong.
        reviewed: whether a decision stands.

    """

    instances: tuple[Instance, ...]
    remade: tuple[Instance, ...]
    settled: frozenset[int]
    reviewed: bool


UNDECIDED = Decided((), (), frozenset(), reviewed=False)


def take_in(dataset: Any) -> None:
    """Bring what people decided elsewhere into a dataset, and set aside what counts no more."""
    from tasks.review.harvest import harvest
    from tasks.review.set_aside import compare_files

    harvest(dataset)
    compare_files(dataset)


def decisions(
    dataset: Any, manifest: Manifest, labeled: Sequence[LabeledFrame]
) -> Mapping[int, Decided]:
    """Decisions by frame index, without those set aside; frames nobody looked at are not there."""
    index_of = {
        sample_id(frame_identity(one.frame, manifest.frames_uri).key): one.frame for one in labeled
    }
    found = {}
    for sample in sample_collection(dataset).find({"_id": {"$in": list(index_of)}}):
        frame = index_of[sample["_id"]]
        looked_at = sample.get(LOG_FIELD) or sample.get("review_status") == DONE
        if looked_at and sample.get("frame_etag") in {None, "", frame.etag}:
            found[frame.index] = _decided(sample, manifest.stamp.labels_key)
    return found


def _decided(sample: Mapping[str, Any], run_key: str) -> Decided:
    rows, reviewed = list(rows_of(sample)), is_decided(sample)
    kept = tuple(_instance(row) for row in rows if row["decision"] not in WRONG)
    if sample.get("run_key") != run_key:  # decided on another run's labels: those alone count
        return Decided(kept, (), frozenset(range(1 << 16) if reviewed else ()), reviewed)
    about = {source for row in rows for source in row["sources"]}
    about |= {label for label, (decision, _) in last_decisions(sample).items() if decision}
    again = {label for entry in log_of(sample) for label in entry.get("overrides") or {}} - about
    machine = {str(label["_id"]): label for label in detections_of(sample, MACHINE_FIELD)}
    size_hw = frame_of(sample).size_hw
    remade = tuple(
        _instance(to_values(label, size_hw) | {"track_id": label.get("index")})
        for name, label in machine.items()
        if name in again
    )
    position: dict[str, Any] = {name: label.get("box_index") for name, label in machine.items()}
    settled = {position[name] for name in about | again if position.get(name) is not None}
    return Decided(kept, remade, frozenset(settled), reviewed)


def _instance(row: Values) -> Instance:
    left, top, right, bottom = row["box_xyxy_px"]
    score = row.get("confidence")
    return Instance(
        row["label"],
        1.0 if score is None else float(score),
        (float(left), float(top), float(right), float(bottom)),
        row["rle"].encode("ascii"),
        int(row["area_px"]),
        row.get("track_id"),
        float(row.get("risk") or 0.0),
        float(row.get("predicted_iou") or 0.0),
        row["decision"],
    )
