"""The demo: rendered on the spot, labeled with what the package carries, measured against truth."""

import pytest

from flows.cli import demo_run
from tests.integration.dataset_rows import held


def test_demo_twice(terminal, monkeypatch):
    small = (
        demo_run.DemoSequence("one", 900_005, 2),
        demo_run.DemoSequence("two-cameras", 900_009, 1, ("front", "front_left")),
    )
    monkeypatch.setattr(demo_run, "SEQUENCES", small)
    first, told = terminal.run("demo", "--json")
    assert (first["sequences"], first["frames"], first["failed"]) == (2, 4, [])
    assert first["compared_frames"] == 4
    assert first["true_instances"] > 10
    assert first["mask_miou_of_found"] > 0.5
    assert first["box_ap50"] > 0.3
    assert "autolabel review demo" in told
    second, _ = terminal.run("demo", "--json")
    assert second["skipped"] == 4
    numbers = ("mask_miou", "box_ap50", "instances", "true_instances")
    assert [second[name] for name in numbers] == [first[name] for name in numbers]

    dataset = held("demo")
    assert dataset["media_type"] == "group"
    assert len(dataset["rows"]) == 4
    from tasks.dataset.schema import open_dataset

    view = open_dataset("demo").select_group_slices(_allow_mixed=True)
    assert view.count("ground_truth.detections") == first["true_instances"]
    assert view.count("detections.detections") == first["instances"]


@pytest.mark.slow
def test_demo_as_a_user_starts_it(home):
    result, _ = home.run("demo", "--json")
    assert (result["sequences"], result["frames"], result["failed"]) == (3, 36, [])
    assert result["mask_miou_of_found"] > 0.6
    assert result["seconds"]["total"] < 180
