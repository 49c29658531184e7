"""The queue under a budget, the control sample, and statistics."""

import uuid
from dataclasses import replace

import numpy as np
import pytest

from tasks.dataset import layout, schema
from tasks.load.into_fiftyone import prepare_dataset
from tasks.review.actions import accept, choose, mark_sequence, reject
from tasks.review.queue import (
    CONTROL,
    LABEL_BY_LABEL,
    NEEDS_REVIEW,
    Doubt,
    build_queue,
    few_of_each_place,
    queue_standing,
    sequence_risks,
)
from tasks.review.stats import (
    DECISION_COLOURS,
    Rate,
    decisions_plot,
    rates_plot,
    review_stats,
    risks_plot,
    shown_names,
    summary,
)
from tasks.risk.compute_risk import WORDS
from tests.review.labels import CLASSES, STAMP, labeled_frames, load_frames


@pytest.fixture
def name(database: str) -> str:
    name = f"queue {uuid.uuid4().hex[:8]}"
    prepare_dataset(name)
    load_frames(name, labeled_frames(20, 10), STAMP)
    return name


def test_the_riskiest_labels_come_first_and_leave_when_decided(name: str) -> None:
    dataset = schema.open_dataset(name)
    queue = build_queue(dataset, budget=15, control=10)
    riskiest: dict[str, tuple[float, str]] = {}
    for sample in dataset:
        for d in sample.detections.detections:
            riskiest[d.object] = max((d.risk, d.id), riskiest.get(d.object, (0.0, "")))
    first_of_all = max(riskiest.values())
    view = dataset.load_saved_view(NEEDS_REVIEW)
    shown = {d.id for sample in view for d in sample.detections.detections}
    assert shown <= {identity for _, identity in riskiest.values()}
    assert first_of_all[1] in shown
    assert queue.decisions == len(shown) == 15
    assert queue.frames == len(view), "the App counts what the command has said"
    tiles = dataset.load_saved_view(LABEL_BY_LABEL)
    assert tuple(tiles.values("id")) == queue_standing(dataset, LABEL_BY_LABEL).label_ids
    assert set(tiles.values("id")) == shown
    risks = [max(d.risk for d in sample.detections.detections) for sample in view]
    assert risks == sorted(risks, reverse=True)
    assert tiles.values("detections.risk") == sorted(tiles.values("detections.risk"), reverse=True)
    first = view.first()
    accept(dataset, choose(dataset, [first.id], [first.detections.detections[0].id]))
    shown_after = {d.id for sample in view for d in sample.detections.detections}
    assert shown_after == shown - {first.detections.detections[0].id}
    assert set(tiles.values("id")) == shown_after, "tiles go as frames do"
    undecided = [d.risk for d in dataset[first.id].detections.detections if not d.decision]
    assert dataset[first.id].risk == pytest.approx(max(undecided))


def test_a_sequence_has_the_risk_of_its_riskiest_frames_until_it_is_done(name: str) -> None:
    dataset = schema.open_dataset(name)
    (risks,) = sequence_risks(dataset).items()
    worst = sorted(dataset.values("risk"))[-2:]
    assert len(dataset) == 20
    assert risks == ("drive", pytest.approx(np.mean(worst)))
    assert risks_plot(dict([risks]))[0]["y"] == ["drive"]
    collection = layout.sample_collection(dataset)
    query = collection.find({"review_status": "open"}, {"_id": 0, "sequence_id": 1, "risk": 1})
    assert query.explain()["executionStats"]["totalDocsExamined"] == 0, "an index has it all"
    build_queue(dataset, 5)
    assert queue_standing(dataset).left == 5
    assert build_queue(schema.open_dataset(dataset.name)).decisions == 5, "for whoever joins, too"
    first, *_ = queue_standing(dataset).label_ids
    accept(dataset, choose(dataset, dataset.values("id"), [first]))
    before = queue_standing(dataset)
    assert build_queue(schema.open_dataset(dataset.name)).decisions == 4, "what is left"
    dataset.reload()
    assert queue_standing(dataset) == before, "somebody joined: the queue goes on"
    assert build_queue(dataset, 5).decisions == 5, "another one was asked for"
    mark_sequence(dataset, "drive")
    assert sequence_risks(dataset) == {}
    assert queue_standing(dataset).left == 0, "nobody needs to decide there"


