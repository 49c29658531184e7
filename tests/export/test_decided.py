"""Of a dataset, what people decided takes the place of what they decided on."""

import json
import uuid

import numpy as np
import pytest
from click.testing import CliRunner
from pycocotools import mask as coco_mask

from flows.cli.main import cli
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.plan.plan import make_plan
from sam2_core.types import AutolabelError
from tasks.dataset.schema import open_dataset, refuse_before_labeling
from tasks.export.run import AS_BACKGROUND, Choice, chosen_manifests, export, source_of
from tasks.load.into_fiftyone import load_sequence, load_truth, prepare_dataset, rebuild
from tasks.review.actions import accept, fix_class, merge, reject
from tasks.review.events import undo
from tasks.review.queue import NO_LABELS, build_queue
from tasks.review.stats import review_stats
from tasks.store.roots import Root, write_root
from tasks.types import NothingFoundError
from tests.export.labeled_runs import run_of, truth
from tests.integration.runs import MICRO, write_image
from tests.review.reviewed import ask, decided_labels, follow_here, pick


def loaded(run):
    """Load a run into a new dataset; returns its name."""
    name = f"export {uuid.uuid4().hex[:8]}"
    prepare_dataset(name, out_uri=run)
    for manifest in chosen_manifests(run):
        load_sequence(name, run, manifest)
    return name


@pytest.fixture
def name(database, tmp_path):
    return loaded(run_of(tmp_path, frames=3))


def test_sequences_without_a_decision_are_not_counted_among_those_of_the_decided(
    database, tmp_path
):
    name = loaded(run_of(tmp_path, ("decided", "untouched"), frames=1))
    target = tmp_path / "nothing"
    with pytest.raises(NothingFoundError, match="no frame is reviewed yet"):
        export(name, "coco", str(target), Choice(reviewed=True), images="none")
    assert not target.exists()
    accept(*pick(name, 0, 0))
    for choice, count in ((Choice(), 2), (Choice(reviewed=True), 1)):
        told = export(name, "coco", str(tmp_path / f"coco-{count}"), choice, images="none")
        assert (told["sequences"], told["frames"]) == (count, count)


def test_a_dataset_belongs_to_one_out(name, tmp_path):
    """Two folders called alike, with sequences called alike: neither hides frames of the other."""
    (tmp_path / "b").mkdir()
    first, second = str(tmp_path / "run"), run_of(tmp_path / "b", frames=2)
    for act, advice in (
        (lambda: prepare_dataset(name, out_uri=second), f"--dataset '{name}-"),
        (lambda: rebuild(name, second), f"rebuild it under another name, such as '{name}-"),
        (lambda: refuse_before_labeling(name, second), f"--dataset '{name}-"),
    ):
        with pytest.raises(AutolabelError, match=rf"{first},.*{advice}"):
            act()
    write_root(first, Root("/drives"))
    prepare_dataset(name, out_uri=first)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(AutolabelError, match="--dataset"):
        prepare_dataset(name, out_uri=second)
    refuse_before_labeling(name, str(moved))
    dataset = open_dataset(name)
    dataset.reload()
    assert source_of(name)[0] == str(moved)
    prepare_dataset(name, out_uri=str(moved))
    dataset.info["out_uris"] = [second, str(moved)]  # as older versions mixed them
    dataset.save()
    with pytest.raises(AutolabelError, match=f"holds the labels of {second}"):
        export(name, "coco", str(tmp_path / "coco"), Choice())


def test_a_bucket_that_is_not_there_is_told_before_the_dataset_is_looked_at(name, s3, tmp_path):
    write_image(tmp_path / "in" / "1.jpg")
    params = LabelParams(
        sources=[str(tmp_path / "in")], out="s3://labls/night", dataset=name, model=str(MICRO)
    )
    for plan in (lambda: make_plan(params), lambda: plan_backfill(BackfillParams(label=params))):
        with pytest.raises(AutolabelError, match=r"s3://labls/night.*: its bucket does not exist"):
            plan()


