"""Which sequences a backfill plans, from storage alone."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flows import backfill
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.plan.plan import job_of, make_plan
from flows.plan.rates import Rate, last_rate, remember_rate
from flows.plan.rows import plan_rows
from flows.plan.shards import pack
from sam2_core.types import AutolabelError
from tasks.dataset.schema import open_dataset
from tasks.frames.listing import walk
from tasks.pipeline.outcome import SequenceOutcome
from tasks.pipeline.run_context import RunContext
from tasks.review.actions import accept, mark_sequence
from tasks.review.events import undo
from tasks.store import storage
from tasks.store.artifacts import RunStamp
from tasks.store.manifests import Manifest, path_of, write_manifest
from tests.integration.runs import MICRO, write_sequence
from tests.review.labels import labeled_frames
from tests.review.reviewed import load_run, pick


@pytest.fixture
def params(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))  # no run here was before
    for name in ("2026-01-05-late", "2026-11-20-new", "undated"):
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 2)
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), model=str(MICRO),
        boxes=str(tmp_path / "boxes"), load_dataset=False,
    )  # fmt: skip
    return lambda **more: BackfillParams(**{"label": label} | more)


def test_what_has_no_manifest_is_planned_however_old_it_is(params):
    plan = plan_backfill(params())
    assert (plan.sequences, plan.to_label, plan.hidden) == (3, 3, 0)
    assert "model" not in dict(plan_rows(plan))
    assert dict(plan_rows(plan))["shards"] == "1  (the longest takes a worker 3 s after its start)"
    label = plan.params.label.model_copy(update={"allow_uncertified": True})
    told = dict(plan_rows(plan_backfill(BackfillParams(label=label))))
    assert told["model"].startswith("--allow-uncertified")
    old = b'{"labeled_by": "0.0.9", "stamp": {"format_version": 1}}'
    storage.write_bytes(storage.join(label.out, path_of("f" * 20, "undated", "c" * 20)), old)
    plan = plan_backfill(params())
    why = "1 labeled before with other frames, model, parameters or version"
    assert dict(plan_rows(plan))["to label"].endswith(f"{why})")


def test_frames_of_videos_are_not_told_as_if_somebody_had_counted_them(params, tmp_path):
    plan = plan_backfill(params())
    assert (dict(plan_rows(plan))["frames"], plan.as_json()["frames_estimated"]) == ("6", False)
    (tmp_path / "in" / "drive.mp4").write_bytes(b"a video of three frames, perhaps" * 2000)
    plan = plan_backfill(params())
    assert (plan.as_json()["frames"], plan.as_json()["frames_estimated"]) == (9, True)
    assert dict(plan_rows(plan))["frames"].startswith("about 9  (until opened, those of videos")
    halved = plan.params.label.model_copy(update={"frames": "::2"})
    assert plan_backfill(BackfillParams(label=halved)).frames == 3 + 2, "of what is asked for"
    (video,) = [(one.sequence_id, one.content_key) for one in plan.works if one.is_estimated]
    plan = plan_backfill(params(), lambda _: {video})
    assert (plan.as_json()["frames"], plan.in_flight) == (6, 1)


def test_a_plan_takes_its_rate_from_the_last_run_of_its_kind_here(params, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    plan = plan_backfill(params())
    assert plan.rate == Rate(0.5, 0)
    seconds = {"download": 1.0, "segment": 8.0}
    outcomes = [SequenceOutcome("a", computed_frames=4, frames=9, seconds=seconds)]
    outcomes.append(SequenceOutcome("labeled before", frames=90, seconds={"load": 50.0}))
    remember_rate(plan.stamp, outcomes, follows=False)
    remember_rate(plan.stamp, outcomes[1:], follows=False)
    plan = plan_backfill(params())
    assert (plan.rate.seconds_per_frame, plan.rate.frames) == (2.0, 4)
    assert dict(plan_rows(plan))["worker time"].endswith(
        "measured on 4 frames of the last run here)"
    )
    assert last_rate(plan.stamp, follows=True) is None, "which takes far longer"
    (path,) = (tmp_path / "cache" / "rates").iterdir()
    path.write_text("[")
    assert plan_backfill(params()).rate == Rate(0.5, 0)


@pytest.mark.parametrize(
    ("seconds_per_frame", "told"),
    [(0.1, "less than 1 s"), (1.0, "6 s"), (15.0, "1.5 min"), (900.0, "1.50 h")],
)
def test_the_time_of_a_small_plan_is_no_zero(params, seconds_per_frame, told):
    plan = plan_backfill(params())
    plan.rate = Rate(seconds_per_frame, 0)
    assert dict(plan_rows(plan))["worker time"].startswith(f"{told}  (")
    plan.works.clear()
    assert dict(plan_rows(plan))["worker time"].startswith("0 s  (")


def test_what_since_leaves_out_is_counted_and_told(params):
    plan = plan_backfill(params(since="2026-11-01"))
    assert {work.sequence_id for work in plan.works} == {"2026-11-20-new", "undated"}
    assert (plan.sequences, plan.to_label, plan.hidden, plan.undated) == (2, 2, 1, 1)
    assert plan.as_json()["hidden"] == 1
    left_out = dict(plan_rows(plan))["left out"]
    assert re.fullmatch(r"1 not labeled, outside the dates \(\S+ of 20\d\d-\d\d-\d\d\)", left_out)


def test_names_that_no_sequence_has_are_told(params):
    plan = plan_backfill(params(sequences="undated\nundatedd\n2026-11*\nTWO"))
    assert (plan.sequences, plan.unknown) == (2, ("undatedd", "TWO"))
    assert plan.as_json()["unknown"] == ["undatedd", "TWO"]
    assert dict(plan_rows(plan))["not found"].startswith("2 names of --sequences that no sequence")


def test_a_plan_is_cut_once_for_the_workers_that_are_online(params, monkeypatch):
    cuts = []

    def counted(works, **how):
        cuts.append(list(works))
        return pack(cuts[-1], **how)

    monkeypatch.setattr("flows.plan.backfill.pack", counted)
    monkeypatch.setattr(backfill, "decided", lambda label: label)
    monkeypatch.setattr(backfill, "sequences_in_flight", lambda *_, **__: set())
    monkeypatch.setattr(backfill, "workers_online", lambda: ["one", "two"])
    plan = backfill.plan_in_flight(params(shard_minutes=0.02))
    assert (plan.as_json()["shards"], len(plan.shards), len(cuts)) == (2, 2, 1)
    (rest,) = plan.cut(plan.works[2:])
    assert list(rest.pieces) == plan.works[2:]


def test_single_pictures_are_refused(params, tmp_path):
    label = params().label.model_copy(update={"sources": (f"{tmp_path}/in/2026*/*",)})
    with pytest.raises(AutolabelError, match=r"jpg is a single picture.* name its folder"):
        plan_backfill(BackfillParams(label=label))


def test_a_folder_of_boxes_is_listed_once_for_a_run(params, monkeypatch):
    """It may hold a hundred thousand files, and every shard lists it before its first frame."""
    label, listed = params().label, []

    def counted(uri, *more):
        listed.append(uri)
        return walk(uri, *more)

    monkeypatch.setattr("tasks.boxes.import_files.walk", counted)
    tools = RunContext()
    plan = make_plan(label, tools)
    assert tools.imported(label.boxes, "", plan.matching.imported.version).entries
    assert listed == [label.boxes]
    (listed.clear(), plan_backfill(BackfillParams(label=label)))
    assert listed == [label.boxes]


def test_where_there_is_no_gpu_a_run_on_one_is_refused_and_a_backfill_is_planned(
    params, monkeypatch
):
    monkeypatch.setattr("sam2_core.devices.cuda_devices", lambda: 0)
    label = params().label.model_copy(
        update={"backend": "onnxruntime-cuda", "precision": "fp32", "allow_uncertified": True}
    )
    planned = plan_backfill(BackfillParams(label=label))
    assert (planned.to_label, planned.rate.seconds_per_frame) == (3, 0.02)
    assert plan_backfill(BackfillParams(label=params().label)).rate.seconds_per_frame == 0.5
    with pytest.raises(AutolabelError, match="onnxruntime-cuda needs an NVIDIA GPU"):
        make_plan(label)
    # What is labeled already may be loaded and tracked anywhere.
    for work in planned.works:
        path = path_of(planned.stamp.run_key, work.sequence_id, work.content_key)
        storage.write_bytes(storage.join(label.out, path), b"{}")
    monkeypatch.setattr(
        "flows.plan.plan.as_left", lambda out, key, part: replace(part, manifest=SimpleNamespace())
    )
    assert not make_plan(label).missing


@pytest.mark.parametrize(
    ("backend", "precision", "seconds_per_frame"),
    [("onnxruntime-cpu", "fp16", 0.5), ("onnxruntime-cuda", "fp16", 0.02), ("torch", "fp32", 0.5)],
)
def test_a_first_plan_supposes_the_time_of_what_computes_the_masks(
    params, monkeypatch, backend, precision, seconds_per_frame
):
    """A server of Triton's tells the stamp of what runs there, so that counts."""
    label = params().label
    made_by = replace(plan_backfill(BackfillParams(label=label)).stamp.model, backend=backend)
    stamp = RunStamp("boxes", replace(made_by, precision=precision), {})
    job = replace(job_of(label), stamp=stamp)
    monkeypatch.setattr("flows.plan.backfill.job_of", lambda _: job)
    plan = plan_backfill(BackfillParams(label=label))
    assert (plan.rate.seconds_per_frame, plan.rate.frames) == (seconds_per_frame, 0)


