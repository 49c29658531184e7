"""What tests of reviewing do to a dataset, and what they look at."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from sam2_core.types import Masks
from tasks.dataset import documents, layout, schema
from tasks.load.into_fiftyone import load_sequence, prepare_dataset
from tasks.review.actions import accept, choose, delete, fix_class, mark_sequence, merge, reject
from tasks.review.decided import rows_of
from tasks.review.relabel import bring_back, open_requests, request_relabel
from tasks.review.set_aside import compare_files, harvest
from tasks.store.manifests import write_manifest
from tasks.store.tables import LabeledFrame
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
            one["frame_key"], one["review_status"], one["relabel"],
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


def relabel(name: str, out: Path, frame: int = 3) -> None:
    """Ask for two labels of a frame again and make squares of them."""
    dataset, chosen = pick(name, frame, 1, 2)
    request = request_relabel(dataset, chosen, model="tiny", prompt="wider box")
    assert [one.request_id for one in open_requests(str(out), name)] == [request.request_id]
    square = np.zeros(SIZE_HW, np.uint8, order="F")
    square[10:30, 20:40] = 1
    rle = coco_mask.encode(square)["counts"]

    assert [len(boxes) for _, boxes in request.prompts()] == [2]
    made = Masks((rle,) * 2, SIZE_HW, [0.9] * 2, [0.9] * 2, [5] * 2, [400] * 2, ("",) * 2)
    assert bring_back(request, str(out), [made], OTHER_STAMP.model) == 2
    assert open_requests(str(out), name) == []


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
    write_manifest(str(out), manifest)
    prepare_dataset(name, cameras, out_uri=str(out))
    load_sequence(name, str(out), manifest)
    return schema.open_dataset(name)