def test_decisions_take_the_place_of_the_labels(name, tmp_path):
    expected = truth(tmp_path, frames=3)
    accept(*pick(name, 0, 0))
    reject(*pick(name, 0, 1))
    fix_class(*pick(name, 1, 2), "tram")
    merge(*pick(name, 1, 3, 4))
    for target, choice in (("all", Choice()), ("reviewed", Choice(reviewed=True))):
        told = export(name, "coco", str(tmp_path / target), choice, images="none")
    left_out = {"rejected label": 1, "label merged into another": 1, "undecided label": 5}
    frame, its_labels = "frame without a decision that counts", "label on such a frame"
    assert told["left_out"] == {frame: 1, its_labels: 5, **left_out}
    assert told["frames"] + 1 == 3
    assert told["instances"] + 5 + sum(left_out.values()) == 3 * 5, "all labels"
    assert told["decisions"] == {"accepted": 1, "corrected": 1, "merged": 1}
    decided = review_stats(open_dataset(name)).decided
    assert told["instances"] + left_out["rejected label"] + 1 == decided, "as the panel counts"
    read = {}
    for target in ("all", "reviewed"):
        found = json.loads((tmp_path / target / "annotations/instances.json").read_text())
        names = {one["id"]: one["name"] for one in found["categories"]}
        frames = {one["id"]: one["frame_id"] for one in found["images"]}
        read[target] = {number: [] for number in frames.values()}
        for one in found["annotations"]:
            row = (names[one["category_id"]], one["attributes"]["decision"], one["segmentation"])
            read[target][frames[one["image_id"]]].append(row)

    assert sorted(read["reviewed"]) == [0, 1]
    assert [row[:2] for row in read["reviewed"][0]] == [(expected[0][0][0], "accepted")]
    decided = {row[1]: row for row in read["reviewed"][1]}
    assert (sorted(decided), decided["corrected"][0]) == (["corrected", "merged"], "tram")
    union = np.maximum(*(coco_mask.decode(expected[1][row][2]) for row in (3, 4)))
    assert (coco_mask.decode(decided["merged"][2]) == union).mean() > 0.9999

    untouched = {0: [2, 3, 4], 1: [0, 1], 2: [0, 1, 2, 3, 4]}
    for index, rows in untouched.items():
        kept = [row for row in read["all"][index] if not row[1]]
        assert [row[0] for row in kept] == [expected[index][row][0] for row in rows]
        for row, number in zip(kept, rows, strict=True):
            assert (coco_mask.decode(row[2]) == coco_mask.decode(expected[index][number][2])).all()
    for index, rows in read["reviewed"].items():
        assert [row for row in read["all"][index] if row[1]] == rows


def test_labels_that_are_undecided_again_are_exported_as_such(name, tmp_path):
    """With the mask that was followed to them."""
    follow_here(name, frame=1)
    accept(*pick(name, 2, 3))
    undo(open_dataset(name))

    def exported(target, **choice):
        told = export(name, "coco", str(tmp_path / target), Choice(**choice), images="none")
        found = json.loads((tmp_path / target / "annotations/instances.json").read_text())
        return told["frames"], [one["area"] for one in found["annotations"]]

    areas = [int(coco_mask.area(row[2])) for frame in truth(tmp_path, frames=3) for row in frame]
    areas[6:8] = [400, 400]
    frames, found = exported("undecided")
    assert (frames, sorted(found)) == (3, sorted(areas))
    with pytest.raises(NothingFoundError):
        exported("none", reviewed=True)
    assert decided_labels(name) == []
    accept(*pick(name, 1, 1))
    frames, found = exported("one decided")
    assert (frames, sorted(found)) == (3, sorted(areas))
    assert exported("accepted", reviewed=True) == (1, [400])
    assert len(decided_labels(name)) == 1