def test_what_people_reviewed_is_not_labeled_anew_unless_asked(params, tmp_path, database):
    first = plan_backfill(params())
    out = first.params.label.out
    load_run("reviewed", out, labeled_frames(2, sequence_id="undated"))
    for one in first.works:
        written = Manifest(one.sequence_id, one.frames_uri, one.content_key, first.stamp, ())
        write_manifest(out, written)
    other = params(label=first.params.label.model_copy(update={"fill_gaps": True}))
    assert (plan_backfill(other).to_label, plan_backfill(other).kept) == (3, 0)

    accept(*pick("reviewed", 0, 0))
    plan = plan_backfill(other)
    assert (plan.to_label, plan.kept, plan.frames_reviewed, plan.up_to_date) == (2, 1, 1, 0)
    assert "undated" not in {one.sequence_id for one in plan.works}
    assert dict(plan_rows(plan))["kept"].startswith("1  (people decided on 1 frame;")
    assert plan_backfill(params()).up_to_date == 3, "those that are as asked for stay so"
    assert make_plan(other.label).kept == {"undated": 1}, "one rule for all commands"
    asked = other.label.model_copy(update={"relabel_reviewed": True})
    assert plan_backfill(params(label=asked)).to_label == len(make_plan(asked).missing) == 3

    dataset = open_dataset("reviewed")
    undo(dataset)
    assert plan_backfill(other).kept == 0, "taken back"
    mark_sequence(dataset, "undated")
    assert (plan_backfill(other).kept, plan_backfill(other).frames_reviewed) == (1, 2)
    write_sequence(tmp_path / "in" / "undated", tmp_path / "boxes", 3)
    assert plan_backfill(other).to_label == 3, "there are frames that nobody has labeled"
    dataset.delete()
