"""Labels that could not be loaded: told with their reason, and loaded by the same backfill."""

import pytest

from tests.integration.cluster import Cluster
from tests.integration.runs import MICRO, write_sequence


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_the_same_backfill_loads_what_could_not_be_loaded(tmp_path):
    for name in ("one", "two"):
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 2)
    (tmp_path / "masks").write_text("a file, and no folder for masks")
    arguments = [
        "backfill", tmp_path / "in", "--boxes", tmp_path / "boxes", "--out", tmp_path / "out",
        "--model", MICRO, "--dataset", "again", "--wait", "--json",
    ]  # fmt: skip
    with Cluster(tmp_path) as cluster:
        home = cluster.home
        broken = {"AUTOLABEL_MASK_DIR": str(tmp_path / "masks")}
        cluster.start_worker(**broken)
        done, told = home.run(*arguments, code=1)
        assert (done["remaining"], done["not_loaded"]) == (0, [])
        assert "masks" in done["failed"][0]["reason"]
        assert "autolabel review" not in told, "there is nothing to look at"
        (run,) = home.run("status", "--json", code=1)[0]["runs"]
        assert "were not loaded (" in run["to_do"][0]
        assert "masks" in run["to_do"][0]

        whole = dict(home.environment)
        home.environment |= broken
        done, told = home.run(*arguments, code=1)
        assert done["not_loaded"] == ["one", "two"]
        assert "masks" in done["failed"][0]["reason"]
        home.environment = whole

        done, told = home.run(*arguments)
        assert (done["submitted"], done["not_loaded"]) == (0, ["one", "two"])
        assert [len(one["rows"]) for one in home.datasets("again")] == [4]
