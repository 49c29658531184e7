"""What the page asks and is told, whatever is selected and whoever else decides meanwhile."""

import multiprocessing
from typing import Any

import pytest

from sam2_core.types import AutolabelError
from tasks.dataset import layout, schema
from tasks.dataset.database import DatabaseAwayError
from tasks.review.actions import accept, choose, delete, fix_class, merge, reject
from tasks.review.events import read_events, reviewer, show_again
from tasks.review.queue import everything
from tests.review.reviewed import ask, context, pick


def labels_of(dataset: Any) -> list[Any]:
    sample = dataset.first()
    sample.reload()
    return list(sample.detections.detections)


def focus_on(dataset: Any, row: int, decision: str = "") -> dict[str, str]:
    label = labels_of(dataset)[row]
    return {"sample_id": dataset.first().id, "label_id": label.id, "decision": decision}


@pytest.mark.parametrize("way", ["tiles", "open", "labels"])
def test_acts_are_about_patches_as_about_frames(name: str, way: str) -> None:
    dataset = schema.open_dataset(name)
    patches = everything(dataset).to_patches("detections")
    first, second = patches.limit(2)
    selected: dict[str, Any] = {
        "tiles": {"selected": [first.id, second.id]},
        "open": {"current_sample": second.id, "selected": [first.id]},
        "labels": {
            "selected_labels": [
                {"sample_id": first.id, "label_id": first.detections.id},
                {"sample_id": second.sample_id, "label_id": second.id},
            ]
        },
    }[way]
    assert ask(dataset, "accept", view=patches, **selected)["ok"]
    wanted = {second.id} if way == "open" else {first.id, second.id}
    assert {one.id for one in labels_of(dataset) if one.decision} == wanted
    merge(*pick(name, 0, 3, 4))
    tiles = [one.id for one in labels_of(dataset)[3:]]
    patches = everything(dataset).to_patches("detections")
    for act in ("fix_class", "accept"):
        assert ask(dataset, act, view=patches, selected=tiles, class_name="tram")["ok"]
    (made,) = (one for one in dataset.first().reviewed.detections if one.sources == sorted(tiles))
    assert (made.label, made.decision) == ("tram", "corrected"), "what they were merged into stays"
    patches = everything(dataset).to_patches("reviewed")
    (tile,) = [one for one in patches if second.id in one.reviewed.sources]
    assert ask(dataset, "reject", view=patches, selected=[tile.id])["ok"]
    (now,) = [one.decision for one in labels_of(dataset) if one.id == second.id]
    assert now == "rejected"


def test_what_nobody_selected_is_asked_about(name: str) -> None:
    dataset = schema.open_dataset(name)
    opened = {"current_sample": dataset.first().id}
    asked = "all 5 undecided labels that the view shows on 1 frame"
    assert asked in ask(dataset, "accept", **opened)["question"]
    done = ask(dataset, "accept", focus=focus_on(dataset, 3), **opened)
    assert done["message"] == "accepted 1 label"
    (change,) = done["samples"].values()
    assert [len(change["labels"][one]) for one in ("detections", "reviewed")] == [1, 1]
    assert [one.decision for one in labels_of(dataset)] == ["", "", "", "accepted", ""]
    told = ask(dataset, "accept", confirmed=True, **opened)["message"]
    assert told == "accepted 4 labels, 0 of them in the queue"
    patches = everything(dataset).to_patches("detections")
    tile = {"view": patches, "current_sample": patches.first().id}
    assert ask(dataset, "sequence_done", **tile)["question"].startswith("all frames of drive")
    done = ask(dataset, "sequence_done", confirmed=True, **tile)
    assert done["message"] == "drive: 4 frames marked as done"
    assert [one["values"]["review_status"] for one in done["samples"].values()] == ["done"] * 4
    assert not any(one["labels"]["detections"] for one in done["samples"].values())


def test_an_undo_leads_to_a_label_that_it_is_about(name: str) -> None:
    from fiftyone import ViewField

    dataset = schema.open_dataset(name)
    opened = {"current_sample": dataset.first().id}
    accept(*pick(name, 0, 0))
    assert ask(dataset, "nothing_here", confirmed=True, **opened)["ok"]
    assert ask(dataset, "undo", **opened)["focus"] == labels_of(dataset)[1].id, "an undecided one"
    reviewed = dataset.first().reviewed.detections[0].id
    delete(*pick(name, 0, 0, field="reviewed"))
    view = everything(dataset).filter_labels("detections", ViewField("decision") == "")
    assert ask(dataset, "undo", view=view, **opened)["focus"] == reviewed, "all that is left of it"