def test_a_plain_name_is_the_dataset_and_its_folder_has_a_dot(database, tmp_path, monkeypatch):
    run_of(tmp_path, frames=1)
    monkeypatch.chdir(tmp_path)
    assert source_of("run") == ("run", None), "there is no dataset of this name"
    name = f"both-{uuid.uuid4().hex[:8]}"
    (tmp_path / "run").rename(tmp_path / name)
    prepare_dataset(name, out_uri=name)
    out, dataset = source_of(name)
    assert (out, dataset.name) == (str(tmp_path / name), name)
    assert source_of(f"./{name}") == (f"./{name}", None)
    run_of(tmp_path / "other", frames=1)
    (tmp_path / "other" / "run").rename(tmp_path / "other" / name)
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(AutolabelError, match=rf"a folder of labels here.* write \./{name}"):
        source_of(name)


@pytest.fixture(scope="module")
def with_empty(database, tmp_path_factory):
    """Frames 0 and 1 have labels, the machine has found nothing on 2 and 3.

    Ana has said that nothing is on 1 and 2, Ben has decided on two labels of 0.
    """
    folder = tmp_path_factory.mktemp("empty")
    name = loaded(run_of(folder, frames=4, each=(5, 5, 0, 0)))
    dataset = open_dataset(name)
    build_queue(dataset, 10)
    rows = {one.frame_number: one.id for one in dataset}
    assert sorted(dataset.load_saved_view(NO_LABELS).values("frame_number")) == [2, 3]

    def nothing_here(**how):
        return ask(dataset, "nothing_here", selected=[rows[1], rows[2]], **how)

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AUTOLABEL_REVIEWER", "ana")
        asked = nothing_here()["question"]
        assert "5 labels there count as wrong" in asked
        accept(*pick(name, 1, 0))
        assert nothing_here()["question"] == asked, "an accepted label is one label"
        undo(dataset)
        assert nothing_here(confirmed=True)["ok"]
        assert "already" in nothing_here()["message"]
        assert ask(dataset, "standing")["last"].startswith("nothing here")
        patched.setenv("AUTOLABEL_REVIEWER", "ben")
        accept(*pick(name, 0, 0))
        reject(*pick(name, 0, 1))
    dataset.delete()
    rebuild(name, str(folder / "run"))
    return name


def exported(name, target, *options, format_="coco"):
    """Export by the command; returns its report."""
    given = ["export", name, "--format", format_, "--pictures", "none", "--to", str(target)]
    told = CliRunner().invoke(cli, [*given, "--json", *options])
    assert told.exit_code == 0, told.output
    report, said = json.loads(told.stdout), " ".join(told.stderr.split())
    assert (AS_BACKGROUND in said) == ("undecided label" in report["left_out"])
    return report


def coco_of(target):
    return json.loads((target / "annotations/instances.json").read_text())


def test_what_is_empty_is_told_from_what_nobody_has_looked_at(with_empty, tmp_path):
    report = exported(with_empty, tmp_path)
    empty = {one["frame_id"] for one in coco_of(tmp_path)["images"] if one.get("confirmed_empty")}
    assert (empty, report["frames_without_labels"]) == ({1, 2}, 3)
    assert [one.partition("@")[0] for one in report["confirmed_empty"]] == [
        "drive/000001.jpg", "drive/000002.jpg",
    ]  # fmt: skip
    assert {one["reviewer"] for one in decided_labels(with_empty)} == {"ana", "ben"}


@pytest.mark.parametrize(
    ("options", "frames", "count"),
    [
        ("--reviewed", [0, 1, 2], 1), ("--decisions accepted", [0], 1),
        ("--decisions empty", [1, 2], 0), ("--decisions accepted,empty", [0, 1, 2], 1),
        ("--decisions rejected", [0, 1], 6), ("--reviewers ben", [0], 1),
        ("--reviewers ana", [1, 2], 0), ("--decisions rejected --reviewers ben", [0], 1),
    ],
)  # fmt: skip
def test_an_export_takes_the_decisions_asked_for(with_empty, tmp_path, options, frames, count):
    exported(with_empty, tmp_path, *options.split())
    coco = coco_of(tmp_path)
    assert [one["frame_id"] for one in coco["images"]] == frames
    assert len(coco["annotations"]) == count


