"""The demo: drives of the package, labeled with what it carries, measured against their truth."""

import re
import shutil
import urllib.parse
import urllib.request

import cv2

from tasks.evaluate.evaluate import EXAMPLES
from tests.integration.dataset_rows import held


def test_demo_twice(terminal, monkeypatch, tmp_path):
    few = tmp_path / "few"
    for name, kept in (("street-a", 2), ("crossing-3-cameras", 1), ("real-3-cameras", 1)):
        shutil.copytree(EXAMPLES / name, few / name)
        for path in [
            one
            for one in (few / name).rglob("*.jpg")
            if one not in sorted(one.parent.iterdir())[:kept]
        ]:
            path.unlink()
    monkeypatch.setattr("flows.cli.demo.EXAMPLES", few)
    first, told = terminal.run("demo", "--json")
    assert (first["sequences"], first["frames"], first["failed"]) == (3, 8, [])
    assert first["compared_frames"] == 5
    assert first["true_instances"] > 10
    assert first["mask_miou_of_found"] > 0.5
    assert first["box_ap50"] > 0.3
    *_, last, backfill = told.splitlines()
    assert "autolabel up" in backfill
    assert last.endswith("autolabel review demo")
    (picture,) = re.findall(r"a frame of the real drive: (file:\S+),", last)
    assert (
        cv2.imread(urllib.request.url2pathname(urllib.parse.urlparse(picture).path)).shape[2] == 3
    )
    second, _ = terminal.run("demo", "--json")
    assert second["skipped"] == 8
    numbers = ("mask_miou", "box_ap50", "instances", "true_instances")
    assert [second[name] for name in numbers] == [first[name] for name in numbers]

    dataset = held("demo")
    assert dataset["media_type"] == "group"
    assert len(dataset["rows"]) == 8
    from tasks.dataset.schema import open_dataset

    view = open_dataset("demo").select_group_slices(_allow_mixed=True)
    assert view.count("ground_truth.detections") == first["true_instances"]
    assert view.count("detections.detections") == first["instances"]
