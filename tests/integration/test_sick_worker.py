"""A worker whose GPU is lost while it labels: real server, worker and processes, a fake GPU."""

import shutil
import time

import pytest

from tasks.store import quarantine, storage
from tests.integration.cluster import Cluster, ended, every_frame_once, wait_for
from tests.integration.fake_gpu import SITECUSTOMIZE
from tests.integration.runs import MICRO, REPOSITORY, write_sequence
from tests.integration.test_workers import history


@pytest.mark.ci
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="no C++ compiler")
@pytest.mark.timeout(900)
def test_a_worker_that_loses_its_gpu_takes_no_more_until_it_is_well(tmp_path):
    for number in range(2):
        write_sequence(tmp_path / "in" / f"drive{number}", tmp_path / "boxes", 60)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    device = tmp_path / "device"
    device.mkdir()
    (device / "breaks").touch()
    more = {"PYTHONPATH": f"{tmp_path / 'site'}:{REPOSITORY}", "FAKE_GPU": str(device)}
    with Cluster(tmp_path, **more) as cluster:
        out = str(tmp_path / "out")
        done, _ = cluster.home.run(
            "backfill", tmp_path / "in", "--out", out, "--boxes", tmp_path / "boxes",
            "--model", MICRO, "--backend", "onnxruntime-cuda", "--precision", "fp32",
            "--no-dataset", "--json", "--shard-minutes", "0.02",
        )  # fmt: skip
        assert done["submitted"] == 2
        key = done["run_key"]
        cluster.start_worker(CUDA_VISIBLE_DEVICES="0", AUTOLABEL_DEVICE_PROCESSES="1")

        def told(*words):
            return all(one in cluster.log("worker0") for one in words)

        wait_for(
            lambda: told(
                "takes no more until this machine is tested", "takes no work: its device failed"
            ),
            200,
        )
        assert not (device / "breaks").exists()
        states = {}

        def all_given_back():
            states.update({one["id"]: history(cluster, one["id"]) for one in cluster.runs(key)})
            return all(
                one.count("Running") == one.count("AwaitingRetry") for one in states.values()
            )

        # The other shard may have been taken before the worker was ended: then it, too, was given
        # back.
        wait_for(all_given_back, 60)
        begun = [one for one, names in states.items() if "Running" in names]
        backs = [
            one["message"]
            for run in begun
            for one in cluster.get(f"flow_run_states/?flow_run_id={run}")
            if one["name"] == "AwaitingRetry"
        ]
        assert sum("the GPU is lost" in back for back in backs) >= 1, backs
        time.sleep(5)  # the other shard has been due all the time
        before = dict(states)
        assert all_given_back()
        assert {one: names.count("Running") for one, names in states.items()} == {
            one: names.count("Running") for one, names in before.items()
        }

        (device / "sick").unlink()
        wait_for(lambda: ended(cluster, key), 200)
        assert ended(cluster, key) == {"Completed"}
        for run, names in states.items():
            now = history(cluster, run)
            assert now.count("Running") == names.count("Running") + 1, now
            assert "Crashed" not in now
        assert every_frame_once(str(tmp_path / "in"), out, key) == 2
        assert not quarantine.listed(out, key)
        attempts = f"{out}/attempts/{key}"
        noted = [storage.list_names(f"{attempts}/{one}") for one in storage.list_folders(attempts)]
        assert not any(noted)
