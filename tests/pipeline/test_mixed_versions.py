"""Labels are of one set of versions of libraries, or say that they are not."""

import importlib.metadata
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from flows.params import LabelParams
from flows.plan.shards import ShardParams
from flows.server.status import look_at_storage
from tasks.frames.decoding import decoding_versions
from tasks.frames.discover import FoundSequence
from tests.integration.runs import MICRO, write_sequence


@pytest.fixture
def upgrade(monkeypatch):
    """Install another version of OpenCV, as far as anybody can tell."""
    installed = importlib.metadata.version

    def upgraded():
        named = "opencv-python-headless"
        monkeypatch.setattr(
            "importlib.metadata.version", lambda name: "9.9" if name == named else installed(name)
        )
        decoding_versions.cache_clear()

    yield upgraded
    monkeypatch.undo()
    decoding_versions.cache_clear()


def label(tmp_path):
    given = {"--out": tmp_path / "out", "--boxes": tmp_path / "boxes", "--model": MICRO}
    given |= {"--chunk-frames": 2}
    words = [str(word) for pair in given.items() for word in pair]
    command = ["label", str(tmp_path / "in"), "--no-dataset", "--json", *words]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_labels_after_an_upgrade_are_marked_as_mixed_in_report_and_status(tmp_path, upgrade):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 4)
    write_sequence(tmp_path / "in" / "other", tmp_path / "boxes", 2)
    before = label(tmp_path)
    out = tmp_path / "out"

    def found(sequence):
        (report,) = (out / "reports").rglob(f"{sequence}@*.json")
        params = LabelParams(sources=(str(tmp_path),), out=str(out))
        piece = FoundSequence(sequence, frames_uri="x", planned_key="c" * 20, planned=4)
        shard = ShardParams(label=params, run_key=before["run_key"], pieces=(piece,))
        _, facts = look_at_storage([(None, None, shard)], [])
        mixed = facts["sequences_of_mixed_versions"]
        return json.loads(report.read_text())["mixed_versions"], mixed

    assert found("drive") == ("", [])
    for manifest in (out / "manifests").rglob("drive@*.json"):
        manifest.unlink()
    for table in (out / "labels" / "drive").rglob("000002-*"):
        table.unlink()
    upgrade()
    after = label(tmp_path)
    assert (after["run_key"], after["skipped"]) == (before["run_key"], 4), "they stay valid"
    mixed, sequences = found("drive")
    assert mixed.startswith("opencv ")
    assert mixed.endswith(" and 9.9")
    assert sequences == ["drive"]
    assert found("other")[0] == ""


def test_boxes_of_other_versions_are_detected_again(tmp_path, upgrade):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 2)
    label(tmp_path)
    for pattern in ("manifests/*/*.json", "labels/*/*/*.frames.parquet"):
        for path in Path(tmp_path / "out").glob(pattern):
            path.unlink()
    (boxes,) = (tmp_path / "out" / "labels").rglob("*.boxes.parquet")
    kept = boxes.read_bytes()
    upgrade()
    label(tmp_path)
    assert boxes.read_bytes() != kept
