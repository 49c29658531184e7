"""Whoever can write into `--out` can write right checksums: nothing else that they write counts.

Each forgery is of one sequence of two. It is refused or left out in words, the other sequence is
exported and measured, and nothing is read outside of what was labeled here.
"""

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pycocotools import mask as coco_mask
from rlemasklib import RLEMask

from flows.cli.main import cli
from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.export.run import uncertified_runs
from tasks.frames.identity import file_version
from tasks.store import artifacts, checksums, manifests, tables
from tasks.store import tracks as store_tracks
from tests.export.labeled_runs import run_of
from tests.frames.sources import QuietHandler, serve

FORGED, GOOD = "drive", "other"
SECRET = b"-----BEGIN PRIVATE KEY-----"
LARGE = coco_mask.encode(np.ones((4000, 4000), np.uint8, order="F"))["counts"].decode()


@dataclass
class Storage:
    """A copy of the storage, and what is not to be read."""

    out: Path
    secret: Path
    url: str

    def manifest(self):
        (path,) = (self.out / "manifests").glob(f"*/{FORGED}@*.json")
        return path, checksums.decode_json(path.read_bytes(), "")

    def write_manifest(self, change, name=None):
        path, values = self.manifest()
        values = change(values) or values
        path.unlink()
        (path.parent / (name or path.name)).write_bytes(checksums.encode_json(values))

    def rewrite(self, kind, change):
        """Change a table of the first chunk; keys, names and checksums are made right again."""
        values = self.manifest()[1]
        record = values["chunks"][0]
        found = {}
        for each in ("frames", "masks"):
            table = pq.read_table(self.out / f"{record['stem']}.{each}.parquet")
            metadata = dict(table.schema.metadata)
            found[each] = (change(table, metadata) if each == kind else table, metadata)
        stem, key = record["stem"], self._key(found["frames"][0], record)
        record |= {"stem": stem.rpartition("-")[0] + f"-{key}", "key": key}
        for each, (table, metadata) in found.items():
            metadata |= {b"key": json.dumps(key).encode(),
                         b"checksum": checksums.UNSEALED.encode()}  # fmt: skip
            sink = pa.BufferOutputStream()
            pq.write_table(table.replace_schema_metadata(metadata), sink)
            data = checksums.seal_parquet(sink.getvalue().to_pybytes())
            (self.out / f"{record['stem']}.{each}.parquet").write_bytes(data)
            record[f"{each}_sha256"] = checksums.sha256_of(data)
        self.write_manifest(lambda _: values)

    @staticmethod
    def _key(table, record):
        stamp = json.loads(table.schema.metadata[b"stamp"])
        labels_key = artifacts._STAMP.validate_python(stamp).labels_key
        try:
            return artifacts.chunk_key(labels_key, [tables.to_frame(r) for r in table.to_pylist()])
        except (KeyError, UnicodeError, pa.ArrowInvalid):
            return record["key"]


def cell(kind, column, value, row=0):
    """Put a value into a row of a table, of its type where it has that."""

    def change(table, _):
        at = table.column_names.index(column)
        type_ = table.schema.types[at]
        cells = table[column].to_pylist()
        cells[row] = value
        return table.set_column(at, table.schema.field(at), pa.array(cells, type_))

    return lambda storage: storage.rewrite(kind, change)


def whole(kind, change):
    """Change a table as a whole."""
    return lambda storage: storage.rewrite(kind, lambda table, _: change(table))


def metadata(kind, name, value):
    def change(table, found):
        found[name.encode()] = value if isinstance(value, bytes) else json.dumps(value).encode()
        return table

    return lambda storage: storage.rewrite(kind, change)


def retyped(column, type_):
    return lambda table: table.set_column(
        table.column_names.index(column), column, table[column].cast(type_)
    )


def swapped(table, column, text):
    """Give every row this text, which a file holds once."""
    at = table.column_names.index(column)
    return table.set_column(at, table.schema.field(at), pa.array([text] * len(table), pa.string()))


