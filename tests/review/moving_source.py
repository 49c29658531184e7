"""A source that changes, labels that say which content they were made for, and what must hold."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
from pycocotools import mask as coco_mask

from sam2_core.types import Boxes, Masks
from tasks.dataset import layout, schema
from tasks.frames.discover import discover
from tasks.frames.sources import remember_sources
from tasks.load import into_fiftyone as load
from tasks.load.into_fiftyone import prepare_dataset, rebuild
from tasks.review.actions import accept, choose
from tasks.review.set_aside import COLLECTION, compare_files
from tasks.store.manifests import dated_ahead, declare_again, list_manifests, write_manifest
from tasks.store.roots import Root, write_root
from tasks.store.tables import LabeledFrame
from tasks.types import ALL_FRAMES
from tests.load.test_into_fiftyone import store
from tests.review.labels import OTHER_STAMP, STAMP
from tests.review.reviewed import decided_labels

SIZE_HW = (8, 12)
_numbers = itertools.count(1)
_square = np.zeros(SIZE_HW, np.uint8, order="F")
_square[2:6, 2:6] = 1
_RLE = coco_mask.encode(_square)["counts"]


class MovingSource:
    """Drives of camera folders whose files hold their own name: what must be on every label."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.fs, self.path = fsspec.core.url_to_fs(root)
        for camera in ("drive_1/CAM_FRONT", "drive-1/CAM_FRONT"):
            for _ in range(3):
                self.write(f"{camera}/{next(_numbers):06d}.jpg")

    def write(self, name: str) -> None:
        """Write a content that was never there before."""
        number, path = next(_numbers), f"{self.path}/{name}"
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        height, width = SIZE_HW  # the header of a PPM, its comment being the content
        picture = f"P6\n# content {number}\n{width} {height}\n255\n"
        self.fs.pipe(path, picture.encode())
        if "memory" not in self.root:  # two writes in one tick of the clock look alike
            os.utime(path, ns=(number, 10**18 + number))

    def files(self) -> list[str]:
        found = self.fs.find(self.path)
        return sorted(one[len(self.path) :].lstrip("/") for one in found)

    def edit(self, kind: str, one: int, other: int) -> None:
        """Change something; `one` and `other` choose which."""
        files = self.files()
        a, b = files[one % len(files)], files[other % len(files)]
        folder, drive = a.rpartition("/")[0], a.split("/")[0]
        moves: list[tuple[str, str]] = []
        if kind == "insert first":
            self.write(f"{folder}/000000_{next(_numbers)}.jpg")
        elif kind == "rewrite":
            self.write(a)
        elif kind == "remove" and len(files) > 2:
            self.fs.rm(f"{self.path}/{a}")
        elif kind == "add camera":
            self.write(f"{drive}/CAM_BACK/{next(_numbers):06d}.jpg")
        elif kind == "rename":
            moves = [(a, f"{folder}/{next(_numbers):06d}.jpg")]
        elif kind == "swap" and a != b:
            moves = [(a, f"{folder}/aside"), (b, a), (f"{folder}/aside", b)]
        elif kind == "rename sequence":
            drives = {file.split("/")[0] for file in files}
            new = next(one for one in ("drive_1", "drive-1", "道", "路") if one not in drives)
            mine = [file for file in files if file.startswith(f"{drive}/")]
            moves = [(file, f"{new}/{file.partition('/')[2]}") for file in mine]
        for source, target in moves:
            self.fs.makedirs(f"{self.path}/{target}".rpartition("/")[0], exist_ok=True)
            self.fs.mv(f"{self.path}/{source}", f"{self.path}/{target}")

    def content(self, uri: str) -> str | None:
        """What is at an address now."""
        fs, path = fsspec.core.url_to_fs(uri)
        return fs.cat(path).decode().split("\n")[1][2:] if fs.exists(path) else None


