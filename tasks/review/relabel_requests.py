"""Labels sent back to be made again: requests in storage, results as events.

A request is a small file under `reviews/<dataset>/relabel/`. Whoever labels next (the Prefect
deployment `relabel`, or `autolabel review relabel`) picks it up: it also works without a server.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from sam2_core.types import AutolabelError, Boxes, Masks, ModelStamp
from tasks.dataset.documents import stamp_text
from tasks.dataset.reviewed_instances import reviewed_id
from tasks.dataset.schema import MACHINE_FIELD, open_dataset
from tasks.review.actions import Chosen
from tasks.review.calibrate import recalibration_of
from tasks.review.events import RELABEL, Event, now_text, record, reviewer, reviews_uri, storage_of
from tasks.risk.compute_risk import Judgement, compute_risk, recalibrated
from tasks.store import storage
from tasks.store.checksums import decode_json, encode_json
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef

REQUESTED, RUNNING, BACK, FAILED = "requested", "running", "back", "failed"
PROMPTS = ("box", "wider box", "tighter box")
_GROWTH = {"box": 0.0, "wider box": 0.1, "tighter box": -0.1}


@dataclass(frozen=True)
class RelabelFrame:
    """Labels of one frame to be made again; row i of everything is one label."""

    frame_key: str
    sequence_id: str
    camera: str
    index: int
    uri: str
    local_path: str
    size_hw: tuple[int, int]
    label_ids: tuple[str, ...]
    labels: tuple[str, ...]
    boxes_xyxy_px: tuple[tuple[float, ...], ...]
    etag: str = ""

    def frame(self) -> FrameRef:
        """Return the image."""
        return FrameRef(self.sequence_id, self.camera, self.index, None, self.uri, self.size_hw,
                        self.etag, local_path=self.local_path)  # fmt: skip

    def event(self, **values: Any) -> Event:
        """Start the event that brings its labels back."""
        described = {
            "sequence_id": self.sequence_id, "camera": self.camera, "frame_number": self.index,
            "frame_uri": self.uri, "frame_etag": self.etag,
        }  # fmt: skip
        return Event(self.frame_key, "relabeled", frame=described, **values)


@dataclass(frozen=True)
class RelabelRequest:
    """Labels that somebody wants made again.

    Attributes:
        request_id: unique.
        dataset: name of the dataset.
        model: preset or path of a model; "" for the model that made them.
        prompt: one of `PROMPTS`.
        frames: the labels, frame by frame.

    """

    request_id: str
    dataset: str
    at: str
    by: str
    model: str
    prompt: str
    frames: tuple[RelabelFrame, ...]

    def prompts(self) -> list[tuple[FrameRef, Boxes]]:
        """Return frames and boxes, grown or shrunk as asked for."""
        growth = _GROWTH.get(self.prompt, 0.0)
        result = []
        for one in self.frames:
            boxes = np.array(one.boxes_xyxy_px, np.float32).reshape(-1, 4)
            margin = (boxes[:, 2:] - boxes[:, :2]) * growth
            limits = np.array([one.size_hw[1], one.size_hw[0]] * 2)
            grown = np.concatenate([boxes[:, :2] - margin, boxes[:, 2:] + margin], axis=1)
            ones = np.ones(len(boxes), np.float32)
            prompts = Boxes(grown.clip(0, limits), ones, one.labels, None, "relabel")
            result.append((one.frame(), prompts))
        return result


def request_relabel(
    dataset: Any, chosen: Sequence[Chosen], model: str = "", prompt: str = "box"
) -> RelabelRequest:
    """Ask for labels to be made again.

    Raises:
        AutolabelError: no machine label is among them, or the dataset knows no storage.

    """
    out_uri = storage_of(dataset)
    if not out_uri:
        raise AutolabelError("this dataset knows no storage to put a request: load it from a run")
    if prompt not in PROMPTS:
        raise AutolabelError(f"unknown prompt '{prompt}'; known: {', '.join(PROMPTS)}")
    frames = tuple(one for one in (_frame(frame) for frame in chosen) if one.label_ids)
    if not frames:
        raise AutolabelError("only machine labels can be made again: select some in 'detections'")
    request = RelabelRequest(
        uuid.uuid4().hex[:12], dataset.name, now_text(), reviewer(), model, prompt, frames
    )
    uri = _uri(out_uri, dataset.name, request.request_id, "json")
    storage.write_bytes(uri, encode_json(asdict(request)))
    by_key = {one.frame_key: one for one in frames}
    changes = {"request": request.request_id}
    events = [
        sent_back(one, by_key[one.frame_key].label_ids, relabel=REQUESTED, changes=changes)
        for one in chosen
        if one.frame_key in by_key
    ]
    record(dataset, events, reversible=False)  # the request stands
    return request


def sent_back(frame: Chosen, label_ids: Sequence[str], **values: Any) -> Event:
    """Start the event that has labels made again; nothing stays of what people made of them."""
    return frame.event(
        "relabel", decisions=dict.fromkeys(label_ids, RELABEL),
        removed=tuple(str(reviewed_id(one)) for one in label_ids), **values,
    )  # fmt: skip


def _frame(chosen: Chosen) -> RelabelFrame:
    rows = [label for field, label in chosen.labels if field == MACHINE_FIELD]
    frame = chosen.frame
    return RelabelFrame(
        chosen.frame_key, frame["sequence_id"], frame["camera"], frame["frame_number"],
        frame["frame_uri"], chosen.filepath, chosen.size_hw,
        tuple(str(row["_id"]) for row in rows), tuple(row["label"] for row in rows),
        tuple(tuple(row["box_xyxy_px"]) for row in rows), frame.get("frame_etag") or "",
    )  # fmt: skip


def open_requests(out_uri: str, dataset_name: str) -> list[RelabelRequest]:
    """Read the requests of a dataset that nobody has finished yet, oldest first."""
    folder = storage.join(reviews_uri(out_uri, dataset_name), "relabel")
    names = set(storage.list_names(folder))
    requests = [
        read_request(out_uri, dataset_name, name.removesuffix(".json"))
        for name in sorted(names)
        if name.endswith(".json") and not name.endswith(".done.json")
        and name.replace(".json", ".done.json") not in names and not name.startswith(".")
    ]  # fmt: skip
    return sorted(requests, key=lambda request: request.at)


def read_request(out_uri: str, dataset_name: str, request_id: str) -> RelabelRequest:
    """Read one request.

    Raises:
        AutolabelError: it is not there or damaged.

    """
    uri = _uri(out_uri, dataset_name, request_id, "json")
    try:
        values = decode_json(storage.read_bytes(uri), storage.redact(uri), sealed=False)
        return TypeAdapter(RelabelRequest).validate_python(values)
    except ValueError as error:
        raise AutolabelError(
            f"{storage.redact(uri)} is not a relabel request: {error!r}"
        ) from error


def bring_back(
    request: RelabelRequest,
    out_uri: str,
    outcomes: Sequence[Masks | Exception],
    stamp: ModelStamp | None,
) -> int:
    """Bring the new masks of a request into the dataset; return how many labels have one.

    Args:
        request: what was asked for.
        out_uri: the run's storage.
        outcomes: masks of `request.prompts()`, in order; an exception marks that frame as failed.
        stamp: the model that made them; None when it could not be had and all failed.

    """
    dataset = open_dataset(request.dataset)
    events, made, recalibration = [], 0, recalibration_of(dataset)
    for one, outcome in zip(request.frames, outcomes, strict=True):
        if isinstance(outcome, Exception):
            decisions = dict.fromkeys(one.label_ids, "")
            changes = {"request": request.request_id, "failed": str(outcome)}
            events.append(
                one.event(by=request.by, relabel=FAILED, decisions=decisions, changes=changes)
            )
            continue
        made += len(one.label_ids)
        judgement = recalibrated(_judged(one, outcome), recalibration)
        events.append(_result(request, one, outcome, judgement, stamp))
    record(dataset, events, reversible=False)
    done = {"at": now_text(), "made": made, "frames": len(request.frames)}
    uri = _uri(out_uri, request.dataset, request.request_id, "done.json")
    storage.write_bytes(uri, encode_json(done))
    return made


def _result(
    request: RelabelRequest,
    one: RelabelFrame,
    masks: Masks,
    judgement: Judgement,
    stamp: ModelStamp | None,
) -> Event:
    overrides = {
        label_id: {
            "id": label_id, "label": one.labels[row], "size_hw": list(masks.size_hw),
            "box_xyxy_px": list(one.boxes_xyxy_px[row]), "rle": masks.rle[row].decode("ascii"),
            "area_px": int(masks.area_px[row]), "model": stamp_text(stamp),
            "predicted_iou": float(masks.predicted_iou[row]),
            "stability": float(masks.stability[row]),
            "object_score": float(masks.object_score[row]), "reason": masks.reasons[row],
            "risk": float(judgement.risk[row]), "reasons": list(judgement.reasons[row]),
        }
        for row, label_id in enumerate(one.label_ids)
    }  # fmt: skip
    return one.event(
        by=request.by, model=stamp_text(stamp), relabel=BACK,
        decisions=dict.fromkeys(one.label_ids, ""), overrides=overrides,
        changes={"request": request.request_id},
    )  # fmt: skip


def _judged(one: RelabelFrame, masks: Masks) -> Judgement:
    ones = np.ones(len(one.labels), np.float32)
    boxes = Boxes(np.array(one.boxes_xyxy_px, np.float32), ones, one.labels, None, "relabel")
    return compute_risk([LabeledFrame(one.frame(), boxes, masks)])[0]


def _uri(out_uri: str, dataset_name: str, request_id: str, ending: str) -> str:
    return storage.join(reviews_uri(out_uri, dataset_name), "relabel", f"{request_id}.{ending}")


DEPLOYMENT = "relabel/relabel"


def submit_relabel(dataset: Any, request: RelabelRequest) -> str:
    """Start the deployment `relabel` for a request; say where it is now.

    Without a server the request waits in storage for `autolabel review relabel`.
    """
    if not os.environ.get("PREFECT_API_URL"):
        return f"it waits for `autolabel review relabel {request.dataset}`"
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    parameters = {
        "dataset": request.dataset, "out": storage_of(dataset), "request_id": request.request_id,
    }  # fmt: skip
    try:
        run: Any = run_deployment(
            DEPLOYMENT, parameters=parameters, timeout=0, as_subflow=False,
            idempotency_key=f"relabel-{request.request_id}",
        )  # fmt: skip
    except ObjectNotFound:
        return f"no deployment {DEPLOYMENT} on the server: it waits in storage"
    except OSError as error:
        return f"the Prefect server does not answer ({error}): it waits in storage"
    return f"flow run {run.name}"
