"""Sent back, made again by a Prefect worker with the bundled model, and back."""

import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from sam2_core.types import Boxes
from tasks.dataset import schema
from tasks.dataset.coco_truth import TruthImage
from tasks.evaluate.evaluate import true_boxes
from tasks.frames.identity import file_version
from tasks.frames.images import read_image
from tasks.load import into_fiftyone as load
from tasks.load.prepare import prepare_dataset
from tasks.masks.model import choose_model, load_segmenter
from tasks.masks.segment import segment_frames
from tasks.review.actions import accept, choose
from tasks.review.events import read_events, reviews_uri
from tasks.review.relabel import request_relabel, submit_relabel
from tasks.store import storage
from tasks.store.artifacts import RunStamp
from tasks.store.manifests import write_manifest
from tasks.types import FrameRef
from tests.examples import DRIVE, example
from tests.integration.cluster import Cluster
from tests.load.test_into_fiftyone import store
from tests.review.app_page import wait_for

SIZE_HW = (720, 1280)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def prefect(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Prefect server with every deployment and a worker, on the tests' own database."""
    shared = {"FIFTYONE_DATABASE_URI": database, "AUTOLABEL_DATABASE_URI": ""}
    (tmp_path / "prefect").mkdir()
    with Cluster(tmp_path / "prefect", **shared) as cluster:
        cluster.start_worker()
        monkeypatch.setenv("PREFECT_API_URL", cluster.api)
        yield cluster


def three_largest(image: TruthImage) -> Boxes:
    """Prompts of objects that are far enough apart to be clicked at."""
    everything = true_boxes(image)
    middles = (everything.xyxy_px[:, :2] + everything.xyxy_px[:, 2:]) / 2
    chosen: list[int] = []
    for row in np.argsort(-image.area_px):
        if all(np.abs(middles[row] - middles[other]).max() > 60 for other in chosen):
            chosen.append(int(row))
    rows = chosen[:3]
    names = tuple(everything.labels[row] for row in rows)
    # The detector was sure of nothing, so all of them are in the queue.
    return Boxes(everything.xyxy_px[rows], np.full(len(rows), 0.3), names)


def relabel_state(name: str) -> str:
    sample = schema.open_dataset(name).first()
    sample.reload()
    return str(sample.relabel)


def iou(first: bytes, second: bytes) -> float:
    size = list(SIZE_HW)
    pair = [[{"counts": one, "size": size}] for one in (first, second)]
    return float(coco_mask.iou(*pair, [0])[0, 0])


def test_sent_back_and_made_again_by_a_worker(
    prefect: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    out, name = str(tmp_path / "out"), f"live {uuid.uuid4().hex[:8]}"
    _, truth = example()
    path = DRIVE / truth.file_name
    size, version = path.stat().st_size, file_version(path) or ""
    ref = FrameRef("drive", "", 0, 1, str(path), SIZE_HW, version, size, str(path))
    prompts = three_largest(truth)
    choice = choose_model("compact", "onnxruntime")
    (labeled,) = segment_frames(load_segmenter(choice), [(ref, prompts)], read_image)
    manifest = store(tmp_path / "out", [labeled], RunStamp("truth", choice.stamp))
    manifest = replace(manifest, frames_uri=str(path.parent))
    write_manifest(out, manifest)
    prepare_dataset(name, out_uri=out)
    load.load_sequence(name, out, manifest)
    before = schema.open_dataset(name).first().detections.detections
    dataset = schema.open_dataset(name)
    accept(dataset, choose(dataset, [dataset.first().id], [before[0].id]))
    chosen = choose(dataset, [dataset.first().id], [before[2].id])
    request = request_relabel(dataset, chosen, prompt="wider box")
    assert submit_relabel(dataset, request).startswith("flow run ")
    wait_for(lambda: relabel_state(name), "back", 240)
    made = read_events(out, name)[-1]
    assert [event.action for event in read_events(out, name)] == [
        "accept", "relabel", "relabeled",
    ]  # fmt: skip
    label_id = before[2].id
    override = made.overrides[label_id]
    wide = [(ref, boxes) for _, boxes in request.prompts()]
    (again,) = segment_frames(load_segmenter(choice), wide, read_image)
    assert iou(override["rle"].encode(), again.masks.rle[0]) > 0.999, "the bundled model's work"
    assert iou(override["rle"].encode(), labeled.masks.rle[2]) < 1, "from another prompt"
    sample = schema.open_dataset(name).first()
    assert [d.decision for d in sample.detections.detections] == ["accepted", "", ""]
    assert sample.detections.detections[2].mask.sum() == override["area_px"]
    assert [d.id for d in sample.detections.detections] == [d.id for d in before]
    assert [d.label for d in sample.reviewed.detections] == [prompts.labels[0]]
    done = storage.join(reviews_uri(out, name), "relabel", f"{request.request_id}.done.json")
    assert b'"made": 1' in storage.read_bytes(done)
    runs = prefect.post("flow_runs/filter", {"flows": {"name": {"any_": ["relabel"]}}})
    assert [run["parameters"]["request_id"] for run in runs] == [request.request_id]
    assert ended_as(prefect, runs[0]["id"]) == "COMPLETED"


def ended_as(prefect: Cluster, run_id: str) -> str:
    for _ in range(60):
        state = prefect.get(f"flow_runs/{run_id}")["state_type"]
        if state not in {"RUNNING", "PENDING"}:
            return str(state)
        time.sleep(0.5)
    return "still running"
