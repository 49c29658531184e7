"""One decision for an object over time, the list of sequences, and what the queue says of both."""

import contextlib
import stat
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from flows.cli import review
from sam2_core.types import AutolabelError
from tasks.dataset import schema
from tasks.dataset.documents import sample_id
from tasks.load.into_fiftyone import prepare_dataset
from tasks.review import app
from tasks.review.actions import accept, choose, fix_class, mark_sequence, reject
from tasks.review.events import undo
from tasks.review.queue import (
    LABEL_BY_LABEL,
    NEEDS_REVIEW,
    Queue,
    Share,
    asks_for_more,
    build_queue,
    decided_objects,
    list_sequences,
    queue_standing,
    sequence_view,
    spread,
)
from tasks.wording import counted
from tests.review.labels import STAMP, labeled_frame, load_frames
from tests.review.reviewed import ask

FRAMES, OBJECTS = 6, 3


@pytest.fixture
def still(database: str, tmp_path: Path) -> str:
    """A dataset of six frames in which nothing moves: three objects."""
    name = f"still {uuid.uuid4().hex[:8]}"
    prepare_dataset(name, out_uri=str(tmp_path))
    first = labeled_frame(0, OBJECTS)
    frames = [replace(first, frame=labeled_frame(i, 1).frame) for i in range(FRAMES)]
    load_frames(name, frames, STAMP)
    return name


def decisions(name: str) -> list[list[str]]:
    frames = schema.open_dataset(name).sort_by("frame_number")
    frames.reload()
    return [sorted(row) for row in frames.values("detections.detections.decision")]


def picked(dataset: object, row: int) -> list:
    """The queue's own label of an object."""
    tile = dataset.load_saved_view(LABEL_BY_LABEL).skip(row).first()
    return choose(dataset, [tile.sample_id], [tile.id])


def again(dataset: object, chosen: list) -> list:
    """The same labels as they are now."""
    ids = [str(label["_id"]) for frame in chosen for _, label in frame.labels]
    return choose(dataset, dataset.values("id"), ids)


def test_one_decision_is_spread_to_all_frames_of_its_object(still: str) -> None:
    dataset = schema.open_dataset(still)
    queue = build_queue(dataset, 50)
    assert queue.decisions == OBJECTS
    assert queue.text().startswith("3 decisions on ")
    chosen = picked(dataset, 0)
    with pytest.raises(AutolabelError, match="decide on a label first"):
        spread(dataset, chosen)
    reject(dataset, chosen)
    assert sum(row == ["", "", "rejected"] for row in decisions(still)) == 1
    assert build_queue(dataset, 50).decisions == OBJECTS - 1, "the object is decided on"
    events = spread(dataset, again(dataset, chosen))
    assert len(events) == FRAMES - 1
    assert decisions(still) == [["", "", "rejected"]] * FRAMES
    with pytest.raises(AutolabelError, match="no other label"):
        spread(dataset, again(dataset, chosen))

    tram = picked(dataset, 0)
    fix_class(dataset, tram, "tram")
    spread(dataset, again(dataset, tram))
    assert decisions(still) == [["", "corrected", "rejected"]] * FRAMES
    reviewed = schema.open_dataset(still).values("reviewed.detections.label", unwind=True)
    assert reviewed == ["tram"] * FRAMES
    assert len(decided_objects(dataset)) == 2
    undo(dataset)
    assert sorted(decisions(still)) == [["", "", "rejected"]] * 5 + [["", "corrected", "rejected"]]


