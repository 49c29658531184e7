"""Several reviewers of one dataset: shares, second opinions, and what each may take back."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from sklearn.metrics import cohen_kappa_score

from flows.cli.export import command as export
from flows.cli.review import command
from tasks.dataset import schema
from tasks.load.into_fiftyone import rebuild
from tasks.review.actions import accept, choose, fix_class, reject
from tasks.review.events import REVIEWER_VARIABLE, read_events
from tasks.review.queue import (
    DOUBLE_VARIABLE,
    NEEDS_REVIEW,
    SECOND_OPINIONS,
    SHARE_VARIABLE,
    Share,
    build_queue,
    queue_standing,
)
from tasks.review.stats import review_stats, summary
from tests.review.labels import labeled_frames
from tests.review.reviewed import ask, decided_labels, load_run, pick, state


@pytest.fixture
def name(database: str, out: Path) -> str:
    load_run("team", out, labeled_frames(40))
    yield "team"
    schema.open_dataset("team").delete()


def labels(view) -> dict[str, str]:
    """Ids of labels that a view shows, and of their frames."""
    return {one.id: sample.id for sample in view for one in sample.detections.detections}


def test_shares_are_apart_and_a_part_of_them_is_decided_on_twice_unseen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = schema.open_dataset(name)
    people = {"ana": Share(1, 2, 0.5), "ben": Share(2, 2, 0.5)}
    queues = {}
    for who, share in people.items():
        assert build_queue(dataset, 40, share=share).second == 0, "nobody has decided anything"
        queues[who] = labels(dataset.load_saved_view(share.named(NEEDS_REVIEW)))
    assert [len(one) for one in queues.values()] == [40, 40]
    assert not set(queues["ana"].values()) & set(queues["ben"].values()), "no frame is in both"

    monkeypatch.setenv(REVIEWER_VARIABLE, "ana")
    for label, frame in queues["ana"].items():
        accept(dataset, choose(dataset, [frame], [label]))
    assert build_queue(dataset, 40, share=people["ana"]).second == 0, "not of her own decisions"
    monkeypatch.setenv(REVIEWER_VARIABLE, "ben")
    monkeypatch.setenv(SHARE_VARIABLE, "2/2")
    monkeypatch.setenv(DOUBLE_VARIABLE, "0.5")
    count = build_queue(dataset, 40, share=people["ben"]).second
    assert 5 < count < 35
    view = dataset.load_saved_view(people["ben"].named(SECOND_OPINIONS))
    shown = labels(view)
    assert len(shown) == count
    standing = queue_standing(dataset, people["ben"].named(SECOND_OPINIONS))
    assert (set(standing.label_ids), standing.left) == (shown.keys(), count)
    assert shown.keys() <= queues["ana"].keys()
    assert not view.has_field("reviewed"), "it would say what she has accepted"

    first, second, *rest, mended = shown.items()
    monkeypatch.setenv(REVIEWER_VARIABLE, "ana")
    fix_class(dataset, choose(dataset, [mended[1]], [mended[0]]), "van")
    monkeypatch.setenv(REVIEWER_VARIABLE, "ben")
    stands = [one[:4] for one in state(name)]
    selected = [{"sample_id": first[1], "label_id": first[0]}]
    for act in ("merge", "spread", "repair_open", "follow_begin", "nothing_here"):
        tile = {"selected_labels": selected, "current_sample": first[1], "confirmed": True}
        assert "a second opinion is" in ask(dataset, act, **tile)["message"], act
    assert ask(dataset, "delete", selected_labels=selected)["ok"], "selected, in any view"
    assert "for this frame" in ask(dataset, "spread")["message"]
    assert ask(dataset, "undo")["ok"]
    assert ask(dataset, "accept", view, selected=[rest[0][1]], confirmed=True)["ok"], "of a tile"
    assert ask(dataset, "undo")["ok"]
    decide = [("accept", first, {}), ("fix_class", second, {"class_name": "tram"})]
    decide += [("accept", one, {}) for one in (*rest, mended)]
    hidden = {"decision": ""}  # keys do not say which view is open
    for act, (label, frame), more in decide:
        focus = {"sample_id": frame, "label_id": label, **hidden}
        done = ask(dataset, act, focus=focus, current_sample=frame, **more)
        assert done["ok"], done
    focus = {"sample_id": first[1], "label_id": first[0], **hidden, "decision": "accepted"}
    assert ask(dataset, "reject", focus=focus)["ok"], "on second thoughts"
    accept_last = {"sample_id": mended[1], "label_id": mended[0], "decision": "accepted"}
    assert ask(dataset, "accept", focus=accept_last)["ok"]
    for act, shown_now in (("undo", "accepted"), ("undo", "accepted"), ("redo", "rejected")):
        (change,) = ask(dataset, act)["samples"].values()
        assert [one["decision"] for one in change["labels"]["detections"]] == [shown_now], act
        assert change["labels"]["reviewed"] == [], "what ana has made of it"
    assert [one[:4] for one in state(name)] == stands, "a second opinion changes nothing"
    standing = queue_standing(schema.open_dataset(name), people["ben"].named(SECOND_OPINIONS))
    assert (len(standing.label_ids), standing.left) == (count, 0)
    assert build_queue(dataset, 40, share=people["ben"]).second == 0

    told = json.loads(CliRunner().invoke(command, ["report", name, "--json"]).stdout)
    (pair,) = told["second_opinions"]
    says = ["right"] * (count - 1) + ["van"], ["wrong", "tram"] + ["right"] * (count - 2)
    assert (pair["people"], pair["disagree"]) == (["ana", "ben"], {"wrong": 3, "of": count})
    assert pair["kappa"] == pytest.approx(cohen_kappa_score(*says))
    verdicts = {one["label_id"]: one["verdicts"] for one in told["disagreements"]}
    assert verdicts == {
        first[0]: ["right", "wrong"], second[0]: ["right", "tram"], mended[0]: ["van", "right"],
    }  # fmt: skip
    assert labels(dataset.load_saved_view("disagreements")) == dict([first, second, mended])
    given = [name, "--reviewed", "--format", "coco", "--to", str(tmp_path / "to")]
    assert "3 disagreements of reviewers open" in CliRunner().invoke(export, given).stderr
    told = CliRunner().invoke(command, ["report", name]).output
    assert "ana and ben agree on" in told
    text = summary(review_stats(dataset))
    for kappa_is_shown in (told, text):
        assert "(1 is full agreement, 0 what chance would give)" in kappa_is_shown
    assert f"of {count} labels where the second one did not see the first decision" in text
    assert f"ana 40, ben {count}: {40 + count} decisions on 40 labels, {count} of them by a" in text
    assert "| Disagreements that nobody has settled | 3 |" in text
    decided = Counter(row["decision"] for row in decided_labels(name))
    assert f"| Labels decided, in the queue or not | **{decided.total()}** of 200 " in text
    assert decided == {"accepted": 39, "corrected": 1}, "not what ben said of them"
    for (label, frame), decision in ((first, "accepted"), (mended, "corrected")):
        focus = {"sample_id": frame, "label_id": label, "decision": decision}
        assert ask(dataset, "accept", focus=focus)["ok"]
    report = CliRunner().invoke(command, ["report", name]).output
    assert report.count("settled by ben as right") == 1
    assert report.count("settled by ben as van") == 1, "accepting a correction confirms it"
    assert labels(dataset.load_saved_view("disagreements")) == dict([second])
    (van,) = (d for s in dataset for d in s.reviewed.detections if d.sources == [mended[0]])
    assert (van.label, van.decision) == ("van", "corrected"), "the machine was wrong still"


def test_shares_are_even_and_a_frame_stays_with_who_has_it(database: str, out: Path) -> None:
    three = [Share(number, 3) for number in (1, 2, 3)]

    def counts(shares: list[Share]) -> dict[int, Counter[str]]:
        """How many decisions each has on which frames, after all have asked for their queue."""
        for share in shares:
            build_queue(dataset, 40, share=share)
        views = {one.number: dataset.load_saved_view(one.named(NEEDS_REVIEW)) for one in three}
        return {number: Counter(labels(view).values()) for number, view in views.items()}

    dataset = load_run("dealt", out, labeled_frames(9, 4))
    first = counts(three)
    assert [one.total() for one in first.values()] == [11, 12, 12]
    for frame in first[3]:
        accept(dataset, choose(dataset, [frame], [dataset[frame].detections.detections[0].id]))
    again = counts(three[::-1])
    assert [one.keys() for one in again.values()] == [one.keys() for one in first.values()]

    dataset = load_run("dealt", out, labeled_frames(15, 4))
    more = counts(three)
    assert all(first[number].keys() < more[number].keys() for number in first)
    assert sum(len(one) for one in more.values()) == 15
    whole = [one.total() for one in more.values()]
    assert max(whole) - min(whole) <= 4, "frames are not divided"
    dataset.delete()


def test_who_overturns_what_somebody_else_has_decided_disagrees(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a view that shows the decision: no opinion for kappa, but nothing that goes unseen."""

    def by(who: str, decide: Callable, *labels: int) -> None:
        monkeypatch.setenv(REVIEWER_VARIABLE, who)
        decide(*pick(name, 0, *labels))

    def report() -> str:
        return CliRunner().invoke(command, ["report", name], catch_exceptions=False).output

    by("root", reject, 0, 1)
    dataset = schema.open_dataset(name)
    second = Share.parse("", 1.0)
    monkeypatch.setenv(REVIEWER_VARIABLE, "kim")
    assert build_queue(dataset, 40, share=second).second == 2, "of everything, without a share"
    assert build_queue(dataset, 40, share=Share.parse("")).second == 0
    given = [one.options for one in (Share.parse(""), second, Share.parse("2/3"))]
    assert given == [[], ["--double", "1"], ["--share", "2/3"]], "by which the share is had again"
    assert report().count("no second opinion yet") == 1
    by("kim", accept, 0)
    by("kim", reject, 1)
    told = report()
    assert "kim says right, root says wrong" in told
    assert "by: kim 2, root 2: 4 decisions on 2 labels, 2 of them by a second person" in told
    assert "kappa" not in told
    assert "says" not in told.replace("kim says right, root says wrong", "")
    assert len(labels(schema.open_dataset(name).load_saved_view("disagreements"))) == 1
    by("root", reject, 0)
    assert "settled by root as wrong" in report()
    target = str(out.parent / "coco")
    folder = ["./out", "--format", "coco", "--to", target, "--pictures", "none"]
    monkeypatch.chdir(out.parent)
    said = CliRunner().invoke(export, folder, catch_exceptions=False).output
    assert f"export {name} --format coco" in " ".join(said.split())


