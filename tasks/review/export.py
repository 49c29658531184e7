"""Reviewed labels on their way back: a Parquet table, COCO json, and rebuilding a dataset."""

import datetime
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.documents import Values, detections_of, to_values
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import DONE, LOG_FIELD, MACHINE_FIELD, REVIEWED_FIELD, open_dataset
from tasks.review.actions import frame_of
from tasks.review.events import ADDED, DELETED, REJECTED, RELABEL, reviews_uri, storage_of
from tasks.review.set_aside import (
    SetAside,
    compare_files,
    finishing,
    harvest,
    last_decisions,
    samples_set_aside,
)
from tasks.store import storage
from tasks.wording import counted

PASSED = "passed"
AS_BACKGROUND = "objects left undecided look like background to who trains on the files"
NOT_RIGHT = frozenset({REJECTED, DELETED, RELABEL})
COLUMNS = (
    "frame_key", "sequence_id", "camera", "index", "frame_uri", "frame_etag", "id", "label",
    "decision", "changed", "reviewer", "reviewed_at", "sources", "box_xyxy_px", "size_hw", "rle",
    "area_px", "model",
    "run_key", "predicted_iou", "stability", "object_score", "confidence", "risk",
    "track_id", "frame_status",
)  # fmt: skip
SET_ASIDE = "set_aside.parquet"


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        frames, labels, by_decision: frames with decisions, their labels, and how many by decision.
        table_uri, coco_uri: where.
        set_aside: decisions that are not among them: their frame is gone or has changed.
        set_aside_uri: a table of those, "" where there are none.
        left_out: what is left out of frames that are only partly decided, in words.

    """

    frames: int
    labels: int
    by_decision: Mapping[str, int]
    table_uri: str
    coco_uri: str
    set_aside: SetAside
    set_aside_uri: str = ""
    left_out: str = ""

    def text(self) -> str:
        """Say how much it is: some of it is no label that the progress counts as decided."""
        words = {PASSED: "untouched on frames that are done"}
        each = [f"{count:,} {words.get(what, what)}" for what, count in self.by_decision.items()]
        return (
            f"{counted(self.labels, 'label')} on {counted(self.frames, 'frame')}: "
            f"{', '.join(each) or 'nobody has decided on any'}"
            f"{f'. {self.left_out}' if self.left_out else ''}"
        )


def export_reviews(dataset_name: str, out_uri: str = "") -> ExportReport:
    """Write what people decided: one row per label, and COCO json of what they hold to be right.

    Rows: reviewed instances (accepted, corrected, merged, edited), labels that were rejected or
    deleted, and on frames marked as done also the labels that nobody touched ("passed"). Decisions
    on frames that are gone or have changed are in a table of their own and in nothing else.

    Args:
        dataset_name: the dataset.
        out_uri: where to write; by default below the storage that its labels came from.

    Raises:
        AutolabelError: no such dataset, or nowhere to write.

    """
    dataset = open_dataset(dataset_name)
    target = out_uri or storage_of(dataset)
    if not target:
        raise AutolabelError(f"dataset '{dataset_name}' knows no storage: give one with --out")
    harvest(dataset)
    aside = compare_files(dataset)
    images = reviewed_samples(dataset)
    rows = [row for sample in images for row in rows_of(sample)]
    folder = reviews_uri(target, dataset_name)
    table_uri = storage.join(folder, "reviewed.parquet")
    storage.write_bytes(table_uri, _parquet(rows))
    coco_uri = storage.join(folder, "reviewed.coco.json")
    storage.write_bytes(coco_uri, json.dumps(coco_of(images, rows)).encode())
    aside_uri = storage.join(folder, SET_ASIDE)
    others = [row for sample in samples_set_aside(dataset) for row in _rows_set_aside(sample)]
    if others:
        storage.write_bytes(aside_uri, _parquet(others, ("why",)))
    else:
        storage.delete(aside_uri)  # of an earlier export, and no longer so
    said = Counter(row["decision"] if row["sources"] else ADDED for row in rows)
    counts = dict(sorted(said.items()))
    written = (table_uri, coco_uri, aside, aside_uri if others else "")
    return ExportReport(len(images), len(rows), counts, *written, left_out(images))


def reviewed_samples(dataset: Any) -> list[Mapping[str, Any]]:
    """Return the samples that an export writes."""
    reviewed = {"$or": [{"review_status": DONE}, {f"{LOG_FIELD}.0": {"$exists": True}}]}
    found = sample_collection(dataset).find(reviewed).sort("frame_key", 1)
    return [sample for sample in found if is_decided(sample)]


def left_out(samples: Iterable[Mapping[str, Any]]) -> str:
    """Say which labels an export leaves out of frames that people only began; "" for none."""
    undecided = [
        sum(label.get("decision") in {"", None, RELABEL} for label in labels)
        for sample in samples
        if sample["review_status"] != DONE and (labels := detections_of(sample, MACHINE_FIELD))
    ]
    began = sum(map(bool, undecided))
    what = counted(sum(undecided), "undecided label")
    return (
        f"{what} on {counted(began, 'partly decided frame')} left out: {AS_BACKGROUND}"
        if began
        else ""
    )


def _rows_set_aside(sample: Mapping[str, Any]) -> list[Values]:
    """Return one row a decision; an empty one stands for a frame that has none, only a status.

    Of labels that this database never had, only the decision is known.
    """
    why = {"why": sample["aside"]["why"]}
    rows = [{**row, **why} for row in rows_of(sample) if row["decision"] != PASSED]
    covered = {source for row in rows for source in (row["id"], *row["sources"])}
    frame = _frame_values(sample) | why
    for label, (decision, who) in last_decisions(sample).items():
        if decision and label not in covered:
            rows.append({**frame, **who, "id": label, "decision": decision, "sources": [label]})
    return rows or [frame]


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
        if decision in {PASSED, "rejected", "deleted"}:
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
    """Whether a decision on a frame stands: it was not taken back, and no label made again."""
    undecided = {"", RELABEL}  # sent back, and not here again
    stands = any(one not in undecided for one, _ in last_decisions(sample).values())
    return stands or sample["review_status"] == DONE or bool(detections_of(sample, REVIEWED_FIELD))


def is_empty(sample: Mapping[str, Any], rows: Iterable[Values]) -> bool:
    """Whether a person has confirmed that a frame shows nothing: done, and no label is right."""
    return sample["review_status"] == DONE and all(one["decision"] in NOT_RIGHT for one in rows)


def _parquet(rows: list[Values], more: tuple[str, ...] = ()) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    real = ("predicted_iou", "stability", "object_score", "confidence", "risk")
    kinds: dict[str, Any] = {
        **dict.fromkeys((*COLUMNS, *more), pa.string()), **dict.fromkeys(real, pa.float64()),
        **dict.fromkeys(("index", "area_px", "track_id"), pa.int64()),
        "sources": pa.list_(pa.string()), "box_xyxy_px": pa.list_(pa.float64()),
        "size_hw": pa.list_(pa.int64()),
    }  # fmt: skip
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def coco_of(samples: list[Mapping[str, Any]], rows: list[Values]) -> dict[str, Any]:
    """Build COCO instances json with run-length masks of the labels that are held to be right.

    A label without a mask is no instance, and whoever measures by the file could not measure it.
    """
    right = [row for row in rows if row["area_px"] and row["decision"] not in NOT_RIGHT]
    of_frame: dict[str, list[Values]] = {}
    for row in rows:
        of_frame.setdefault(row["frame_key"], []).append(row)
    names = sorted({row["label"] for row in right})
    images = [
        {
            "id": number, "file_name": sample["frame_uri"].rpartition("/")[2],
            "width": (sample.get("metadata") or {}).get("width"),
            "height": (sample.get("metadata") or {}).get("height"),
            "frame_uri": sample["frame_uri"], "frame_key": sample["frame_key"],
            "review_status": sample["review_status"],
            "confirmed_empty": is_empty(sample, of_frame.get(sample["frame_key"], ())),
        }
        for number, sample in enumerate(samples, 1)
    ]  # fmt: skip
    number_of = {image["frame_key"]: image["id"] for image in images}
    annotations = []
    for number, row in enumerate(right, 1):
        left, top, right_, bottom = row["box_xyxy_px"]
        annotations.append(
            {
                "id": number, "image_id": number_of[row["frame_key"]],
                "category_id": names.index(row["label"]) + 1, "iscrowd": 0,
                "bbox": [left, top, right_ - left, bottom - top], "area": row["area_px"],
                "segmentation": {"size": row["size_hw"], "counts": row["rle"]},
                "attributes": {
                    name: row.get(name)
                    for name in ("decision", "changed", "reviewer", "reviewed_at", "model", "id")
                },
            }
        )  # fmt: skip
    return {
        "info": {
            "description": "labels reviewed by people",
            "date_created": datetime.datetime.now(datetime.UTC).isoformat(),
        },
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(names, 1)],
    }