def test_the_key_spreads_what_is_selected_and_else_the_last_decision(still: str) -> None:
    dataset = schema.open_dataset(still)
    build_queue(dataset, 50)
    tiles = dataset.load_saved_view(LABEL_BY_LABEL)
    assert "decide on a label first" in ask(dataset, "spread", tiles)["message"]
    first, second = picked(dataset, 0), picked(dataset, 1)
    opened = {"current_sample": dataset.first().id}
    assert "rejected" not in ask(dataset, "sequence_done", **opened)["question"]
    tile = {"view": tiles, "current_sample": tiles.first().id}
    left = f"Shift+O: {FRAMES - 1} more of the same object"
    assert ask(dataset, "reject", **tile)["left"] == left
    asked = ask(dataset, "sequence_done", **opened)["question"]
    assert f"also {FRAMES - 1} labels that were followed and not seen, or of objects" in asked
    undo(dataset)
    assert ask(dataset, "fix_class", class_name="tram", **tile)["left"] == left
    undo(dataset)
    assert ask(dataset, "accept", **tile)["left"] == left
    undo(dataset)
    reject(dataset, first)
    accept(dataset, second)
    told = ask(dataset, "spread", tiles)["message"]
    assert told == f"the whole object: {FRAMES - 1} more labels on {FRAMES - 1} frames"
    assert sum("accepted" in row for row in decisions(still)) == FRAMES
    ((frame, (_, label)),) = [(one, one.labels[0]) for one in first]
    chosen = [{"sample_id": str(sample_id(frame.frame_key)), "label_id": str(label["_id"])}]
    ask(dataset, "spread", tiles, selected_labels=chosen)
    assert decisions(still) == [["", "accepted", "rejected"]] * FRAMES


def test_a_spread_of_several_decisions_is_one_act(still: str) -> None:
    dataset = schema.open_dataset(still)
    build_queue(dataset, 50)
    queued = [picked(dataset, row) for row in range(OBJECTS)]
    for how, chosen in zip((reject, accept), queued, strict=False):
        how(dataset, chosen)
    fix_class(dataset, queued[2], "tram")
    before = decisions(still)
    chosen = [
        {"sample_id": str(sample_id(one.frame_key)), "label_id": str(label["_id"])}
        for (one,) in queued
        for _, label in one.labels
    ]
    told = ask(dataset, "spread", selected_labels=chosen)["message"]
    rest = OBJECTS * (FRAMES - 1)
    assert told == f"the whole object: {rest} more labels on {FRAMES - 1} frames"
    last = ask(dataset, "standing")["last"]
    assert last.partition(": ")[2] == f"{rest} labels on {FRAMES - 1} frames"
    assert set(last.partition(": ")[0].split(", ")) == {"rejected", "accepted", "class corrected"}
    done = decisions(still)
    assert done == [["accepted", "corrected", "rejected"]] * FRAMES
    for act, wanted in (("undo", before), ("redo", done)):
        assert ask(dataset, act)["ok"]
        assert decisions(still) == wanted
    assert ask(dataset, "standing")["last"] == last


def test_a_queue_that_has_nothing_more_to_ask_says_that_all_is_decided(still: str) -> None:
    dataset = schema.open_dataset(still)
    build_queue(dataset, 1)
    more, done = "'Order again'", "Shift+E"
    accept(dataset, picked(dataset, 0))
    assert asks_for_more(dataset, Share())
    build_queue(dataset, 50)
    for _ in range(OBJECTS - 1):
        accept(dataset, picked(dataset, 0))  # decided ones leave the view
    asked = queue_standing(dataset).label_ids
    assert ask(dataset, "refresh_queue")["message"].startswith("nothing more to ask: every object")
    dataset.reload()
    standing = queue_standing(dataset)
    assert (standing.label_ids, standing.left) == (asked, 0), "its progress is kept"
    told = ask(dataset, "standing")["next"]
    assert told.startswith("nothing more to ask: every object (track) has a decision")
    assert (more in told, done in told) == (False, True)
    mark_sequence(dataset, dataset.first().sequence_id)
    told = ask(dataset, "standing")["next"]
    assert (more in told, done in told, "autolabel export" in told) == (False, False, True)


def test_that_nothing_is_in_a_frame_says_nothing_of_its_objects_elsewhere(still: str) -> None:
    dataset = schema.open_dataset(still)
    assert build_queue(dataset, 9).decisions == OBJECTS
    frame = dataset.first().id
    assert ask(dataset, "nothing_here", current_sample=frame, confirmed=True)["ok"]
    queue = build_queue(dataset, 9)
    assert queue.decisions == OBJECTS
    assert "not for whole objects" in ask(dataset, "spread")["message"]


