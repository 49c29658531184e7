"""Making labels again that reviewers sent back, with the model that they asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset.ids import sample_id
from tasks.dataset.pictures import find_pictures
from tasks.dataset.schema import open_dataset, sample_collection
from tasks.masks.model import ModelChoice, choose_model, warm_segmenter
from tasks.review.events import storage_of
from tasks.review.relabel_requests import RelabelRequest, open_requests, read_request, run_request
from tasks.types import FrameRef


@dataclass(frozen=True)
class RelabelReport:
    """What was made again."""

    requests: int
    labels: int


def relabel_dataset(
    dataset_name: str, out_uri: str = "", request_id: str = "", backend: str = "auto"
) -> RelabelReport:
    """Work off the open relabel requests of a dataset, or a single one.

    Args:
        dataset_name: the dataset.
        out_uri: the run's storage; by default the one that the dataset's labels came from.
        request_id: only this request; one that is done already is not done again.
        backend: what runs the model.

    Raises:
        AutolabelError: no such dataset, request or model.

    """
    out_uri = out_uri or storage_of(open_dataset(dataset_name))
    if not out_uri:
        raise AutolabelError(f"dataset '{dataset_name}' knows no storage: give one with --out")
    if request_id:
        read_request(out_uri, dataset_name, request_id)  # says so if there is none
    waiting = [
        one for one in open_requests(out_uri, dataset_name) if request_id in {"", one.request_id}
    ]
    labels, failures = 0, []
    for request in waiting:
        try:
            choice = choose_model(request.model or _first_model(request), backend)
        except AutolabelError as error:  # the reviewer sees it beside the frames and can ask anew
            failures.append(error)
            run_request(request, out_uri, partial(_all_failed, error), None)
            continue
        labels += run_request(request, out_uri, partial(_segment, choice), choice.stamp)
    if failures:
        raise failures[0]
    return RelabelReport(len(waiting), labels)


def _all_failed(
    error: AutolabelError, prompts: Iterable[tuple[FrameRef, Boxes]]
) -> Iterator[Masks | Exception]:
    for _ in prompts:
        yield error


def _first_model(request: RelabelRequest) -> str:
    """Name of the model that made the labels, as far as the dataset knows."""
    collection = sample_collection(open_dataset(request.dataset))
    sample = collection.find_one({"_id": sample_id(request.frames[0].frame_key)}, {"stamp": 1})
    stamp = ((sample or {}).get("stamp") or {}).get("model") or {}
    # A stamp also names the kind of graphs, as in compact/restructured.
    return str(stamp.get("name") or "auto").partition("/")[0]


def _segment(
    choice: ModelChoice, prompts: Iterable[tuple[FrameRef, Boxes]]
) -> Iterator[Masks | Exception]:
    """Make masks of the pictures that were labeled; another one by now is a failure."""
    from tasks.frames.images import read_image
    from tasks.masks.segment import segment_frames

    prompts = list(prompts)
    pictures = find_pictures([frame for frame, _ in prompts], fetch=True)
    brought = [
        (replace(frame, local_path=pictures.paths.get(frame.uri, "")), boxes)
        for frame, boxes in prompts
        if frame.uri not in pictures.changed
    ]
    made = segment_frames(warm_segmenter(choice), brought, read_image)
    for frame, _ in prompts:
        if frame.uri in pictures.changed:
            yield AutolabelError("the picture has changed since it was labeled: label it again")
            continue
        one = next(made)
        if one.masks is not None:
            yield one.masks
        else:
            yield AutolabelError(one.failure.reason if one.failure else "no masks")