def many(table):
    return pa.concat_tables([table.slice(0, 1)] * 2000).combine_chunks().take(
        np.tile(np.arange(2000), 1000)
    )  # fmt: skip


def size(height, width):
    """Say another size of the first frame and of its masks."""

    def change(storage):
        for kind in ("frames", "masks"):
            rows = [0] if kind == "frames" else range(3)
            for column, value in (("height", height), ("width", width)):
                for row in rows:
                    cell(kind, column, value, row)(storage)

    return change


def in_manifest(**values):
    return lambda storage: storage.write_manifest(lambda found: found | values)


def in_record(**values):
    def change(found):
        found["chunks"][0] |= values

    return lambda storage: storage.write_manifest(change)


def chunks_again(storage):
    storage.write_manifest(lambda found: found | {"chunks": found["chunks"] * 2})


def elsewhere(make):
    """Have the first frame at another address, at the version of what is there."""

    def change(storage):
        cell("frames", "uri", make(storage))(storage)
        cell("frames", "etag", "")(storage)

    return change


def moved_home(storage):
    """The whole sequence is said to be in the folder of the key."""
    elsewhere(lambda one: str(one.secret))(storage)
    in_manifest(frames_uri=str(storage.secret.parent))(storage)


def instead(make, kind="masks"):
    """Have something else where a table of the first chunk is."""

    def change(storage):
        path = storage.out / f"{storage.manifest()[1]['chunks'][0]['stem']}.{kind}.parquet"
        path.unlink()
        make(path)

    return change


def sparse(path):
    path.touch()
    os.truncate(path, 40 << 30)


