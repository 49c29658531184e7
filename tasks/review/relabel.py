"""Labels sent back to be made again: requests in storage, results as events.

A request is a small file under `reviews/<dataset>/relabel/`. Whoever labels next (the Prefect
deployment `relabel`, or `autolabel review relabel`) picks it up: it also works without a server.
"""

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from sam2_core.types import AutolabelError, Boxes, Masks, ModelStamp
from tasks.dataset.documents import Values, reviewed_id, sample_id, stamp_text
from tasks.dataset.layout import sample_collection
from tasks.dataset.recorded_frames import find_pictures
from tasks.dataset.schema import MACHINE_FIELD, open_dataset, refuse_other_out
from tasks.masks.model import ModelChoice, Segmenters, choose_model
from tasks.review.actions import Chosen
from tasks.review.events import RELABEL, Event, now_text, record, reviewer, reviews_uri, storage_of
from tasks.review.stats import recalibration_of
from tasks.risk.compute_risk import Recalibration, compute_risk, recalibrated
from tasks.store import storage
from tasks.store.checksums import decode_json, encode_json
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef

REQUESTED, BACK, FAILED = "requested", "back", "failed"
GROWTH = {"box": 0.0, "wider box": 0.1, "tighter box": -0.1}  # by prompt, of the box's side
DEPLOYMENT = "relabel/relabel"


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

    def boxes(self, growth: float = 0.0) -> Boxes:
        """Return the boxes, each side moved out by a share of the box's own size."""
        xyxy_px = np.array(self.boxes_xyxy_px, np.float32).reshape(-1, 4)
        margin = growth * (xyxy_px[:, 2:] - xyxy_px[:, :2])
        grown = np.hstack([xyxy_px[:, :2] - margin, xyxy_px[:, 2:] + margin])
        limits = [self.size_hw[1], self.size_hw[0]] * 2
        scores = np.ones(len(grown), np.float32)
        return Boxes(grown.clip(0, limits), scores, self.labels, None, "relabel")


