"""Plans beside what is labeled: no frame is labeled twice under two names."""

from contextlib import nullcontext

import pytest

from flows import backfill
from flows.cli.nightly import refuse_other_names
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.plan.plan import begin, check_writable, make_plan
from sam2_core.types import AutolabelError
from tasks.export.run import Choice, export
from tasks.frames.naming import NamedOtherwiseError
from tasks.store import roots, storage
from tasks.store.manifests import Manifest, write_manifest
from tests.integration.runs import MICRO, write_sequence


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setattr(backfill, "submit", lambda *_, **__: None)
    for name in ("05-01/a", "05-01/b", "05-02/c"):
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 2)
    return lambda *sources, **more: LabelParams(
        sources=tuple(f"{tmp_path}/in{one}" for one in sources), out=str(tmp_path / "out"),
        model=str(MICRO), boxes=str(tmp_path / "boxes"), load_dataset=False, **more,
    )  # fmt: skip


def submitted(plan, monkeypatch):
    """Submit a plan, as far as storage is concerned; returns the names of its sequences."""

    monkeypatch.setattr(backfill, "turn_of", lambda *_: nullcontext())
    monkeypatch.setattr(backfill, "sequences_in_flight", lambda *_: set())
    backfill.submit_plan(plan)
    return {one.sequence_id for one in plan.works}


def mark_complete(plan):
    for one in plan.works:
        manifest = Manifest(one.sequence_id, one.frames_uri, one.content_key, plan.stamp, ())
        write_manifest(plan.params.label.out, manifest)


def test_a_backfill_of_a_part_finds_what_nights_labeled(label, monkeypatch, tmp_path):
    write_sequence(tmp_path / "new", tmp_path / "boxes", 2)
    nights = plan_backfill(BackfillParams(label=label("")))
    assert not storage.list_names(str(tmp_path / "out" / roots.ROOTS)), "a plan writes nothing"
    assert submitted(nights, monkeypatch) == {"05-01__a", "05-01__b", "05-02__c"}
    mark_complete(nights)
    (tmp_path / "new").rename(tmp_path / "in" / "05-01" / "new")
    part = plan_backfill(BackfillParams(label=label("/05-01")))
    assert (part.sequences, part.up_to_date) == (3, 2)
    assert submitted(part, monkeypatch) == {"05-01__new"}
    mark_complete(part)
    assert not plan_backfill(BackfillParams(label=label(""))).works
    found = make_plan(label("/05-01/a")).sequences
    assert [one.sequence_id for one in found] == ["05-01__a"]


def test_names_of_nights_are_looked_at_when_they_are_turned_on(label, tmp_path):
    every, first = label(""), label("/05-01")
    refuse_other_names(every, every.sources)
    begin(first, make_plan(first).names, ())
    refuse_other_names(first, [f"{tmp_path}/in/05-01/a"])
    with pytest.raises(NamedOtherwiseError, match=r"in is not below .*/in/05-01"):
        refuse_other_names(every, every.sources)


def test_a_storage_that_cannot_be_written_from_here_is_told(label, tmp_path, caplog):
    plan = make_plan(label(""))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / roots.ROOTS).write_text("in the way")
    begin(label(""), plan.names, ())
    assert "the root of names is not recorded" in caplog.text


def test_trying_whether_an_out_can_be_written_leaves_nothing_there(tmp_path):
    check_writable(str(tmp_path / "labels"))
    assert list((tmp_path / "labels").iterdir()) == []


@pytest.mark.parametrize(("first", "then"), [("", "/rig/CAM_FRONT"), ("/rig/CAM_FRONT", "/rig")])
def test_a_camera_is_not_labeled_beside_its_sequence(label, monkeypatch, tmp_path, first, then):
    for camera in ("CAM_FRONT", "CAM_BACK"):
        write_sequence(tmp_path / "in" / "rig" / camera, tmp_path / "boxes", 2)
    mine = plan_backfill(BackfillParams(label=label(first, root=f"{tmp_path}/in")))
    submitted(mine, monkeypatch)
    both = (
        lambda: plan_backfill(BackfillParams(label=label(then)), lambda _: in_flight),
        lambda: make_plan(label(then)),
    )
    in_flight = {work.key for work in mine.works}
    with pytest.raises(NamedOtherwiseError, match="would be labeled a second time"):
        both[0]()
    mark_complete(mine)
    in_flight = set()
    for planned in both:
        with pytest.raises(NamedOtherwiseError, match="would be labeled a second time"):
            planned()


def test_drives_that_have_moved_are_labeled_anew_under_their_names(label, monkeypatch, tmp_path):
    first = plan_backfill(BackfillParams(label=label("/05-01")))
    submitted(first, monkeypatch)
    mark_complete(first)
    (tmp_path / "in" / "05-01").rename(tmp_path / "in" / "archive")
    there = f"{tmp_path}/in/archive"
    moved = plan_backfill(BackfillParams(label=label("/archive", root=there)))
    assert (submitted(moved, monkeypatch), moved.stale) == ({"a", "b"}, 2)
    assert {one.sequence_id for one in make_plan(label("/archive")).sequences} == {"a", "b"}


@pytest.mark.parametrize(
    ("source", "target", "refused"),
    [
        ("", "export", True), ("/05-01", "05-01/a/export", True), ("/05-01/a", "05-01/a/x", True),
        ("/05-01/a", "05-01/export", False), ("/05-01", "export", False),
        ("/05-01/a/0000.jpg", "05-01/a/export", False),
    ],
)  # fmt: skip
def test_an_export_does_not_become_drives_of_the_next_run(label, tmp_path, source, target, refused):
    params = label(source)
    plan = make_plan(params)
    begin(params, plan.names, ())
    for one in plan.sequences:
        key = one.sequence_id, one.frames_uri, one.content_key
        write_manifest(params.out, Manifest(*key, plan.job.stamp, ()))
    told = rf"--to .*{target} is inside the source .*in{source}, which later runs .* beside it"
    with pytest.raises(AutolabelError, match=told) if refused else nullcontext():
        export(params.out, "coco", f"{tmp_path}/in/{target}", Choice())


def test_what_was_labeled_grows_with_a_wider_source(label, tmp_path):
    for source, widest in (("/05-01/a", "/05-01/a"), ("", ""), ("/05-01", "")):
        params = label(source, root=f"{tmp_path}/in")
        begin(params, make_plan(params).names, ())
        assert roots.read_root(params.out).source == f"{tmp_path}/in{widest}"
