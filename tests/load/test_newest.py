"""Of each sequence the newest labels count, in whichever order manifests are found."""

import json
import os
import uuid
from dataclasses import replace

import pytest
from click.testing import CliRunner

from flows.cli.review import command
from sam2_core.types import AutolabelError
from tasks.dataset.schema import missing_manifests, open_dataset
from tasks.export.run import chosen_manifests
from tasks.load.into_fiftyone import load_sequence, prepare_dataset, rebuild
from tasks.store.manifests import declare_again, list_manifests, write_manifest
from tests.export.labeled_runs import run_of
from tests.load.test_into_fiftyone import store
from tests.review.labels import OTHER_STAMP, STAMP, labeled_frames


class Sequence:
    """Labels of one sequence in several versions, and the dataset that they are loaded into."""

    def __init__(self, folder):
        self.folder, self.out, self.dataset = folder, str(folder), f"newest {uuid.uuid4().hex[:8]}"
        self.moment_s = 1_700_000_000

    def label(self, frames, stamp=STAMP):
        """Label so many frames, and load them, as a shard does."""
        manifest = store(self.folder, list(labeled_frames(frames, 2)), stamp)
        write_manifest(self.out, manifest)
        self.moment_s += 1
        os.utime(self.folder / manifest.uri, (self.moment_s, self.moment_s))
        prepare_dataset(self.dataset, out_uri=self.out)
        load_sequence(self.dataset, self.out, manifest)
        return manifest

    def load_dataset(self, run_key=""):
        """Load what the dataset lacks; returns how many frames each had."""
        missing, failed = missing_manifests(self.dataset, self.out, run_key)
        assert not failed
        for one in missing:
            load_sequence(self.dataset, self.out, one)
        return [one.frames for one in missing]

    def shown(self, dataset=""):
        """How many frames a dataset has, and whose labels they are."""
        found = open_dataset(dataset or self.dataset)
        return len(found), found.distinct("run_key")

    def exported(self):
        return [(one.frames, [one.stamp.run_key]) for one in chosen_manifests(self.out)]


@pytest.fixture
def sequence(database, tmp_path):
    return Sequence(tmp_path)


@pytest.mark.parametrize("stamps", [(STAMP, OTHER_STAMP), (OTHER_STAMP, STAMP)])
def test_an_older_model_s_labels_are_not_loaded_over_newer_ones(sequence, stamps):
    older, newer = (stamp.run_key for stamp in stamps)
    for stamp in stamps:
        sequence.label(2, stamp)
    for run_key in ("", older, newer):
        assert sequence.load_dataset(run_key) == []
    assert sequence.shown() == (2, [newer])
    assert sequence.exported() == [(2, [newer])]
    rebuild(sequence.dataset, sequence.out, older)
    assert sequence.shown() == (2, [older]), "asked for by name"
    assert sequence.load_dataset() == [2]
    assert sequence.shown() == (2, [newer])

    sequence.dataset += " made again"
    prepare_dataset(sequence.dataset, out_uri=sequence.out)
    assert sequence.load_dataset(older) == [2], "rather than nothing"
    assert sequence.load_dataset() == [2]
    assert sequence.shown() == (2, [newer])
    assert sequence.load_dataset(older) == []


def test_a_partial_version_counts_until_it_is_complete_or_another_is_newer(sequence):
    sequence.label(3)
    partial = replace(sequence.label(2), partial=True)
    (sequence.folder / replace(partial, partial=False).uri).unlink()
    write_manifest(sequence.out, partial)
    assert sequence.load_dataset() == [2]
    assert sequence.shown() == (2, [STAMP.run_key])
    declare_again(sequence.out, list_manifests(sequence.out)[:1])
    assert sequence.load_dataset() == [3]


def test_a_rebuild_leaves_out_what_it_cannot_read_and_says_so(database, tmp_path):
    run, name = run_of(tmp_path, ("cut", "drive"), frames=2), f"cut {uuid.uuid4().hex[:8]}"
    (cut,) = (tmp_path / "run" / "manifests").rglob("cut@*.json")
    cut.write_bytes(cut.read_bytes()[:-40])
    done = CliRunner().invoke(command, ["rebuild", name, "--out", run])
    assert (done.exit_code, done.stdout) == (1, f"{name}: 2 frames, 10 labels\n")
    assert "left out: sequence cut: " in done.stderr
    again = CliRunner().invoke(command, ["rebuild", name, "--out", run, "--json"]).stdout
    assert (json.loads(again)["frames"], [*json.loads(again)["unreadable"]]) == (2, ["cut"])
    assert open_dataset(name).distinct("sequence_id") == ["drive"]


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_rebuild_never_shows_older_labels_for_damaged_ones(sequence, damaged):
    paths = [sequence.folder / sequence.label(*one).uri for one in ((2, OTHER_STAMP), (3,))]
    paths[damaged].write_bytes(paths[damaged].read_bytes()[:-40])
    os.utime(paths[damaged], (sequence.moment_s - 1 + damaged,) * 2)
    if damaged:
        with pytest.raises(AutolabelError, match="truncated or damaged"):
            rebuild(sequence.dataset, sequence.out)
    else:
        unreadable = rebuild(sequence.dataset, sequence.out).unreadable
        assert unreadable == {}, "the older ones are only compared"
    assert sequence.shown() == (3, [STAMP.run_key])