DECIDE = """
import sys
from tasks.dataset.schema import open_dataset
from tasks.review.actions import choose, accept, reject
from sam2_core.types import AutolabelError
name, act = sys.argv[1:]
dataset, refused = open_dataset(name), 0
rows = [(s.id, one.id) for s in dataset for one in s.detections.detections][:20]
print("ready", flush=True)
sys.stdin.readline()
for frame, label in rows:
    try:
        {"accept": accept, "reject": reject}[act](dataset, choose(dataset, [frame], [label]))
    except AutolabelError:
        refused += 1
print(refused)
"""


@pytest.mark.ci
def test_two_people_at_once_lose_nothing_and_the_last_word_holds(name: str, out: Path) -> None:
    """Both decide on the same labels; what is in storage says the same as the dataset."""
    started = {
        act: subprocess.Popen(
            [sys.executable, "-c", DECIDE, name, act], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {REVIEWER_VARIABLE: f"who would {act}"},
        )
        for act in ("accept", "reject")
    }  # fmt: skip
    assert [one.stdout.readline() for one in started.values()] == ["ready\n"] * 2
    for one in started.values():
        print(file=one.stdin, flush=True)
    refused = sum(int(one.communicate()[0]) for one in started.values())
    events = read_events(str(out), name)
    assert len(events) == 40 - refused, "what was not refused is kept, both records of a label"
    assert {one.by for one in events} == {"who would accept", "who would reject"}
    last = {label: what for one in events for label, what in one.decisions.items()}
    shown = {d.id: d.decision for s in schema.open_dataset(name) for d in s.detections.detections}
    assert last.items() <= shown.items()
    before = state(name)
    schema.open_dataset(name).delete()
    rebuild(name, str(out))
    assert state(name) == before


def test_a_clock_that_was_set_back_puts_no_decision_before_earlier_ones(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(*pick(name, 0, 0))
    monkeypatch.setattr("tasks.review.events.now_text", lambda: "2000-01-01T00:00:00.000000+00:00")
    reject(*pick(name, 0, 0))
    assert [one.action for one in read_events(str(out), name)] == ["accept", "reject"]