REFUSED = {
    "pipe": instead(os.mkfifo),
    "pipe for frames": instead(os.mkfifo, "frames"),
    "folder": instead(Path.mkdir),
    "link to itself": instead(lambda path: path.symlink_to(path)),
    "link to a device": instead(lambda path: path.symlink_to("/dev/zero")),
    "40 GB of nothing": instead(sparse),
    "no run lengths": cell("masks", "rle", ""),
    "run lengths too short": cell("masks", "rle", "1"),
    "run lengths too long": cell("masks", "rle", "ooooooo1" * 20_000),
    "run lengths without an end": cell("masks", "rle", "o" * 50),
    "run lengths of a larger mask": cell("masks", "rle", LARGE),
    "negative run lengths": cell("masks", "rle", "`PPPPPPPPPPPN"),
    "run lengths of no code": cell("masks", "rle", "\x01é~"),
    "area": cell("masks", "area_px", 1),
    "negative area": cell("masks", "area_px", -1),
    "200000 x 200000": size(200_000, 200_000),
    "46000 x 46000": size(46_000, 46_000),
    "no pixel": size(0, 0),
    "negative size": size(-5, 100),
    "height of one mask": cell("masks", "height", 1),
    "width of one mask": cell("masks", "width", 10**6),
    "NaN in a box": cell("masks", "x1_px", np.nan),
    "infinite box": cell("masks", "y2_px", np.inf),
    "NaN as predicted IoU": cell("masks", "predicted_iou", np.nan),
    "infinite stability": cell("masks", "stability", -np.inf),
    "NaN as object score": cell("masks", "object_score", np.nan),
    "no label": cell("masks", "label", None),
    "label that clears the screen": cell("masks", "label", "\x1b[2Jcar"),
    "label of two lines": cell("masks", "label", "car\nperson"),
    "label of a megabyte": cell("masks", "label", "x" * 1_000_000),
    "no score": cell("masks", "score", None),
    "no reason": cell("masks", "reason", None),
    "masks of another sequence": cell("masks", "sequence_id", GOOD),
    "masks of another camera": cell("masks", "camera", "../.."),
    "masks of another frame": cell("masks", "index", 77),
    "negative frame": cell("masks", "index", -1),
    "box twice": cell("masks", "box_index", 1),
    "box out of range": cell("masks", "box_index", 2**31 - 1),
    "text of 30 MB in every row": whole("masks", lambda t: swapped(t, "reason", "x" * 30_000_000)),
    "2 million rows": whole("masks", many),
    "long address": elsewhere(lambda one: f"{one.out.parent}/in/{FORGED}/{'x' * 5000}"),
    "time before all": cell("frames", "timestamp_ns", -(2**63)),
    "time after all": cell("frames", "timestamp_ns", 2**63 - 1),
    "rows twice": whole("masks", lambda table: pa.concat_tables([table, table])),
    "no rows": whole("masks", lambda table: table.slice(0, 0)),
    "masks without a column": whole("masks", lambda table: table.drop_columns(["rle"])),
    "masks with one more column": whole("masks", lambda t: t.append_column("more", t["score"])),
    "wrong type": whole("masks", retyped("area_px", pa.float64())),
    "frames without a column": whole("frames", lambda table: table.drop_columns(["uri"])),
    "frames of another type": whole("frames", retyped("index", pa.int32())),
    "no frames": whole("frames", lambda table: table.slice(0, 0)),
    "frames twice": whole("frames", lambda table: pa.concat_tables([table, table])),
    "frame of another sequence": cell("frames", "sequence_id", GOOD),
    "frame of a way up": cell("frames", "camera", "../../x"),
    "frame index twice": cell("frames", "index", 1),
    "huge frame index": cell("frames", "index", 2**62),
    "no address": cell("frames", "uri", None),
    "address with a zero": cell("frames", "uri", "/x\0y"),
    "status": cell("frames", "status", "maybe"),
    "no status": cell("frames", "status", None),
    "failed with labels": cell("frames", "status", "failed"),
    "instances": cell("frames", "instances", 2**31 - 1),
    "negative instances": cell("frames", "instances", -1),
    "negative bytes": cell("frames", "size_bytes", -1),
    "stage of two lines": cell("frames", "stage", "a\r\nb"),
    "frames without sources": metadata("frames", "sources", {}),
    "sources that are none": metadata("frames", "sources", 7),
    "more followed than there are": metadata("frames", "followed", {"0": [1] * 99}),
    "stamp of another run": metadata("frames", "stamp", {"detector": "x"}),
    "metadata that is no JSON": metadata("masks", "stamp", b"{"),
    "kind": metadata("masks", "kind", b"boxes"),
    "a file of the user": elsewhere(lambda one: str(one.secret)),
    "a file of the user, said to be the drive's": moved_home,
    "a way up": elsewhere(lambda one: f"{one.out.parent}/in/{FORGED}/../../secret/id_ed25519"),
    "file://": elsewhere(lambda one: f"file://{one.secret}"),
    "the user's home": elsewhere(lambda _: "~/.ssh/id_ed25519"),
    "an address of the web": elsewhere(lambda one: f"{one.url}/creds"),
    "a chain": elsewhere(lambda one: f"simplecache::{one.url}/creds"),
    "a chain below the source": elsewhere(lambda one: f"{one.out.parent}/in/{FORGED}::{one.url}/x"),
    "a video": elsewhere(lambda one: f"{one.secret}#frame=0"),
    "a member of an archive": elsewhere(lambda one: f"{one.secret}.tar#id#at=0"),
    "manifest of another sequence": in_manifest(sequence_id=GOOD),
    "manifest of a way up": in_manifest(sequence_id="../../x"),
    "manifest without chunks of lists": in_manifest(chunks={}),
    "manifest of another form": in_manifest(chunks=[7]),
    "manifest with a negative count": in_record(frames=-1),
    "manifest with another count": in_record(instances=10**15),
    "manifest with other failures": in_record(failed=3),
    "manifest of a way out": in_record(stem="labels/../../../etc/000000-000004-ab"),
    "manifest with chunks twice": chunks_again,
    "manifest of another key": in_record(key="ab"),
    "manifest of another camera": in_record(camera="x"),
    "manifest of many levels": in_manifest(more=json.loads("[" * 200 + "]" * 200)),
    "manifest that is a pipe": lambda storage: as_pipe(storage.manifest()[0]),
    "manifest without a byte": lambda storage: storage.manifest()[0].write_bytes(b""),
    "manifest without a stamp": in_manifest(stamp=None),
}  # fmt: skip


