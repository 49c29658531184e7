"""What tests of reviewing do to a dataset, and what they look at."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from tasks.dataset import documents, layout, schema
from tasks.dataset.documents import stamp_text
from tasks.frames.sources import remember_sources
from tasks.load.into_fiftyone import load_sequence, prepare_dataset
from tasks.review.actions import (
    accept,
    choose,
    decide,
    delete,
    fix_class,
    mark_sequence,
    merge,
    reject,
)
from tasks.review.decided import rows_of
from tasks.review.set_aside import compare_files, harvest
from tasks.store.manifests import write_manifest
from tasks.store.tables import FOLLOWED, LabeledFrame
from tests.load.test_into_fiftyone import store
from tests.review.labels import OTHER_STAMP, SIZE_HW


def pick(name: str, frame: int, *rows: int, field: str = "detections") -> tuple:
    dataset = schema.open_dataset(name)
    sample = dataset.match({"frame_number": frame}).first()
    labels = [sample[field].detections[row].id for row in rows]
    return dataset, choose(dataset, [sample.id], labels)


def decided_labels(name: str) -> list[dict[str, Any]]:
    """Every label that people decided on, with what they decided."""
    dataset = schema.open_dataset(name)
    harvest(dataset)
    compare_files(dataset)
    samples = layout.sample_collection(dataset).find({}).sort("frame_key")
    return [row for sample in samples for row in rows_of(sample)]


def state(name: str) -> list:
    """What people decided, as the dataset shows it."""
    dataset = schema.open_dataset(name)
    found = layout.sample_collection(dataset).find({}).sort("frame_key")
    return [
        (
            one["frame_key"], one["review_status"],
            [(d["_id"], d["decision"], d.get("mask"), d["model"])
             for d in one["detections"]["detections"]],
            sorted(
                json.dumps({k: str(v) for k, v in d.items()}, sort_keys=True)
                for d in one["reviewed"]["detections"]
            ),
            [(e["action"], e["by"], e["at"]) for e in documents.log_of(one)],
        )
        for one in found
    ]  # fmt: skip


def decide_everything(name: str) -> None:
    accept(*pick(name, 0, 0, 1))
    reject(*pick(name, 0, 2))
    fix_class(*pick(name, 1, 0), "tram")
    merge(*pick(name, 1, 1, 2))
    delete(*pick(name, 1, 3))
    fix_class(*pick(name, 0, 1, field="reviewed"), "bus")
    mark_sequence(schema.open_dataset(name), "drive")


def follow_here(name: str, frame: int = 3) -> None:
    """Give two labels of a frame the mask of a square, as following their object does."""
    dataset, (chosen,) = pick(name, frame, 1, 2)
    square = np.zeros(SIZE_HW, np.uint8, order="F")
    square[10:30, 20:40] = 1
    rle = coco_mask.encode(square)["counts"].decode("ascii")
    overrides = {
        str(label["_id"]): {
            "id": str(label["_id"]), "label": label["label"], "size_hw": list(SIZE_HW),
            "box_xyxy_px": [20.0, 10.0, 40.0, 30.0], "rle": rle, "area_px": 400,
            "model": stamp_text(OTHER_STAMP.model), "predicted_iou": 0.9, "stability": 0.9,
            "object_score": 5.0, "reason": "", "risk": 0.5, "reasons": [], "source": FOLLOWED,
            "undetected_frames": 1, "object": label["object"], "changed": "mask: followed",
        }
        for _, label in chosen.labels
    }  # fmt: skip
    decide(dataset, [chosen], [chosen.event("follow", overrides=overrides)])


def context(dataset: Any, view: Any, **chosen: Any) -> Any:
    """What the App tells an operator."""
    from fiftyone.operators.executor import ExecutionContext, Executor

    request = {"dataset_name": dataset.name, "view": view._serialize(), **chosen}
    return ExecutionContext(request_params=request, executor=Executor())


SELECTIONS = ("selected", "selected_labels", "current_sample")


def ask(dataset: Any, act: str, view: Any = None, **more: Any) -> dict[str, Any]:
    """What the page gets for an act; `more` are selections and the act's own parameters."""
    from tasks.review.operators import Review

    selected = {key: value for key, value in more.items() if key in SELECTIONS}
    params = {"act": act, **{key: more[key] for key in more.keys() - selected.keys()}}
    return Review().execute(context(dataset, view or dataset.view(), params=params, **selected))


def load_run(
    name: str, out: Path | str, frames: Sequence[LabeledFrame], cameras: Sequence[str] = ()
) -> Any:
    """Store labeled frames as a run does and load them; return the dataset."""
    manifest = store(Path(out), list(frames))
    folder = frames[0].frame.uri.rpartition("/")[0]
    manifest = replace(
        manifest, frames_uri=folder if frames[0].frame.local_path else manifest.frames_uri
    )
    remember_sources([manifest.frames_uri])
    write_manifest(str(out), manifest)
    prepare_dataset(name, cameras, out_uri=str(out))
    load_sequence(name, str(out), manifest)
    return schema.open_dataset(name)