def test_a_class_has_one_colour_of_its_own(name: str) -> None:
    dataset = schema.open_dataset(name)
    (sample,) = dataset.take(1)
    sample.detections.detections[0].label = "O'Brien"
    sample.save()
    for _ in range(2):
        build_queue(dataset, 10)
        dataset = schema.open_dataset(name)
        dataset.reload()
        for field in dataset.app_config.color_scheme.fields:
            colours = [one["color"] for one in field["valueColors"] if one["value"] == "O'Brien"]
            assert colours == ["#80ffdb"]
            assert not {*colours} & {*DECISION_COLOURS.values()}


def test_the_apps_own_tools_offer_the_classes(name: str) -> None:
    dataset = schema.open_dataset(name)
    build_queue(dataset, 10)
    assert dataset.active_label_schemas == ["reviewed"]
    assert dataset.label_schemas["reviewed"]["classes"] == sorted(CLASSES)
    mine = {**dataset.label_schemas["reviewed"], "classes": ["tram", *sorted(CLASSES)]}
    dataset.update_label_schema("reviewed", mine)
    dataset.update_label_schema("detections", dataset.generate_label_schemas("detections"))
    dataset.activate_label_schemas("detections")
    build_queue(dataset, 10)
    assert dataset.active_label_schemas == ["reviewed"], "an edit would land on another label"
    assert "tram" in dataset.label_schemas["reviewed"]["classes"], "what somebody set stays"