def test_review_opens_at_the_queue_and_says_its_counts_and_port(
    still: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With an App that is killed at once, at the port after the usual one, beside a server of up.

    The address signs a browser in: it lies in a file of the user's own, and in no log.
    """
    services_folder = tmp_path / "services"
    services_folder.mkdir()
    links: list[str] = []

    def pages() -> list[Path]:
        return list(services_folder.glob("review-*.html"))

    def killed() -> int:
        (page,) = pages()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        links.append(page.read_text())
        return -9

    process = SimpleNamespace(poll=killed, returncode=-9)
    server = app.App(f"http://127.0.0.1:{app.DEFAULT_PORT + 1}", process, "secret")
    monkeypatch.setattr(review, "run_app", lambda _: contextlib.nullcontext(server))
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    done = CliRunner().invoke(review.command, [still, "--budget", "2"])
    assert "the App was killed by signal 9" in str(done.exception)
    view = schema.open_dataset(still).load_saved_view(NEEDS_REVIEW)
    assert f"2 decisions on {counted(len(view), 'frame')}, one label of each object" in done.output
    assert f"{FRAMES} frames in all" in done.output
    assert f"port {app.DEFAULT_PORT} is taken: {app.DEFAULT_PORT + 1} is used" in done.output
    assert "in the view 'control sample'" in done.output
    second = Share.parse("2/3")
    told = " ".join(review._advice(schema.open_dataset(still), second, Queue(1, 1, 0.5, 0)))
    assert "on 10% of the frames of share 1/3 (--double 0.1)" in told
    assert "'second opinions 2 of 3'" in told
    assert "control sample" not in told
    (link,) = links
    assert f"review-{app.DEFAULT_PORT + 1}.html" in done.stdout
    assert "secret" not in done.output
    assert "?view=needs-review&" in link.replace("&amp;", "&")
    assert not pages(), "the App has ended"


def test_sequences_are_a_list_that_can_be_searched(still: str) -> None:
    dataset = schema.open_dataset(still)
    other = [labeled_frame(i, 2, sequence_id="Depot_7", seed=3) for i in range(2)]
    load_frames(still, other, STAMP)
    listed = list_sequences(dataset)
    assert set(listed) == {"drive", "Depot_7"}
    assert listed["drive"].startswith(f"drive  ({FRAMES} frames, risk ")
    assert listed["drive"].endswith("%)")
    assert sequence_view(dataset, "drive").values("frame_number") == list(range(FRAMES))
    assert set(sequence_view(dataset, "depot").values("sequence_id")) == {"Depot_7"}
    with pytest.raises(AutolabelError, match="no sequence has 'tram'"):
        sequence_view(dataset, "tram")


def test_what_was_accepted_says_the_class_of_the_object_in_all_frames(
    database: str, tmp_path: Path
) -> None:
    """A detector took one object for a truck in two frames: rejecting a label rejects only such."""
    name = f"classes {uuid.uuid4().hex[:8]}"
    prepare_dataset(name, out_uri=str(tmp_path))
    frames = [replace(labeled_frame(0, 1), frame=labeled_frame(i, 1).frame) for i in range(FRAMES)]
    classes = ["car", "car", "truck", "car", "truck", "car"]
    frames = [
        replace(one, boxes=replace(one.boxes, labels=(label,)))
        for one, label in zip(frames, classes, strict=True)
    ]
    load_frames(name, frames, STAMP)
    dataset = schema.open_dataset(name)
    in_order = dataset.sort_by("frame_number")
    assert len({tuple(row) for row in in_order.values("detections.detections.object")}) == 1
    samples, labels = in_order.values("id"), in_order.values("detections.detections.id")
    reject(dataset, choose(dataset, [samples[2]], labels[2]))
    spread(dataset, choose(dataset, [samples[2]], labels[2]))
    assert decisions(name) == [[""], [""], ["rejected"], [""], ["rejected"], [""]]
    for _ in range(2):
        undo(dataset)
    accept(dataset, choose(dataset, [samples[0]], labels[0]))
    spread(dataset, choose(dataset, [samples[0]], labels[0]))
    wanted = ["accepted" if one == "car" else "corrected" for one in classes]
    assert decisions(name) == [[one] for one in wanted]
    dataset.reload()
    assert {row[0] for row in dataset.values("reviewed.detections.label")} == {"car"}
