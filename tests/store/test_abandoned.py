"""What killed writers left goes after a day; what lives, is young or is not ours stays."""

import os
import time

from tasks.store import storage
from tasks.store.private_files import remove_abandoned
from tests.integration.runs import MICRO, write_sequence

HEX = "0123456789abcdef" * 2


def aged(path, days=1.1, content=b"half"):
    """Write a file, or take one that is there, and let it be so old."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(content)
    then = time.time() - days * 24 * 3600
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def test_what_is_not_ours_stays(tmp_path):
    name = f".0-64-k.masks.parquet.{HEX}.tmp"
    labels = tmp_path / "labels" / "drive" / "_"
    stay = [
        aged(tmp_path / "mine" / name),  # not a folder of ours
        aged(tmp_path / name),
        aged(labels / "0-64-k.masks.parquet"),
        aged(labels / name[1:]),  # not hidden
        aged(labels / f".{HEX}.tmp"),  # of no file
        aged(labels / ".0-64-k.masks.parquet.tmp"),
        aged(labels / name.replace("f", "g")),
        aged(labels / f"{name}.old"),
    ]
    elsewhere = aged(tmp_path / "elsewhere" / "_" / name)
    (tmp_path / "labels" / "linked").symlink_to(elsewhere.parents[1], target_is_directory=True)
    link = labels / name.replace("masks", "boxes")
    link.symlink_to(stay[2])
    (labels / name.replace("masks", "frames")).mkdir()
    aged(link)
    aged(labels / name.replace("masks", "frames"))
    aged(labels / name, days=0.9)
    assert remove_abandoned(str(tmp_path)) == 0, "its writer may live"
    goes = aged(storage.temporary_beside(labels / "0-64-k.masks.parquet"))
    before = sorted(tmp_path.rglob("*"))
    assert remove_abandoned(f"file://{tmp_path}") == 1
    assert sorted(tmp_path.rglob("*")) == [one for one in before if one != goes]


def test_a_run_looks_at_its_own_and_a_night_at_everything(tmp_path):
    def left(*folders):
        return aged(tmp_path.joinpath(*folders, f".x.json.{HEX}.tmp"))

    own = [left("labels", "one", "_"), left("reports", "key"), left("attempts", "key", "one@1")]
    others = [left("labels", "two", "_"), left("reports", "other"), left("reviews", "d", "events")]
    assert remove_abandoned(str(tmp_path), "key", ["one", "three"]) == len(own)
    assert all(one.exists() for one in others)
    assert remove_abandoned(str(tmp_path)) == len(others)


def test_what_cannot_be_removed_stays_and_object_stores_are_not_looked_at(tmp_path, monkeypatch):
    left = aged(tmp_path / "labels" / "one" / "_" / f".x.{HEX}.tmp")
    assert remove_abandoned("s3://bucket/out") == 0
    assert remove_abandoned(str(tmp_path / "nothing")) == 0

    def refuses(*_, **__):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.unlink", refuses)
    assert remove_abandoned(str(tmp_path)) == 0
    assert left.exists()


def test_the_next_label_of_the_same_removes_it(tmp_path, monkeypatch):
    from flows.cli import label as label_command
    from flows.params import LabelParams

    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 1)
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), model=str(MICRO),
        boxes=str(tmp_path / "boxes"), load_dataset=False,
    )  # fmt: skip
    left = aged(tmp_path / "out" / "labels" / "drive" / "_" / f".0-1-k.boxes.parquet.{HEX}.tmp")
    monkeypatch.setattr(label_command, "_nothing_to_do", lambda _: [])
    label_command.run_label(label)
    assert not left.exists()