@pytest.mark.ci
def test_the_control_sample_says_what_the_rest_is_worth(name: str) -> None:
    dataset = schema.open_dataset(name)
    build_queue(dataset, budget=20, control=30)
    assert dataset.has_saved_view(CONTROL)
    build_queue(dataset, budget=1000)
    assert not dataset.has_saved_view(CONTROL), "nothing is left to draw from"
    assert "control sample" not in summary(review_stats(dataset))
    build_queue(dataset, budget=20, control=30)
    view = dataset.load_saved_view(CONTROL)
    drawn = [(s.id, d) for s in view for d in s.detections.detections]
    assert len(drawn) == 30
    in_order = [
        one.id
        for sample in view
        for one in sorted(sample.detections.detections, key=lambda one: -one.risk)
    ]
    assert tuple(in_order) == queue_standing(dataset, CONTROL).label_ids, "positions rise from 1"
    numbers = [dataset[one].control for one in view.values("id")]
    assert numbers == sorted(numbers), "the first ones are as random as all"
    queued = dataset.load_saved_view(NEEDS_REVIEW)
    assert not {d.id for _, d in drawn} & {d.id for s in queued for d in s.detections.detections}
    for row, (sample, label) in enumerate(drawn):
        act = reject if row < 3 else accept
        act(dataset, choose(dataset, [sample], [label.id]))
    stats = review_stats(schema.open_dataset(name))
    assert (stats.control.wrong, stats.control.of) == (3, 30)
    low, high = stats.control.interval
    assert low < 0.1 < high
    assert stats.decided == 30
    assert stats.labels == 200
    assert stats.disagreement == Rate(3, 30)
    assert sum(rate.of for rate in stats.by_class.values()) == 30
    assert stats.per_hour > 0
    build_queue(dataset, budget=20, control=30)
    again = {d.id for s in dataset.load_saved_view(CONTROL) for d in s.detections.detections}
    assert again == {d.id for _, d in drawn}, "drawn once, decided or not"
    shown = sum(len(s.reviewed.detections) for s in dataset.load_saved_view(CONTROL))
    assert shown == 27, "what the App does not see it would overwrite"
    build_queue(dataset, budget=60, control=30)
    queued = dataset.load_saved_view(NEEDS_REVIEW)
    queued = {d.object for s in queued for d in s.detections.detections}
    later = {d.id for s in dataset.load_saved_view(CONTROL) for d in s.detections.detections}
    assert later >= {d.id for _, d in drawn if d.object not in queued}, "the rest stays"
    text = summary(stats)
    assert "**30** of 200" in text
    assert "decisions per hour" in text
    hostile = replace(stats, per_hour=0.0, by_reviewer={"<b>a|[b](x)": 1})
    assert "too few decisions" in summary(hostile)
    assert r"| Decisions by | &lt;b&gt;a\|\[b\](x) 1 |" in summary(hostile)
    plot = rates_plot({"<a href='x'>car": Rate(1, 2)})
    assert plot[0]["y"] == ["&lt;a href=&#x27;x&#x27;&gt;car (2)"]
    (told,) = plot[0]["customdata"]
    assert told.startswith("&lt;a href=&#x27;x&#x27;&gt;car: 1 of 2 wrong, 50.0% (95% interval ")
    assert shown_names(plot)["ticktext"] == plot[0]["y"]
    assert "10.0%" in text
    (bars,) = decisions_plot(stats)
    assert bars["y"][:3] == ["added", "deleted", "merged"], "from the bottom"
    assert bars["y"][-2:] == ["rejected", "accepted"], "whatever was decided first"
    assert bars["x"] == [0] * 4 + [3, 27]
    (bars,) = decisions_plot(replace(stats, decisions={"edited": 1, "corrected": 2}))
    assert bars["x"][bars["y"].index("corrected")] == 3, "an edit is a correction"
    assert len(rates_plot(stats.by_class)[0]["x"]) == len(stats.by_class)
    axis = shown_names(risks_plot({"car": 1, f"long{'-' * 196}class": 2}))
    assert axis["tickvals"][0] == f"long{'-' * 196}class"
    assert axis["ticktext"] == [f"long{'-' * 13}…{'-' * 13}class", "car"]
    reasons = rates_plot({one: Rate(1, 9999) for one in WORDS.values()})
    assert "…" not in "".join(shown_names(reasons)["ticktext"])


@pytest.mark.parametrize(
    ("wrong", "of", "low", "high"),
    [(0, 0, 0, 1), (0, 20, 0, 0.1684), (3, 30, 0.0211, 0.2653), (20, 20, 0.8316, 1)],
)
def test_intervals_are_clopper_and_pearsons(wrong: int, of: int, low: float, high: float) -> None:
    assert Rate(wrong, of).interval == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_a_place_gets_a_few_decisions_and_more_where_there_is_room() -> None:
    def doubt(row: int, label: str, x: float) -> Doubt:
        name = f"{label}-{row}"
        return Doubt(
            1 - row / 100, name, "frame", name, ("drive", "", label), (x, 0.5, 0.1, 0.1)
        )  # fmt: skip

    rail = [doubt(row, "car", 0.08 * row) for row in range(10)]  # each overlaps the one beside it
    others = [doubt(20 + row, "bus", 0.2 * row) for row in range(4)]
    riders = [doubt(40 + row, "rider", 0.0) for row in range(2)]
    doubts = [*rail, *others, *riders]
    chosen = few_of_each_place(doubts, 10)
    assert len(chosen) == 10
    names = [one.label_id for one in chosen]
    assert {"car-0", "rider-40", *(one.label_id for one in others)} <= set(names)
    assert [one.risk for one in chosen] == sorted((one.risk for one in chosen), reverse=True)
    assert names[:5] == [f"car-{row}" for row in range(5)], "room is filled by the riskiest"
    assert few_of_each_place([], 10) == []
