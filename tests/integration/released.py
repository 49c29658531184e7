"""Frames, labels, decisions and a dataset, as version 0.1.0 stores them: `tests/data/released`.

`python -m tests.integration.released` makes them anew: for a release, once what it stores is
final. Whoever changes a format afterwards writes a migration, and leaves these files alone.
"""

import gzip
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import s3fs
import simplejpeg
from bson import json_util

from tests.integration.runs import MICRO, REPOSITORY, write_boxes

FOLDER = REPOSITORY / "tests" / "data" / "released"
_COPY = FOLDER / "dataset.json.gz"
BUCKET, DATASET = "s3://released", "released"
LABEL = (
    "label", f"{BUCKET}/drives", "--boxes", f"{BUCKET}/boxes", "--out", f"{BUCKET}/labels",
    "--model", MICRO, "--dataset", DATASET, "--json",
)  # fmt: skip


def upload(folder: Path = FOLDER) -> None:
    """Put the files into their bucket, where they have the etags that their labels name."""
    s3 = s3fs.S3FileSystem()
    s3.mkdir(DATASET)
    s3.put(f"{folder}/", f"{BUCKET}/", recursive=True)


def restore_database() -> None:
    """Put the dataset into FiftyOne's database, as a copy of that database has it."""
    from tasks.dataset.layout import database

    for name, documents in json_util.loads(gzip.decompress(_COPY.read_bytes())).items():
        database()[name].insert_many(documents)


def _copy_database() -> str:
    from tasks.dataset.layout import database

    stored = database().datasets.find_one({"name": DATASET})
    samples = stored["sample_collection_name"]
    copied = {"datasets": [stored], samples: list(database()[samples].find())}
    text = json_util.dumps(copied, sort_keys=True)
    return text.replace(os.environ["AUTOLABEL_CACHE"], "/var/cache/autolabel")


def main() -> None:
    """Label a few frames, decide on some labels, and keep what that leaves."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    home = Path(tempfile.mkdtemp())
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AUTOLABEL_CACHE": str(home / "cache"), "AUTOLABEL_REVIEWER": "anna",
    }  # fmt: skip
    for index in range(3):
        picture = np.full((96, 160, 3), 90 + index, np.uint8)
        picture[20:60, 30:90] = (200, 40, 40)
        path = home / "in" / "drives" / "monday" / f"{index:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(picture))
        boxes = [f"car 0.9 28 {18 + index} 92 62", f"truck 0.8 20 {15 + index} 100 70"]
        write_boxes(home / "in" / "boxes" / "monday" / f"{index:04d}.txt", boxes)
    upload(home / "in")
    autolabel = Path(sys.executable).parent / "autolabel"
    subprocess.run([autolabel, *map(str, LABEL)], check=True, stdout=subprocess.DEVNULL)

    from tasks.dataset.database import ensure_database

    ensure_database()
    from tasks.review.actions import accept, fix_class, reject
    from tests.review.reviewed import pick

    accept(*pick(DATASET, 0, 0))
    reject(*pick(DATASET, 0, 1))
    fix_class(*pick(DATASET, 1, 0), "tram")
    shutil.rmtree(FOLDER, ignore_errors=True)
    s3fs.S3FileSystem().get(f"{BUCKET}/", f"{FOLDER}/", recursive=True)
    _COPY.write_bytes(gzip.compress(_copy_database().encode(), mtime=0))
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
