"""No byte in storage can change without being noticed, and no name in it leads away."""

import io
import json
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sam2_core.types import Boxes
from tasks.store import checksums, manifests, quarantine, storage, tables
from tasks.store.artifacts import (
    content_key,
    find_boxes,
    find_chunk,
    place_of,
    read_chunk,
    write_boxes,
    write_labels,
)
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import ChunkRecord, Manifest, labels_of, read_manifest, write_manifest
from tasks.store.quarantine import Case
from tests.store.test_artifacts import STAMP, a_chunk, assert_same

SAMPLED = 600


@pytest.fixture
def stored(memory):
    """A chunk with its boxes and its manifest, as a run leaves them."""
    chunk, outcomes = a_chunk()
    boxes = {one.frame.index: one.boxes for one in outcomes if one.failure is None}
    write_boxes(memory, chunk, boxes, STAMP)
    write_labels(memory, chunk, outcomes, STAMP)
    record = ChunkRecord.of(chunk, outcomes)
    record = record.with_checksums(read_chunk(memory, chunk.stem, chunk.key))
    key = content_key(chunk.frames)
    manifest = Manifest("drive", "s3://b/drive", key, STAMP, (record,))
    write_manifest(memory, manifest)
    return memory, chunk, manifest, outcomes


def mutations(data, most):
    """Every byte with one bit flipped, zeroed, and the file cut there; `most` of them."""
    every = [(at, how) for at in range(len(data)) for how in ("flip", "zero", "cut")]
    dice = random.Random(0)
    for at, how in every if len(every) <= most else dice.sample(every, most):
        changed = bytearray(data)
        if how == "cut":
            del changed[at:]
        else:
            changed[at] = changed[at] ^ (1 << dice.randrange(8)) if how == "flip" else 0
        if changed != data:
            yield at, how, bytes(changed)


def never_read_as_something_else(data, read, most):
    """What a file is read as, after any change of a byte: the same, or it is refused."""
    good, refused = read(data), 0
    for at, how, changed in mutations(data, most):
        try:
            found = read(changed)
        except IncompleteArtifactError:
            refused += 1
            continue
        assert found == good, f"byte {at}, {how}: read as something else"
    return refused


