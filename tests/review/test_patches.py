"""Deciding in views where every tile is one label: FiftyOne's own, and the queue's."""

from typing import Any

import pytest

from tasks.dataset import schema
from tasks.review.actions import accept, reject
from tasks.review.queue import everything
from tests.review.reviewed import pick


def context(dataset: Any, view: Any, **chosen: Any) -> Any:
    """What the App tells an operator."""
    from fiftyone.operators.executor import ExecutionContext, Executor

    request = {"dataset_name": dataset.name, "view": view._serialize(), **chosen}
    return ExecutionContext(request_params=request, executor=Executor())


@pytest.mark.parametrize("way", ["tiles", "open", "labels"])
def test_operators_act_on_patches_as_on_frames(name: str, way: str) -> None:
    from tasks.review.selection import chosen_labels

    dataset = schema.open_dataset(name)
    patches = everything(dataset).to_patches("detections")
    first, second = patches.limit(2)
    assert first.sample_id != first.id
    chosen: dict[str, Any] = {
        "tiles": {"selected": [first.id, second.id]},
        "open": {"current_sample": second.id, "selected": [first.id]},
        "labels": {
            "selected_labels": [
                {"sample_id": first.id, "label_id": first.detections.id, "field": "detections"},
                {"sample_id": second.sample_id, "label_id": second.id, "field": "detections"},
            ]
        },
    }[way]
    found = chosen_labels(context(dataset, patches, **chosen))
    wanted = {second.id} if way == "open" else {first.id, second.id}
    assert {str(label["_id"]) for frame in found for _, label in frame.labels} == wanted
    accept(dataset, found)
    source = dataset[second.sample_id]
    assert [d.decision for d in source.detections.detections if d.id == second.id] == ["accepted"]
    patches = everything(dataset).to_patches("reviewed")
    (tile,) = [one for one in patches if second.id in one.reviewed.sources]
    reject(dataset, chosen_labels(context(dataset, patches, selected=[tile.id])))
    source.reload()
    assert [d.decision for d in source.detections.detections if d.id == second.id] == ["rejected"]


def test_a_sequence_is_done_from_one_of_its_patches(name: str) -> None:
    from tasks.review.operators import SequenceDone
    from tasks.review.selection import UnconfirmedError

    dataset = schema.open_dataset(name)
    patches = everything(dataset).to_patches("detections")
    tile = patches.first().id
    with pytest.raises(UnconfirmedError, match="all frames of drive"):
        SequenceDone().act(context(dataset, patches, current_sample=tile))
    agreed = context(dataset, patches, current_sample=tile, params={"confirmed": True})
    assert SequenceDone().act(agreed).text == "drive: 4 frames marked as done"


def test_more_labels_than_one_that_nobody_selected_are_asked_about(name: str) -> None:
    from tasks.review.operators import Accept
    from tasks.review.selection import UnconfirmedError, chosen_labels

    dataset = schema.open_dataset(name)
    sample = dataset.first()
    opened = {"current_sample": sample.id}
    with pytest.raises(UnconfirmedError, match="5 labels on 1 frame"):
        chosen_labels(context(dataset, dataset.view(), **opened))
    asked = context(dataset, dataset.view(), **opened)
    assert not Accept().execute(asked)["ok"]
    (question,) = asked.executor.to_json()["requests"]
    assert question["operator_uri"] == "sam2-autolabel/confirm"
    assert question["params"]["operator"] == "accept"
    focus = {"sample_id": sample.id, "label_id": sample.detections.detections[3].id}
    on_focus = context(dataset, dataset.view(), **opened, params={"focus": focus})
    assert Accept().execute(on_focus)["message"] == "accepted 1 label"
    sample.reload()
    assert [one.decision for one in sample.detections.detections] == ["", "", "", "accepted", ""]
    assert Accept().execute(context(dataset, dataset.view(), **opened, params={"confirmed": True}))[
        "ok"
    ]
    sample.reload()
    assert {one.decision for one in sample.detections.detections} == {"accepted"}


def test_patches_that_are_open_elsewhere_show_decisions_at_once(name: str) -> None:
    dataset = schema.open_dataset(name)
    patches = everything(dataset).to_patches("detections")
    accept(*pick(name, 0, 0, 1))
    reject(*pick(name, 0, 1))
    shown = dict(zip(patches.values("id"), patches.values("detections.decision"), strict=True))
    frames = dataset.values(["detections.detections.id", "detections.detections.decision"])
    stored = {
        label: decision
        for labels, decisions in zip(*frames, strict=True)
        for label, decision in zip(labels, decisions, strict=True)
    }
    assert shown == stored
    assert sorted(shown.values())[-2:] == ["accepted", "rejected"]