def tracks(made=None, **values):
    """A table of tracks for the right labels, with something wrong in its first row."""

    def change(storage):
        path, found = storage.manifest()
        manifest = manifests.read_manifest(
            str(storage.out), path.parent.name, FORGED, found["content_key"]
        )
        frames = manifests.labels_of(str(storage.out), manifest, manifest.chunks[0])
        parts = [
            tables.track_columns(one.frame, np.arange(len(one.boxes)), one.boxes.labels)
            for one in frames
        ]
        for column, value in values.items():
            parts[0][column] = [value, *list(parts[0][column])[1:]]
        about = {"key": store_tracks._key(manifest), "made": {} if made is None else made}
        target = storage.out / store_tracks.path_of(manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tables.encode_table("tracks", parts, about))

    return change


def file(path, **values):
    """A file of ours, as far as its checksum goes."""

    def change(storage):
        run = storage.manifest()[0].parent.name
        target = storage.out / path.format(run=run)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(checksums.encode_json(values))

    return change


def as_pipe(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def pipe(path):
    def change(storage):
        manifest = storage.manifest()[0]
        as_pipe(storage.out / path.format(key=manifest.stem, run=manifest.parent.name))

    return change


def named(name):
    """A copy of the manifest, of any name."""

    def change(storage):
        path = storage.manifest()[0]
        (path.parent / os.fsdecode(name)).write_bytes(path.read_bytes())

    return change


def interpolated(*sizes_hw):
    """Labels between frames, as the tracks say; of these sizes in pixels."""

    def change(storage):
        path, found = storage.manifest()
        manifest = manifests.read_manifest(
            str(storage.out), path.parent.name, FORGED, found["content_key"]
        )
        labeled = manifests.labels_of(str(storage.out), manifest, manifest.chunks[0])
        frame, count = labeled[0].frame, len(sizes_hw)
        boxes = Boxes(np.tile(np.float32([0, 0, 9, 9]), (count, 1)), np.ones(count, np.float32),
                      ("car",) * count)  # fmt: skip
        ones = np.ones(count, np.float32)
        rle = [RLEMask.ones(size_hw).to_dict()["counts"] for size_hw in sizes_hw]
        areas_px = np.prod(sizes_hw, axis=1)
        masks = Masks(tuple(rle), (9, 9), ones, ones, ones, areas_px, ("",) * count)
        columns = tables.mask_columns(frame, boxes, masks)
        columns["height"], columns["width"] = np.array(sizes_hw).T
        data = tables.encode_table("masks", [columns], {"key": store_tracks._key(manifest)})
        target = storage.out / store_tracks._path_of_more(manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        made = {"interpolated": {"labels": count, "sha256": checksums.sha256_of(data)}}
        tracks(made)(storage)

    return change


# Of these some mean nothing and others cost the sequence: never more than that.
BESIDE_LABELS = {
    "track of another frame": tracks(index=77),
    "track of another camera": tracks(camera="x"),
    "track without a label": tracks(track_label=None),
    "track of a label that clears the screen": tracks(track_label="\x1b[2J"),
    "track without a number": tracks(track_id=None),
    "negative track": tracks(track_id=-(2**63)),
    "track of another box": tracks(box_index=5),
    "tracks made of nothing": tracks(made=7),
    "gaps of another form": tracks(made={"interpolated": 7}),
    "gaps that are not there": tracks(made={"interpolated": {"sha256": "ab"}}),
    "tracks that are a pipe": pipe("tracks/{run}/{key}.parquet"),
    "interpolated masks of another size": interpolated((5, 5)),
    "manifest of another name": named(b"x.json"),
    "manifest of a name that is no text": named(b"e\xff@aa.json"),
    "report that is a pipe": pipe("reports/{run}/{key}.json"),
    "report": file("reports/{run}/drive@x.json", certificate="x", frames=-1, seconds="\x1b[2J"),
    "roots": file("roots/0-x.json", roots=[{"address": "/", "format": 7}]),
    "roots that are none": file("roots/0-x.json", roots=7),
    "event": file("reviews/forged/events/x.json", events=[{"action": 7}]),
    "events that are none": file("reviews/forged/events/x.json", events=7),
    "given up": file("quarantine/{run}/drive@x.json", reason=["\x1b[2J"]),
    "loaded": file("loaded/{run}/drive@x.json", at=7),
    "mixed": file("mixed/{run}/drive@x.json", mixed=7),
    "manifest of nothing": file("manifests/{run}/x@y.json", sequence_id="x"),
    "partial manifest of nothing": file("partial/{run}/x@y.json", chunks=7),
    "manifest of a run that is none": file("manifests/..x/x@y.json", stamp={}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that only this machine reaches, and what it was asked for."""
    asked = []

    class Handler(QuietHandler):
        def send_head(self):
            asked.append(self.path)
            return super().send_head()

    folder = tmp_path_factory.mktemp("private")
    (folder / "creds").write_bytes(SECRET)
    with serve(folder, Handler) as url:
        yield url, asked


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """Two sequences, and a truth for one frame of each."""
    folder = tmp_path_factory.mktemp("forged")
    run_of(folder, (FORGED, GOOD), frames=3, each=3)
    shutil.rmtree(folder / "run" / "tracks", ignore_errors=True)
    secret = folder / "secret" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_bytes(SECRET)
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], "iscrowd": 0,
                  "segmentation": [[1, 1, 10, 1, 10, 10, 1, 10]], "area": 81}  # fmt: skip
    truth = {"images": [{"id": 1, "file_name": f"{GOOD}/000000.jpg", "height": 720, "width": 1280}],
             "annotations": [annotation], "categories": [{"id": 1, "name": "car"}]}  # fmt: skip
    (folder / "truth.json").write_text(json.dumps(truth))
    return folder


@pytest.fixture
def forged(labeled, server):
    out = labeled / "copy"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(labeled / "run", out)
    yield Storage(out, labeled / "secret" / "id_ed25519", server[0])
    for name in ("export", "measured"):
        shutil.rmtree(labeled / name, ignore_errors=True)


def said_by(*asked):
    """Run a command; returns what it says. It ends by itself, or with a sentence for its user."""
    result = CliRunner().invoke(cli, list(map(str, asked)))
    assert isinstance(result.exception, SystemExit | AutolabelError | None), result.exc_info
    return result.output + str(result.exception or "")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_forged_is_left_out_in_words(name, forged, server):
    folder = forged.out.parent
    measured = folder / "measured"  # who finds damage takes the manifest back
    shutil.copytree(forged.out, measured)
    for out in (forged.out, measured):
        REFUSED[name](replace(forged, out=out))
    said_by("status", forged.out)
    asked = ("evaluate", folder / "truth.json", "--images", folder / "in", "--out", measured)
    assert "miou" in said_by(*asked)
    said = said_by("export", forged.out, "--format", "coco", "--to", folder / "export")
    assert f"left out: sequence {FORGED}: " in said
    found = json.loads((folder / "export" / "annotations" / "instances.json").read_text())
    assert {Path(one["file_name"]).parent.name for one in found["images"]} == {GOOD}
    assert not any(SECRET in one.read_bytes() for one in folder.glob("export/**/*.*"))
    assert not server[1], "a server of the private network was asked"


@pytest.mark.parametrize("name", BESIDE_LABELS)
def test_what_is_forged_beside_labels_costs_no_other_sequence(name, forged, server):
    BESIDE_LABELS[name](forged)
    folder = forged.out.parent
    said_by("status", forged.out)
    said_by("export", forged.out, "--format", "coco", "--to", folder / "export", "--track-classes")
    found = json.loads((folder / "export" / "annotations" / "instances.json").read_text())
    assert GOOD in {Path(one["file_name"]).parent.name for one in found["images"]}
    assert not server[1], "a server of the private network was asked"


@pytest.mark.parametrize("name", ["text of 30 MB in every row", "2 million rows"])
def test_what_unpacks_to_gigabytes_is_refused_before(name, forged):
    REFUSED[name](forged)
    to = forged.out.parent / "export"
    assert "are too many" in said_by("export", forged.out, "--format", "coco", "--to", to)


@pytest.mark.parametrize("forge", [
    in_record(instances=2**40),
    in_manifest(frames_uri="/x\0y"),
    in_manifest(frames_uri="\ud800"),
])  # fmt: skip
def test_manifests_of_absurd_values_are_none(forge, forged):
    path, found = forged.manifest()
    forge(forged)
    with pytest.raises(AutolabelError, match="is not a manifest"):
        manifests.read_manifest(str(forged.out), path.parent.name, FORGED, found["content_key"])


@pytest.mark.parametrize("certificate", [["verdict"], 7, {"verdict": 7}])
def test_certificates_of_another_form_are_told_as_they_are(certificate, forged):
    path, found = forged.manifest()
    manifest = manifests.read_manifest(
        str(forged.out), path.parent.name, FORGED, found["content_key"]
    )
    stamp = replace(manifest.stamp, parameters={"allow_uncertified": True})
    manifest = replace(manifest, stamp=stamp)
    manifests.write_report(str(forged.out), manifest, {"certificate": certificate})
    verdict = "7" if isinstance(certificate, dict) else "unknown"
    assert uncertified_runs(str(forged.out), [manifest]) == {stamp.run_key: verdict}


def test_films_of_times_far_apart_are_written(forged):
    for row, time_ns in enumerate((-(2**62), 2**62, 0)):
        cell("frames", "timestamp_ns", time_ns, row)(forged)
    to = forged.out.parent / "export"
    said = said_by("export", forged.out, "--format", "overlay", "--to", to)
    assert "6 frames" in said
    assert len(list(to.rglob("*.mp4"))) == 2


def test_what_is_no_picture_is_not_copied_whatever_its_version(labeled, forged):
    link = labeled / "in" / FORGED / "key.jpg"
    link.symlink_to(forged.secret)
    cell("frames", "uri", str(link))(forged)
    cell("frames", "etag", file_version(link))(forged)
    said = said_by("export", forged.out, "--format", "coco", "--to", labeled / "export")
    link.unlink()
    assert "left out: 1 (frame whose picture has changed since)" in said
    assert not any(SECRET in one.read_bytes() for one in labeled.glob("export/**/*.*"))


def test_pictures_of_another_machine_are_read_below_a_named_source(labeled, tmp_path, own_cache):
    asked = ("export", labeled / "run", "--format", "coco", "--to")
    said = said_by(*asked, tmp_path / "a")
    assert "this machine has labeled nothing from there" in said
    assert not (tmp_path / "a").exists()
    assert "6 frames" in said_by(*asked, tmp_path / "b", "--pictures", "none")
    assert "6 frames" in said_by(*asked, tmp_path / "c", "--source", labeled / "in")
    assert "6 frames" in said_by(*asked, tmp_path / "d"), "it is remembered"
    assert len(list((tmp_path / "d").rglob("*.jpg"))) == 6


@pytest.mark.ci
def test_what_is_forged_is_left_out_of_a_rebuilt_dataset(labeled, server, database):
    """Of all in one process, as a database takes seconds to start."""
    folder = labeled / "rebuilt"
    for number, (name, forge) in enumerate(REFUSED.items()):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(labeled / "run", folder)
        forge(Storage(folder, labeled / "secret" / "id_ed25519", server[0]))
        said = said_by("review", "rebuild", f"forged-{number}", "--out", folder)
        assert f"left out: sequence {FORGED}: " in said, name
        assert "3 frames" in said, name
        assert not server[1], name