def test_each_format_says_which_frames_are_empty(with_empty, tmp_path):
    exported(with_empty, tmp_path / "yolo", "--reviewed", format_="yolo")
    sizes = {one.name[-5]: one.stat().st_size for one in tmp_path.rglob("labels/**/*.txt")}
    assert (sorted(sizes), sizes["1"], sizes["2"]) == (["0", "1", "2"], 0, 0)
    for format_ in ("label-studio", "fiftyone"):
        exported(with_empty, tmp_path / format_, format_=format_)
    tasks = json.loads((tmp_path / "label-studio" / "tasks.json").read_text())
    answers = {one["data"]["frame_id"]: len(one["annotations"]) for one in tasks}
    assert answers == {0: 1, 1: 1, 2: 1, 3: 0}
    samples = json.loads((tmp_path / "fiftyone" / "samples.json").read_text())["samples"]
    assert [one["tags"] for one in samples] == [[], ["confirmed_empty"], ["confirmed_empty"], []]


def test_a_decision_that_there_is_not_is_refused():
    given = ["export", "x", "--format", "coco", "--to", "x", "--decisions", "fine"]
    wrong = CliRunner().invoke(cli, given)
    assert (wrong.exit_code, "fine is none of accepted" in wrong.output) == (2, True)


def test_a_dataset_is_scored_with_what_people_decided(name, tmp_path):
    export(str(tmp_path / "run"), "coco", str(tmp_path / "coco"), Choice(), images="none")
    reject(*pick(name, 0, 1))
    recall = {}
    for given in (str(tmp_path / "coco/annotations/instances.json"), f"dataset:{name}.detections"):
        command = ["evaluate", given, "--dataset", name, "--json"]
        result = json.loads(CliRunner().invoke(cli, command, catch_exceptions=False).stdout)
        recall[given] = result["recall"]
        assert result["run"]["labels"] == name
        assert result["miou_matched"] == 1
    assert [*recall.values()] == [0.9333, 0.9333]  # of fifteen


def test_a_dataset_is_scored_by_its_own_ground_truth_where_no_other_is_given(name, tmp_path):
    export(str(tmp_path / "run"), "coco", str(tmp_path / "coco"), Choice(), images="none")
    without = CliRunner().invoke(cli, ["evaluate", "--dataset", name])
    assert "ground_truth" in str(without.exception)
    load_truth(name, tmp_path / "coco/annotations/instances.json")
    reject(*pick(name, 0, 1))
    result = CliRunner().invoke(cli, ["evaluate", "--dataset", name, "--json"])
    assert json.loads(result.stdout)["recall"] == 0.9333
    assert CliRunner().invoke(cli, ["evaluate"]).exit_code == 2, "a model needs a truth"


def test_a_frame_that_is_not_finished_is_no_frame_without_objects(name, tmp_path):
    """All that was decided on it is wrong, and more may be there."""
    reject(*pick(name, 0, 0))
    accept(*pick(name, 1, 0))
    told = export(name, "coco", str(tmp_path / "right"), Choice(reviewed=True), images="none")
    found = json.loads((tmp_path / "right" / "annotations/instances.json").read_text())
    assert [one["frame_id"] for one in found["images"]] == [1]
    assert told["left_out"]["frame that is not finished, with nothing held to be right"] == 1
    reject(*pick(name, 0, 1, 2, 3, 4))
    export(name, "coco", str(tmp_path / "both"), Choice(reviewed=True), images="none")
    found = json.loads((tmp_path / "both" / "annotations/instances.json").read_text())
    assert [one["frame_id"] for one in found["images"]] == [0, 1]