@dataclass(frozen=True)
class RelabelRequest:
    """Labels that somebody wants made again.

    Attributes:
        request_id: unique.
        dataset: name of the dataset.
        model: preset or path of a model; "" for the model that made them.
        prompt: one of `GROWTH`.
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
        growth = GROWTH.get(self.prompt, 0.0)
        return [(one.frame(), one.boxes(growth)) for one in self.frames]


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
    if prompt not in GROWTH:
        raise AutolabelError(f"unknown prompt '{prompt}'; known: {', '.join(GROWTH)}")
    frames = {one.frame_key: one for one in map(_relabel_frame, chosen) if one.label_ids}
    if not frames:
        raise AutolabelError("only machine labels can be made again: select some in 'detections'")
    request = RelabelRequest(
        uuid.uuid4().hex[:12], dataset.name, now_text(), reviewer(), model, prompt,
        tuple(frames.values()),
    )  # fmt: skip
    uri = _uri(out_uri, dataset.name, f"{request.request_id}.json")
    storage.write_bytes(uri, encode_json(asdict(request)))
    changes = {"request": request.request_id}
    events = [
        sent_back(one, frames[one.frame_key].label_ids, relabel=REQUESTED, changes=changes)
        for one in chosen
        if one.frame_key in frames
    ]
    record(dataset, events, reversible=False)  # the request stands
    return request


def sent_back(frame: Chosen, label_ids: Sequence[str], **values: Any) -> Event:
    """Start the event that has labels made again; nothing stays of what people made of them."""
    return frame.event(
        "relabel", decisions=dict.fromkeys(label_ids, RELABEL),
        removed=tuple(str(reviewed_id(one)) for one in label_ids), **values,
    )  # fmt: skip


def _relabel_frame(chosen: Chosen) -> RelabelFrame:
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
    names = set(storage.list_names(_uri(out_uri, dataset_name)))
    ids = {one.removesuffix(".json") for one in names if one.endswith(".json")}
    waiting = [one for one in ids if "." not in one and f"{one}.done" not in ids]
    requests = [read_request(out_uri, dataset_name, one) for one in waiting]
    return sorted(requests, key=lambda request: request.at)


def read_request(out_uri: str, dataset_name: str, request_id: str) -> RelabelRequest:
    """Read one request.

    Raises:
        AutolabelError: it is not there or damaged.

    """
    uri = _uri(out_uri, dataset_name, f"{request_id}.json")
    try:
        values = decode_json(storage.read_bytes(uri), storage.redact(uri), sealed=False)
        return TypeAdapter(RelabelRequest).validate_python(values)
    except ValueError as error:
        raise AutolabelError(
            f"{storage.redact(uri)} is not a relabel request: {error!r}"
        ) from error


def waiting_requests(
    dataset_name: str, out_uri: str = "", request_id: str = ""
) -> tuple[str, list[RelabelRequest]]:
    """Return the storage of a dataset and its open requests, or only the one that is named.

    Raises:
        AutolabelError: no such dataset or request, or the dataset belongs to another storage.

    """
    dataset = open_dataset(dataset_name)
    if out_uri:
        advice = "give --out {own}, or none"
        refuse_other_out(sample_collection(dataset).database, dataset_name, out_uri, advice)
    out_uri = out_uri or storage_of(dataset)
    if not out_uri:
        raise AutolabelError(f"dataset '{dataset_name}' knows no storage: give one with --out")
    if request_id:
        read_request(out_uri, dataset_name, request_id)  # says so if there is none
    found = open_requests(out_uri, dataset_name)
    return out_uri, [one for one in found if request_id in {"", one.request_id}]


def relabel_dataset(dataset_name: str, out_uri: str = "", backend: str = "auto") -> tuple[int, int]:
    """Work off the open relabel requests of a dataset; return how many, and labels made again.

    Args:
        dataset_name: the dataset.
        out_uri: the run's storage; by default, and at most, the one that the dataset belongs to.
        backend: what runs the model.

    Raises:
        AutolabelError: no such dataset or model.

    """
    out_uri, waiting = waiting_requests(dataset_name, out_uri)
    segmenters = Segmenters()
    remade = [remake(request, out_uri, segmenters, backend) for request in waiting]
    for _, error in remade:
        if error:
            raise error
    return len(waiting), sum(labels for labels, _ in remade)


def remake(
    request: RelabelRequest, out_uri: str, segmenters: Segmenters, backend: str = "auto"
) -> tuple[int, AutolabelError | None]:
    """Make the labels of a request again, with the model that it asks for, and bring them back.

    Returns:
        How many labels have a new mask, and why none has where the model cannot be had.

    """
    try:
        choice = choose_model(request.model or _first_model(request), backend)
    except AutolabelError as error:  # the reviewer sees it beside the frames and can ask anew
        return bring_back(request, out_uri, [error] * len(request.frames), None), error
    outcomes = list(_segment(choice, segmenters, request.prompts()))
    return bring_back(request, out_uri, outcomes, choice.stamp), None


def _first_model(request: RelabelRequest) -> str:
    """Name of the model that made the labels, as far as the dataset knows."""
    collection = sample_collection(open_dataset(request.dataset))
    sample = collection.find_one({"_id": sample_id(request.frames[0].frame_key)}, {"stamp": 1})
    stamp = ((sample or {}).get("stamp") or {}).get("model") or {}
    # A stamp also names the kind of graphs, as in compact/restructured.
    return str(stamp.get("name") or "auto").partition("/")[0]


def _segment(
    choice: ModelChoice, segmenters: Segmenters, prompts: Iterable[tuple[FrameRef, Boxes]]
) -> Iterator[Masks | Exception]:
    """Make masks of the pictures that were labeled; another one by now is a failure."""
    from tasks.frames.images import read_image
    from tasks.masks.segment import segment_frames

    prompts = list(prompts)
    pictures = find_pictures([frame for frame, _ in prompts])
    brought = [
        (replace(frame, local_path=pictures.paths.get(frame.uri, "")), boxes)
        for frame, boxes in prompts
        if frame.uri not in pictures.changed
    ]
    made = segment_frames(segmenters.load(choice), brought, read_image)
    for frame, _ in prompts:
        if frame.uri in pictures.changed:
            yield AutolabelError("the picture has changed since it was labeled: label it again")
            continue
        one = next(made)
        reason = one.failure.reason if one.failure else "no masks"
        yield AutolabelError(reason) if one.masks is None else one.masks


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
        values: Values = {"relabel": BACK, "changes": {"request": request.request_id}}
        if isinstance(outcome, Exception):
            values["relabel"] = FAILED
            values["changes"]["failed"] = str(outcome)
        else:
            made += len(one.label_ids)
            values["model"] = stamp_text(stamp)
            labeled = LabeledFrame(one.frame(), one.boxes(), outcome)
            values["overrides"] = overrides_of(
                labeled, one.label_ids, stamp_text(stamp), recalibration
            )
        frame = {
            "sequence_id": one.sequence_id, "camera": one.camera, "frame_number": one.index,
            "frame_uri": one.uri, "frame_etag": one.etag,
        }  # fmt: skip
        undecided = dict.fromkeys(one.label_ids, "")
        events.append(
            Event(one.frame_key, "relabeled", request.by, frame=frame, decisions=undecided,
                  **values)
        )  # fmt: skip
    record(dataset, events, reversible=False)
    done = {"at": now_text(), "made": made, "frames": len(request.frames)}
    uri = _uri(out_uri, request.dataset, f"{request.request_id}.done.json")
    storage.write_bytes(uri, encode_json(done))
    return made


def overrides_of(
    labeled: LabeledFrame, label_ids: Sequence[str], model: str, recalibration: Recalibration
) -> dict[str, Values]:
    """Describe new masks of a frame by label id, their risk included."""
    judgement = recalibrated(compute_risk([labeled])[0], recalibration)
    boxes, masks = labeled.boxes, labeled.masks
    assert masks is not None  # noqa: S101
    return {
        label_id: {
            "id": label_id, "label": boxes.labels[row], "size_hw": list(masks.size_hw),
            "box_xyxy_px": boxes.xyxy_px[row].tolist(), "rle": masks.rle[row].decode("ascii"),
            "area_px": int(masks.area_px[row]), "model": model,
            "predicted_iou": float(masks.predicted_iou[row]),
            "stability": float(masks.stability[row]),
            "object_score": float(masks.object_score[row]), "reason": masks.reasons[row],
            "risk": float(judgement.risk[row]), "reasons": list(judgement.reasons[row]),
        }
        for row, label_id in enumerate(label_ids)
    }  # fmt: skip


def _uri(out_uri: str, dataset_name: str, *name: str) -> str:
    return storage.join(reviews_uri(out_uri, dataset_name), "relabel", *name)


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
