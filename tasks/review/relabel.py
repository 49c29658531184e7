"""Making labels again that reviewers sent back, with the model that they asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sam2_core.types import AutolabelError, Boxes, Masks, ModelStamp
from tasks.dataset.ids import sample_id
from tasks.dataset.pictures import find_pictures
from tasks.dataset.schema import open_dataset, refuse_other_out, sample_collection
from tasks.masks.model import ModelChoice, Segmenters, choose_model
from tasks.review.events import storage_of
from tasks.review.relabel_requests import RelabelRequest, bring_back, open_requests, read_request
from tasks.types import FrameRef


@dataclass(frozen=True)
class Remade:
    """What became of a request's frames, in order.

    Attributes:
        outcomes: masks, or why there are none.
        stamp: the model that made them, None where it could not be had and all failed.
        error: why not.

    """

    outcomes: tuple[Masks | Exception, ...]
    stamp: ModelStamp | None
    error: AutolabelError | None = None


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
    labels, failures, segmenters = 0, [], Segmenters()
    for request in waiting:
        remade = segment_request(request, segmenters, backend)
        labels += bring_back(request, out_uri, remade.outcomes, remade.stamp)
        failures += [remade.error] if remade.error else []
    if failures:
        raise failures[0]
    return len(waiting), labels


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


def segment_request(
    request: RelabelRequest, segmenters: Segmenters, backend: str = "auto"
) -> Remade:
    """Make the masks of a request again, with the model that it asks for."""
    prompts = request.prompts()
    try:
        choice = choose_model(request.model or _first_model(request), backend)
    except AutolabelError as error:  # the reviewer sees it beside the frames and can ask anew
        return Remade((error,) * len(prompts), None, error)
    return Remade(tuple(_segment(choice, segmenters, prompts)), choice.stamp)


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
        if one.masks is not None:
            yield one.masks
        else:
            yield AutolabelError(one.failure.reason if one.failure else "no masks")
