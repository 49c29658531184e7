"""Input, boxes and output on a real S3 endpoint over HTTP."""

import s3fs

from tests.integration.dataset_rows import all_documents, held
from tests.integration.runs import write_sequence


def test_bucket_in_bucket_out(s3, terminal, tmp_path, monkeypatch):
    """With credentials that are in no dataset and no message."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"planted-{name}")
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 3)
    store = s3fs.S3FileSystem()
    bucket = s3.removeprefix("s3://")
    store.put(str(tmp_path / "in"), f"{bucket}/in", recursive=True)
    store.put(str(tmp_path / "boxes"), f"{bucket}/boxes", recursive=True)
    arguments = [f"{s3}/in", "--boxes", f"{s3}/boxes", "--out", f"{s3}/out"]

    first, said = terminal.label(*arguments, "--dataset", "bucket")
    assert (first["frames"], first["instances"], first["failed"]) == (3, 6, [])
    written = sorted(store.find(f"{bucket}/out/labels"))
    assert [path.rsplit(".", 2)[1] for path in written] == ["boxes", "frames", "masks"]
    documents = "".join(all_documents())
    assert f"{s3}/in/drive/0000.jpg" in documents
    assert "planted-AWS" not in documents + said + str(first)
    rows = held("bucket")["rows"]
    assert len(rows) == 3
    assert all(row["file"].startswith(str(tmp_path / "cache")) for row in rows)

    store.rm(f"{bucket}/in/drive/0001.jpg")
    again, _ = terminal.label(*arguments, "--no-dataset")
    assert (again["frames"], again["sequences"]) == (2, 1)
    assert again["skipped"] == 0, "other frames, another chunk"
    _, told = terminal.label(f"{s3}-not-there/in", *arguments[1:], "--no-dataset", code=2)
    assert "not-there" in told
    assert "planted-AWS" not in told
