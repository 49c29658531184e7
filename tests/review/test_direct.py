"""A page that has drawn a decision already asks directly: it is told what is stored."""

import multiprocessing

import pytest

from sam2_core.types import AutolabelError
from tasks.dataset import schema
from tasks.dataset.database_access import DatabaseAwayError
from tasks.review.actions import accept, choose, fix_class, reject
from tasks.review.events import read_events, show_again
from tasks.review.selection import chosen_labels
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


def test_fix_the_class_opens_on_the_labels_own(name: str) -> None:
    from tasks.review.operators import FixClass

    dataset = schema.open_dataset(name)
    labels = dataset.first().detections.detections
    for chosen in (labels[1:2], labels):
        selected = [{"sample_id": dataset.first().id, "label_id": one.id} for one in chosen]
        ctx = context(dataset, dataset.view(), selected_labels=selected)
        form = FixClass().resolve_input(ctx).type.properties["class_name"]
        assert form.default == (chosen[0].label if len(chosen) == 1 else None)


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


def test_a_database_that_is_away_is_told_in_words(name: str, monkeypatch) -> None:
    from tasks.review import operators

    dataset = schema.open_dataset(name)

    def away() -> None:
        raise DatabaseAwayError("the database does not answer")

    monkeypatch.setattr(operators, "await_answer", away)
    done = operators.Accept().execute(asked(dataset, focus_on(dataset, 0)))
    assert done == {"message": "the database does not answer", "ok": False, "away": True}


def test_what_a_killed_database_has_forgotten_is_shown_again(name: str) -> None:
    """As in storage: the label that was accepted in the last moment, undecided in the dataset."""
    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 1)
    samples = schema.sample_collection(dataset)
    before = list(samples.find({}))
    accept(dataset, choose(dataset, [focus["sample_id"]], [focus["label_id"]]))
    for sample in before:
        samples.replace_one({"_id": sample["_id"]}, sample)
    for _ in range(2):
        show_again(dataset)
        sample = dataset.first()
        sample.reload()
        assert sample.detections.detections[1].decision == "accepted"
        assert len(sample.review_log) == 1


def decide_with(operator, name, focus, both) -> dict:
    """Look at a label, wait until the other reviewer has looked as well, and decide."""
    from tasks.review import operators

    def looked(ctx):
        found = chosen_labels(ctx)
        both.wait(60)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "chosen_labels", looked)
        return getattr(operators, operator)().execute(asked(schema.open_dataset(name), focus))


def in_another_process(told, *about) -> None:
    told.put(decide_with(*about))


@pytest.mark.ci
def test_of_two_processes_that_decide_at_once_one_is_refused(name: str, out) -> None:
    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 3)
    processes = multiprocessing.get_context("spawn")
    both, told = processes.Barrier(2), processes.Queue()
    other = processes.Process(target=in_another_process, args=(told, "Accept", name, focus, both))
    other.start()
    done = [decide_with("Delete", name, focus, both), told.get(timeout=60)]
    other.join(60)
    refused = [one["message"] for one in done if not one["ok"]]
    assert len(refused) == 1
    assert "by now, by another page or person" in refused[0]
    sample = dataset.first()
    sample.reload()
    assert len(sample.review_log) == len(read_events(str(out), name)) == 1


def test_what_was_made_of_a_label_is_compared_as_well(name: str) -> None:
    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 3)
    accept(dataset, choose(dataset, [focus["sample_id"]], [focus["label_id"]]))
    (reviewed,) = dataset.first().reviewed.detections
    seen = choose(dataset, [focus["sample_id"]], [reviewed.id])
    fix_class(dataset, choose(dataset, [focus["sample_id"]], [reviewed.id]), "bus")
    with pytest.raises(AutolabelError, match="corrected by now"):
        reject(dataset, seen)
    reject(dataset, choose(dataset, [focus["sample_id"]], [reviewed.id]))
    with pytest.raises(AutolabelError, match="gone by now"):
        accept(dataset, seen)


def test_another_decision_is_on_what_the_last_one_made_of_the_label(name: str) -> None:
    """Of a repaired mask, to give it another class takes the repaired one, not the machine's."""
    from tasks.review.operators import FixClass

    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 2)
    fix_class(dataset, choose(dataset, [focus["sample_id"]], [focus["label_id"]]), "bus")
    repaired = {"$set": {"reviewed.detections.0.model": "clicks"}}
    schema.sample_collection(dataset).update_one({"reviewed.detections.label": "bus"}, repaired)
    ctx = asked(dataset, {**focus, "decision": "corrected"})
    ctx.params["class_name"] = "truck"
    assert FixClass().execute(ctx)["ok"]
    sample = dataset.first()
    sample.reload()
    (made,) = sample.reviewed.detections
    assert (made.label, made.model, made.sources) == ("truck", "clicks", [focus["label_id"]])
