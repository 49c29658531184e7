"""A page that has drawn a decision already asks directly: it is told what is stored."""

import pytest

from tasks.dataset import schema
from tasks.review.actions import accept, choose
from tests.review.test_patches import context


def focus_on(dataset, row):
    sample = dataset.first()
    label = sample.detections.detections[row]
    return {"sample_id": sample.id, "label_id": label.id, "decision": ""}


def asked(dataset, focus):
    return context(dataset, dataset.view(), params={"focus": focus, "direct": True})


def told(done, focus):
    """Decision that the page is told of a label; None where the label is gone."""
    change = done["samples"][focus["sample_id"]]
    assert (focus["label_id"] in change["gone"]) == (not change["labels"]["detections"])
    return next((one["decision"] for one in change["labels"]["detections"]), None)


def test_what_is_written_is_the_answer_and_nothing_is_triggered(name: str) -> None:
    from tasks.review.operators import Accept

    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 2)
    ctx = asked(dataset, focus)
    done = Accept().execute(ctx)
    assert done["ok"]
    assert told(done, focus) == "accepted"
    assert len(done["samples"][focus["sample_id"]]["labels"]["reviewed"]) == 1
    assert ctx.executor.to_json()["requests"] == []


@pytest.mark.parametrize("gone", [False, True])
def test_what_somebody_else_has_done_meanwhile_is_refused_and_shown(name: str, gone: bool) -> None:
    from bson import ObjectId

    from tasks.review.operators import Reject

    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 1)
    label = ObjectId(focus["label_id"])
    accept(dataset, choose(dataset, [focus["sample_id"]], [focus["label_id"]]))
    if gone:  # another run
        removed = {"$pull": {"detections.detections": {"_id": label}}}
        kept = {"$set": {"reviewed.detections": []}}
        for change in (removed, kept):
            schema.sample_collection(dataset).update_many({}, change)
    ctx = asked(dataset, focus)
    done = Reject().execute(ctx)
    assert not done["ok"]
    assert ("these labels are gone" if gone else "accepted by now") in done["message"]
    assert told(done, focus) == (None if gone else "accepted")
    assert ctx.executor.to_json()["requests"] == []
    assert [event["action"] for event in dataset.first().review_log] == ["accept"]
