"""What changed between two runs is what a backfill labels again, through the commands."""

import pytest

from tests.integration.runs import write_boxes, write_sequence


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_backfill_labels_exactly_the_sequences_that_an_evaluation_lists(cluster, tmp_path):
    for name in ("alpha", "beta", "gamma"):
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 2)
    given = [tmp_path / "in", "--boxes", tmp_path / "boxes"]
    runs = [tmp_path / "first", tmp_path / "second"]
    for out in runs:
        cluster.home.label(*given, "--no-dataset", "--out", out)
        write_boxes(tmp_path / "boxes" / "beta" / "0001.txt", ["car 0.9 20 15 60 40"])
    report = tmp_path / "report"
    first, second = runs
    told, _ = cluster.home.run(
        "evaluate", f"run:{first}", "--out", second, "--report", report, "--json"
    )
    assert told["changes"]["sequences"] == ["beta"]
    done = cluster.backfill(
        *given, "--out", tmp_path / "new", "--sequences", f"@{report / 'changed.txt'}", "--wait"
    )
    assert (done["sequences"], done["frames"], done["remaining"]) == (1, 2, 0)
    manifests = (tmp_path / "new" / "manifests").rglob("*.json")
    assert [path.name.partition("@")[0] for path in manifests] == ["beta"]
