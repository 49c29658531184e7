"""Workers with an engine that computes something else: nothing is labeled, whatever the fault."""

import json

import numpy as np
import pytest
from PIL import Image

from sam2_core.trust.certify import certificates
from tests.integration.cluster import Cluster
from tests.integration.runs import REPOSITORY, write_boxes
from tests.planted_graphs import FAULTS, RESIZE, copy_of_compact, plant

# Read by every Python of the cluster at its start; the flag's file says whether the fault is there.
SITECUSTOMIZE = """
import os
if os.path.exists(os.environ["NO_ANTIALIAS"]):
    import sam2_core.segmenter
    from tests.planted_graphs import resized_without_antialias
    sam2_core.segmenter.resize_square = resized_without_antialias
"""


@pytest.fixture
def fragile_workers(tmp_path):
    """A cluster whose workers' resize can be broken; yields it and the flag's file."""
    flag, code = tmp_path / "no-antialias", tmp_path / "site"
    code.mkdir()
    (code / "sitecustomize.py").write_text(SITECUSTOMIZE)
    more = {"PYTHONPATH": f"{code}:{REPOSITORY}", "NO_ANTIALIAS": str(flag)}
    with Cluster(tmp_path, **more) as cluster:
        cluster.start_worker(count=4)
        yield cluster, flag


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_a_worker_refuses_every_planted_fault_and_labels_say_if_that_was_overridden(
    fragile_workers, tmp_path
):
    cluster, flag = fragile_workers
    source = tmp_path / "in" / "drive"
    source.mkdir(parents=True)
    Image.fromarray(np.full((64, 96, 3), 90, np.uint8)).save(source / "0.png")
    write_boxes(tmp_path / "boxes" / "drive" / "0.txt", ["car 0.9 5 5 40 40"])

    def backfill(fault, *more):
        model = tmp_path / fault.replace(" ", "-")
        if not model.exists():
            copy_of_compact(model)
            plant(model, fault) if fault in FAULTS else flag.touch()
        return cluster.home.start(
            "backfill", tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes",
            "--model", model, "--backend", "onnxruntime-cpu", "--no-dataset", "--json", "--wait",
            *more,
        )  # fmt: skip

    def refused(process):
        output, errors = process.communicate(timeout=400)
        assert process.returncode == 1, errors[-3000:]
        done = json.loads(output)
        assert (done["states"], done["remaining"]) == ({"Failed": 1}, 1)
        assert "may not label" in done["failed"][0]["reason"]

    for process in [backfill(fault) for fault in FAULTS]:
        refused(process)
    refused(backfill(RESIZE))
    assert not list((tmp_path / "out").rglob("*.masks.parquet"))
    assert not list((tmp_path / "out").rglob("quarantine/*"))  # it is no sequence's fault
    verdicts = [one.verdict for one in certificates(tmp_path / "home" / "cache")]
    assert verdicts == ["failed"] * (len(FAULTS) + 1)

    output, errors = backfill(RESIZE, "--allow-uncertified").communicate(timeout=400)
    done = json.loads(output)
    assert (done["states"], done["remaining"]) == ({"Completed": 1}, 0), errors[-3000:]
    (manifest,) = (tmp_path / "out" / "manifests" / done["run_key"]).glob("*.json")
    assert json.loads(manifest.read_text())["stamp"]["parameters"]["allow_uncertified"] is True
