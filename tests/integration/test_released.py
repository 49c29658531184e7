"""What the last release stored is read, resumed, reviewed and exported, from storage alone, too."""

import json
import shutil
import subprocess
import sys

import pytest
import s3fs

from flows.plan import plan
from sam2_core.backends import model_folder
from tasks.dataset.schema import open_dataset
from tasks.review.actions import accept
from tests.integration import released
from tests.integration.runs import REPOSITORY, Home
from tests.review.reviewed import pick, state

DECIDE = """
from tasks.dataset.database import ensure_database
ensure_database()
from tasks.review.actions import accept, delete, fix_class, reject
from tests.review.reviewed import pick
accept(*pick("drives", 0, 0))
reject(*pick("drives", 0, 1))
fix_class(*pick("drives", 1, 0), "tram")
delete(*pick("drives", 2, 1))
"""


def files_in(uri):
    """Paths and etags of everything below an address."""
    return {name: one["ETag"] for name, one in s3fs.S3FileSystem().find(uri, detail=True).items()}


@pytest.fixture
def labels(s3, monkeypatch, terminal):
    """Address of labels of the last release, whose dataset is in the database."""
    released.upload()
    released.restore_database()
    stamp = json.loads(next(released.FOLDER.glob("labels/manifests/*/*")).read_text())["stamp"]
    # Code that decides labels may change, and labels anew (DECISIONS.md, 2). Formats may not.
    monkeypatch.setattr(plan, "LABELS_VERSION", stamp["code"])
    monkeypatch.setattr(model_folder, "LABELS_VERSION", stamp["model"]["code_version"])
    yield f"{released.BUCKET}/labels"
    open_dataset(released.DATASET).delete()
    s3fs.S3FileSystem().rm(released.BUCKET, recursive=True)


def test_labels_dataset_and_decisions_of_the_last_release_are_todays(labels, terminal, tmp_path):
    decided, files = state(released.DATASET), files_in(labels)
    told, _ = terminal.run(*released.LABEL)
    assert (told["frames"], told["skipped"]) == (3, 3)
    assert state(released.DATASET) == decided
    open_dataset(released.DATASET).delete()
    told, _ = terminal.run("review", "rebuild", released.DATASET, "--out", labels, "--json")
    assert (told["frames"], told["set_aside_frames"]) == (3, 0)
    assert state(released.DATASET) == decided, "storage alone has every decision"
    assert files_in(labels) == files, "nothing is labeled again"

    accept(*pick(released.DATASET, 2, 0))
    told, _ = terminal.run(
        "export", released.DATASET, "--format", "coco", "--to", tmp_path / "coco", "--json"
    )
    assert told["instances"] == 5, "one of six was rejected, another one is a tram now"
    assert told["classes"] == ["car", "tram", "truck"]


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_machine_that_is_lost_costs_no_decision_and_no_label(upload, tmp_path, s3):
    """Its MongoDB, its PostgreSQL and its cache are gone; storage is all that a new one has."""
    label = [*upload(1, 20), "--dataset", "drives"]  # so many frames go through Prefect

    def decisions(home):
        target = home.folder / "reviewed"
        export = ["export", "drives", "--reviewed", "--format", "coco", "--pictures", "none"]
        told, _ = home.run(*export, "--to", target, "--json")
        return told["decisions"], (target / "annotations" / "instances.json").read_text()

    lost, new = Home(tmp_path / "lost"), Home(tmp_path / "new")
    lost.label(*label)
    subprocess.run([sys.executable, "-c", DECIDE], cwd=REPOSITORY, env=lost.environment, check=True)
    decided, files = decisions(lost), files_in(f"{s3}/out/labels")
    assert (decided[0]["accepted"], decided[0]["corrected"]) == (1, 1)
    assert {path.name for path in (lost.folder / "cache").iterdir()} >= {"frames", "sources"}
    shutil.rmtree(lost.folder)
    rebuild = ["review", "rebuild", "drives", "--out", f"{s3}/out", "--source", f"{s3}/in"]
    assert new.run(*rebuild, "--json")[0]["frames"] == 20
    assert decisions(new) == decided
    (there,) = new.run("status", f"{s3}/out", "--json")[0]["labels"]
    assert (there["frames"], there["reviewed_datasets"]) == (20, ["drives"])
    told, _ = new.label(*label)
    assert (told["frames"], told["skipped"]) == (20, 20)
    assert files_in(f"{s3}/out/labels") == files
