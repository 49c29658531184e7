"""Sixty sequences, two workers, S3 over HTTP."""

import os

import pytest

from tests.integration.cluster import Cluster, every_frame_once


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_sixty_sequences(upload, s3, tmp_path):
    count = int(os.environ.get("AUTOLABEL_SEQUENCES", "60"))
    arguments = [*upload(count, 12, "sixty"), "--shard-minutes", "0.8"]
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with Cluster(tmp_path, **environment) as cluster:
        cluster.start_worker(count=2)
        done = cluster.backfill(*arguments, "--wait")
        assert done["remaining"] == 0
        assert done["submitted"] >= 2
        again = cluster.backfill(*arguments)
        assert (again["submitted"], again["up_to_date"]) == (0, count)
    assert every_frame_once(f"{s3}/in", f"{s3}/out", done["run_key"]) == count