@pytest.mark.parametrize(
    "most", [SAMPLED, pytest.param(10**9, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("kind", ["boxes", "masks", "frames"])
def test_a_changed_byte_of_a_table_is_always_noticed(stored, kind, most):
    out, chunk, _, _ = stored
    uri = storage.join(out, chunk.path(kind))
    data = storage.read_bytes(uri)

    def read(changed):
        table, metadata = tables.decode_table(changed, kind, chunk.key, "a file")
        return table.to_pydict() | metadata

    refused = never_read_as_something_else(data, read, most)
    assert refused == sum(1 for _ in mutations(data, most))  # the checksum leaves out no byte


def test_a_changed_byte_of_a_manifest_is_noticed_or_changes_nothing(stored):
    out, _, manifest, _ = stored
    uri = storage.join(out, manifest.uri)

    def read(changed):
        storage.write_bytes(uri, changed)
        return read_manifest(out, STAMP.run_key, "drive", manifest.content_key)

    assert never_read_as_something_else(storage.read_bytes(uri), read, 2 * SAMPLED) > SAMPLED


def test_a_damaged_table_is_made_again_and_a_damaged_report_still_gives_up(stored):
    out, chunk, _, outcomes = stored
    for kind in ("boxes", "masks", "frames"):
        uri = storage.join(out, chunk.path(kind))
        data = storage.read_bytes(uri)
        for bad in (b"\xff\xfe" * 40, data.replace(b"sources", b"source\xff"), data + b"x"):
            storage.write_bytes(uri, bad)
            assert (find_boxes if kind == "boxes" else find_chunk)(out, chunk) is None
        storage.write_bytes(uri, data)
    assert find_boxes(out, chunk) is not None
    for before, after in zip(outcomes, find_chunk(out, chunk).labeled, strict=True):
        assert_same(before, after)
    case = Case(out, STAMP.run_key, "drive", "k")
    assert quarantine.note_failure(case, "run", "cannot be decoded", final=True)
    storage.write_bytes(case.report_uri, storage.read_bytes(case.report_uri)[:-9] + b"\xff")
    assert not quarantine.note_failure(case, "another run", "cannot be decoded", final=True)


def test_other_programs_read_the_tables_as_any_parquet(stored, tmp_path):
    out, chunk, _, outcomes = stored
    path = tmp_path / "masks.parquet"
    path.write_bytes(storage.read_bytes(storage.join(out, chunk.path("masks"))))
    found = ds.dataset(path)
    assert found.count_rows() == sum(len(one.boxes) for one in outcomes)
    assert {b"checksum", b"key", b"stamp"} <= set(found.schema.metadata)
    assert found.to_table()["label"].unique().to_pylist() == ["car"]


# What somebody who can write to storage could leave there: sealed, and not what its place says.


def forged(uri, kind, change):
    """Replace columns of a stored table, and seal it again."""
    table = pq.read_table(io.BytesIO(storage.read_bytes(uri)))
    metadata = dict(table.schema.metadata)
    columns = change(table.to_pydict(), metadata)
    metadata[b"checksum"] = checksums.UNSEALED.encode()
    table = pa.Table.from_pydict(columns, schema=tables.SCHEMAS[kind].with_metadata(metadata))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    storage.write_bytes(uri, checksums.seal_parquet(buffer.getvalue()))


def column(name, value):
    def change(columns, _):
        columns[name] = [value(v) for v in columns[name]]
        return columns

    return change


LIES = {
    "sequence": ("frames", column("sequence_id", lambda _: "../../x")),
    "camera": ("frames", column("camera", lambda _: "../../x")),
    "none": ("frames", column("sequence_id", lambda _: None)),
    "frames": ("frames", column("index", lambda index: index + 1)),
    "masks": ("masks", column("index", lambda index: index + 1)),
    "boxes": ("boxes", column("index", lambda index: index + 1)),
}


@pytest.mark.parametrize(("kind", "lie"), LIES.values(), ids=LIES)
def test_labels_of_other_names_than_their_place_are_refused(stored, kind, lie):
    out, chunk, manifest, _ = stored
    forged(storage.join(out, chunk.path(kind)), kind, lie)
    if kind == "boxes":
        assert find_boxes(out, chunk) is None
        return
    assert find_chunk(out, chunk) is None
    for read in (
        lambda: read_chunk(out, chunk.stem, chunk.key),
        lambda: labels_of(out, manifest, manifest.chunks[0]),
    ):
        with pytest.raises(IncompleteArtifactError, match=chunk.key):
            read()


@pytest.mark.parametrize(
    "change",
    [
        column("uri", lambda uri: uri + "x"),
        column("etag", lambda _: "another"),
        lambda columns, metadata: metadata.update(
            {b"stamp": json.dumps(replace(STAMP, detector="other").as_json()).encode()}
        ) or columns,
        lambda columns, metadata: metadata.update({b"stamp": b"{}"}) or columns,
        lambda columns, metadata: metadata.pop(b"stamp") and columns,
        lambda columns, metadata: metadata.update({b"stamp": b"\xff"}) or columns,
    ],
    ids=["uri", "etag", "run", "no run", "no stamp", "not UTF-8"],
)  # fmt: skip
def test_a_chunk_whose_frames_do_not_give_its_key_is_refused(stored, change):
    out, chunk, _, _ = stored
    forged(storage.join(out, chunk.path("frames")), "frames", change)
    with pytest.raises(IncompleteArtifactError):
        read_chunk(out, chunk.stem, chunk.key)
    assert find_chunk(out, chunk) is None


@pytest.mark.parametrize(
    "stem",
    [
        "labels/drive/_/000000-000005", "labels/../x/000000-000005-ab", "labels/a/b/c/1-2-ab",
        "labels/drive/../000000-000005-ab", "other/drive/_/000000-000005-ab", "labels/a\\b/_/x",
        "labels//_/000000-000005-ab", "/labels/drive/_/000000-000005-ab",
    ],
)  # fmt: skip
def test_no_path_but_that_of_labels_is_a_place(stem):
    with pytest.raises(IncompleteArtifactError):
        place_of(stem)


def test_labels_written_after_their_manifest_are_noticed_and_its_sequence_is_made_again(stored):
    out, chunk, manifest, outcomes = stored
    assert len(labels_of(out, manifest, manifest.chunks[0])) == 5
    moved = replace(outcomes[0], boxes=Boxes(
        outcomes[0].boxes.xyxy_px + 1, outcomes[0].boxes.scores, outcomes[0].boxes.labels,
        outcomes[0].boxes.track_ids, outcomes[0].boxes.source,
    ))  # fmt: skip
    write_labels(out, chunk, [moved, *outcomes[1:]], STAMP)
    assert find_chunk(out, chunk) is not None  # whole, and yet not what the manifest names
    with (
        pytest.raises(IncompleteArtifactError, match=r"after the manifest.*run again"),
        manifests.withdrawn_if_damaged(out, manifest),
    ):
        labels_of(out, manifest, manifest.chunks[0])
    assert manifests.complete_keys(manifests.list_manifests(out, STAMP.run_key)) == set()


def test_the_checksum_survives_a_class_that_quotes_it(memory):
    chunk, _ = a_chunk(1)
    boxes = Boxes(np.ones((1, 4)), np.ones(1), (checksums.UNSEALED,), None, checksums.UNSEALED)
    write_boxes(memory, chunk, {0: boxes}, STAMP)
    assert find_boxes(memory, chunk)[0].labels == (checksums.UNSEALED,)


def test_memory_that_a_table_lacks_is_no_damage(stored, monkeypatch):
    def none(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 1099511627776 failed")

    monkeypatch.setattr(tables.pq.ParquetFile, "read", none)
    out, _, manifest, _ = stored
    with pytest.raises(MemoryError, match="malloc of size"):
        labels_of(out, manifest, manifest.chunks[0])


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_whole_numbers_that_no_database_has_are_refused_in_what_lies_beside_a_table(number):
    values = {"key": "k", "followed": {"0": [number]}}
    for read in (
        lambda: tables.decode_table(tables.encode_table("masks", [], values), "masks", "k", "it"),
        lambda: checksums.decode_json(checksums.encode_json(values), "it"),
    ):
        with pytest.raises(IncompleteArtifactError, match=r"it is .* beyond 64 bits"):
            read()