@pytest.mark.parametrize("gone", [False, True])
def test_what_somebody_else_has_done_meanwhile_is_refused_and_shown(name: str, gone: bool) -> None:
    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 1)
    accept(*pick(name, 0, 1))
    if gone:  # another run
        change = {"$set": {"detections.detections": [], "reviewed.detections": []}}
        layout.sample_collection(dataset).update_many({}, change)
    done = ask(dataset, "reject", focus=focus)
    assert not done["ok"]
    assert ("these labels are gone" if gone else "accepted by now") in done["message"]
    (change,) = done["samples"].values()
    assert [one["decision"] for one in change["labels"]["detections"]] == ["accepted"][gone:]
    assert change["gone"] == [focus["label_id"]] * gone
    assert [event["action"] for event in dataset.first().review_log] == ["accept"]


def test_a_database_that_is_away_is_told_in_words(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.review import operators

    def away() -> None:
        raise DatabaseAwayError("the database does not answer")

    monkeypatch.setattr(operators, "await_answer", away)
    done = ask(schema.open_dataset(name), "undo")
    assert done == {"message": "the database does not answer", "ok": False, "away": True}


def test_what_a_killed_database_has_forgotten_is_shown_again(name: str) -> None:
    """As in storage: the label that was accepted in the last moment, undecided in the dataset."""
    dataset = schema.open_dataset(name)
    samples = layout.sample_collection(dataset)
    before = list(samples.find({}))
    accept(*pick(name, 0, 1))
    for sample in before:
        samples.replace_one({"_id": sample["_id"]}, sample)
    for _ in range(2):
        show_again(dataset)
        assert labels_of(dataset)[1].decision == "accepted"
        assert len(dataset.first().review_log) == 1


def decide_with(act: str, name: str, focus: dict[str, str], both: Any) -> dict[str, Any]:
    """Look at a label, wait until the other reviewer has looked as well, and decide."""
    from tasks.review import operators

    look = operators.chosen_labels

    def looked(ctx: Any) -> Any:
        found = look(ctx)
        both.wait(60)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "chosen_labels", looked)
        return ask(schema.open_dataset(name), act, focus=focus)


def in_another_process(told: Any, *about: Any) -> None:
    told.put(decide_with(*about))


@pytest.mark.ci
def test_of_two_processes_that_decide_at_once_one_is_refused(name: str, out: Any) -> None:
    dataset = schema.open_dataset(name)
    focus = focus_on(dataset, 3)
    processes = multiprocessing.get_context("spawn")
    both, told = processes.Barrier(2), processes.Queue()
    other = processes.Process(target=in_another_process, args=(told, "accept", name, focus, both))
    other.start()
    done = [decide_with("delete", name, focus, both), told.get(timeout=60)]
    other.join(60)
    (refused,) = [one["message"] for one in done if not one["ok"]]
    assert f"by now, by {reviewer()}; that is shown" in refused
    labels_of(dataset)
    assert len(dataset.first().review_log) == len(read_events(str(out), name)) == 1


def test_another_decision_is_on_what_the_last_one_made_of_the_label(name: str) -> None:
    """Of a repaired mask, to give it another class takes the repaired one, not the machine's."""
    dataset = schema.open_dataset(name)
    seen = pick(name, 0, 2)[1]
    fix_class(*pick(name, 0, 2), "bus")
    with pytest.raises(AutolabelError, match="corrected by now"):
        reject(dataset, seen)
    repaired = {"$set": {"reviewed.detections.0.model": "clicks"}}
    layout.sample_collection(dataset).update_one({"reviewed.detections.label": "bus"}, repaired)
    focus = focus_on(dataset, 2, "corrected")
    assert ask(dataset, "fix_class", focus=focus, class_name="truck")["ok"]
    (made,) = dataset.first().reviewed.detections
    assert (made.label, made.model, made.sources) == ("truck", "clicks", [focus["label_id"]])
    seen = choose(dataset, [focus["sample_id"]], [made.id])
    reject(*pick(name, 0, 0, field="reviewed"))
    with pytest.raises(AutolabelError, match="gone by now"):
        accept(dataset, seen)


def test_the_page_is_told_what_there_is_to_choose_from(name: str) -> None:
    from tasks.review.operators import Review

    dataset = schema.open_dataset(name)
    assert set(ask(dataset, "classes")["classes"]) >= {one.label for one in labels_of(dataset)}
    ((sequence, text),) = ask(dataset, "sequences")["sequences"]
    assert (sequence, text[:23]) == ("drive", "drive  (4 frames, risk ")
    standing = ask(dataset, "standing")
    paths = [one["paths"][:3] for one in standing["groups"]]
    assert ["reasons", "risk", "review_status"] in paths
    assert f"`autolabel export '{name}' --reviewed" in standing["next"], "how the labels leave"
    assert "Shift+E on a frame of a drive" in standing["next"]
    ctx = context(dataset, dataset.view(), params={"act": "open_sequence", "sequence": "DRI"})
    message = Review().execute(ctx)["message"]
    assert (
        message == "drive: 4 frames; choose 'needs review' at the top left to go back to the queue"
    )
    (request,) = ctx.executor.to_json()["requests"]
    assert request["operator_uri"].endswith("set_view")
    dataset.reload()
    assert dataset.get_saved_view_info("one sequence")["description"] == "drive"
