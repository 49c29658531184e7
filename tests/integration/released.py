"""Frames, labels, decisions and a dataset, as version 0.1.0 stores them: `tests/data/released`.

`pytest tests/integration/released.py` makes them anew: for a release, once what it stores is
final. Whoever changes a format afterwards writes a migration, and leaves these files alone.
"""

import gzip
import shutil

import s3fs
from bson import json_util

from tasks.dataset.layout import database
from tasks.review.actions import accept, fix_class, reject
from tests.integration.runs import MICRO, REPOSITORY, write_boxes, write_image
from tests.review.reviewed import pick

FOLDER = REPOSITORY / "tests" / "data" / "released"
_DATABASE = FOLDER / "dataset.json.gz"
BUCKET, DATASET = "s3://released", "released"
LABEL = (
    "label", f"{BUCKET}/drives", "--boxes", f"{BUCKET}/boxes", "--out", f"{BUCKET}/labels",
    "--model", MICRO, "--dataset", DATASET, "--json",
)  # fmt: skip


def upload(folder=FOLDER):
    """Put the files into their bucket, where they have the etags that their labels name."""
    s3fs.S3FileSystem().mkdir(DATASET)
    s3fs.S3FileSystem().put(f"{folder}/", f"{BUCKET}/", recursive=True)


def restore_database():
    """Put the dataset into FiftyOne's database."""
    for name, documents in json_util.loads(gzip.decompress(_DATABASE.read_bytes())).items():
        database()[name].insert_many(documents)


def test_what_is_stored_is_kept(terminal, s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "anna")
    for index in range(3):
        write_image(tmp_path / "in" / "drives" / "monday" / f"{index:04d}.jpg", index, (48, 80))
        lines = [f"car 0.9 28 {18 + index} 62 42", f"truck 0.8 20 {15 + index} 70 46"]
        write_boxes(tmp_path / "in" / "boxes" / "monday" / f"{index:04d}.txt", lines)
    upload(tmp_path / "in")
    terminal.run(*LABEL)
    accept(*pick(DATASET, 0, 0))
    reject(*pick(DATASET, 0, 1))
    fix_class(*pick(DATASET, 1, 0), "tram")
    shutil.rmtree(FOLDER)
    s3fs.S3FileSystem().get(f"{BUCKET}/", f"{FOLDER}/", recursive=True)
    stored = database().datasets.find_one({"name": DATASET})
    samples = stored["sample_collection_name"]
    copied = {"datasets": [stored], samples: list(database()[samples].find())}
    text = json_util.dumps(copied, sort_keys=True).replace(str(tmp_path), "/var/tmp")
    _DATABASE.write_bytes(gzip.compress(text.encode(), mtime=0))