class Reviewing:
    """A dataset of such a source, and what a person holds to be accepted."""

    def __init__(self, name: str, source: MovingSource, out: Path) -> None:
        self.name, self.source, self.out = name, source, out
        self.outs = [out / "a", out / "b"]
        write_root(str(out / "a"), Root(source.root))
        self.stamps = [STAMP, OTHER_STAMP]
        self.selection = ALL_FRAMES
        self.accepted: set[str] = set()

    @property
    def dataset(self):
        return schema.open_dataset(self.name)

    def forget_database(self) -> None:
        """Empty the dataset: as if it had been dropped, only faster."""
        import fiftyone.core.odm as foo

        if self.name in foo.get_db_conn().datasets.distinct("name"):
            dataset = self.dataset
            layout.sample_collection(dataset).delete_many({})
            foo.get_db_conn()[COLLECTION].delete_many({})
            dataset.info["out_uris"] = []
            dataset.save()

    def label(self) -> None:
        """Label what is there now, and load it."""
        out = str(self.outs[0])
        declare_again(out, dated_ahead(list_manifests(out)))
        remember_sources([self.source.root])
        for found in discover([self.source.root], self.selection):
            labeled = [self._labeled(frame) for frame in found.frames]
            manifest = store(self.outs[0], labeled, self.stamps[0])
            manifest = replace(manifest, frames_uri=found.frames_uri)
            write_manifest(out, manifest)
            prepare_dataset(self.name, list({one.camera for one in found.frames}), out)
            load.load_sequence(self.name, out, manifest)

    def _labeled(self, frame) -> LabeledFrame:
        content = self.source.content(frame.uri)
        masks = Masks((_RLE,), SIZE_HW, [0.9], [0.9], [5], [16], ("",))
        return LabeledFrame(frame, Boxes([[2, 2, 6, 6]], [0.9], (content,)), masks)

    def act(self, kind: str, one: int) -> None:
        if kind == "another model":
            self.stamps.reverse()
        elif kind == "another name":
            mine, self.name = self.name, f"{self.name} {next(_numbers)}"
            self.label()
            self.check_newest()
            self.name = mine
        elif kind == "storage moves":
            self.outs[0].rename(self.outs[1])
            self.outs.reverse()
        elif kind == "wrong clock":
            for path in (self.outs[0] / "manifests").rglob("*.json"):
                os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 86400 * (1 + one)))
        if kind == "rebuild":
            self.forget_database()
            rebuild(self.name, str(self.outs[0]))
        elif kind == "open":
            compare_files(self.dataset)
        elif kind == "accept":
            self.accept(one)
        elif kind != "wrong clock":
            self.label()

    def accept(self, one: int) -> None:
        compare_files(self.dataset)
        samples = sorted(self._samples(), key=lambda sample: sample["frame_key"])
        if samples:
            chosen = samples[one % len(samples)]
            label = chosen["detections"]["detections"][0]
            accept(self.dataset, choose(self.dataset, [chosen["_id"]], [label["_id"]]))
            self.accepted.add(label["label"])

    def _samples(self) -> list[dict]:
        return list(layout.sample_collection(self.dataset).find({}))

    def check(self) -> None:
        """No label and no decision is on a content that it was not made for, and none is lost."""
        shown: set[str] = set()
        for sample in self._samples():
            path = Path(sample["filepath"])
            here = "://" not in str(path)
            content = self.source.content(str(path)) if here else None
            reviewed = [one["label"] for one in sample["reviewed"]["detections"]]
            machine = sample["detections"]["detections"]
            for label in (*reviewed, *(one["label"] for one in machine)):
                assert content in {None, label}, (sample["frame_key"], content, label)
            for one in machine:
                assert not one["decision"] or one["label"] in self.accepted, sample["frame_key"]
            shown.update(reviewed)
        aside = {
            one["label"]
            for sample in samples_set_aside(self.dataset)
            for one in sample["reviewed"]["detections"]
        }
        assert shown | aside == self.accepted, (shown, aside, self.accepted)
        assert not shown & aside

    def check_newest(self) -> None:
        """A rebuild shows the labels of all that is there now."""
        rebuild(self.name, str(self.outs[0]))
        shown = {
            one["label"] for sample in self._samples() for one in sample["detections"]["detections"]
        }
        there = {self.source.content(f"{self.source.root}/{one}") for one in self.source.files()}
        assert there <= shown, (shown, there)  # what is gone may have had labels

    def check_export(self) -> None:
        table = decided_labels(self.name)
        if not self.source.root.startswith("memory"):  # there a copy of the content is here
            there = [self.source.content(row["frame_uri"]) for row in table]
            assert there == [row["label"] for row in table]


def samples_set_aside(dataset: object) -> list:
    """Return the samples that are kept with what people did, while they do not count."""
    mine = {"_dataset_id": layout.dataset_id(dataset)}
    return list(layout.database()[COLLECTION].find(mine))


EDITS = ("insert first", "rewrite", "remove", "rename", "swap", "rename sequence", "add camera")
ACTS = (
    "label", "another model", "wrong clock", "another name", "storage moves", "rebuild", "open",
    "accept",
)  # fmt: skip


def steps(kinds: list[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Begin with labels and two decisions, end with all that a night does."""
    yield from (("label", 0, 0), ("accept", 1, 0), ("accept", 4, 0))
    yield from kinds
    yield from (("rebuild", 0, 0), ("label", 0, 0), ("open", 0, 0))
