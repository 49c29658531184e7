"""Labels sent back: asked for, made again, kept; failures are told."""

from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from sam2_core.types import AutolabelError
from tasks.dataset import schema
from tasks.load import into_fiftyone as load
from tasks.review.actions import accept
from tasks.review.events import read_events
from tasks.review.relabel import bring_back, open_requests, request_relabel, submit_relabel
from tests.integration.cluster import Cluster
from tests.load.test_into_fiftyone import store
from tests.review.app_page import wait_for
from tests.review.labels import COMPACT, OTHER_STAMP, PLACES, SIZE_HW, disc, labeled_frames
from tests.review.reviewed import decided_labels, pick, relabel, state


def test_a_label_sent_back_comes_back_and_stays(name: str, out: Path) -> None:
    relabel(name, out)
    sample = schema.open_dataset(name).match({"frame_number": 3}).first()
    assert sample.relabel == "back"
    changed = sample.detections.detections[1]
    assert changed.area_px == 400
    assert changed.mask.sum() == 400
    assert changed.model.startswith("tiny@cdcdcd")
    assert sample.detections.detections[0].model.startswith("compact/restructured@")
    manifest = store(out, list(labeled_frames(4)))
    load.load_sequence(name, str(out), manifest)
    sample.reload()
    assert sample.detections.detections[1].area_px == 400, "kept by a reload"


def test_a_failed_relabeling_says_so(name: str, out: Path) -> None:
    dataset, chosen = pick(name, 3, 1)
    accept(dataset, chosen)
    request = request_relabel(dataset, pick(name, 3, 1)[1])
    sample = dataset.match({"frame_number": 3}).first()
    assert (sample.relabel, sample.detections.detections[1].decision) == ("requested", "relabel")
    assert sample.reviewed.detections == [], "what was accepted is no more"
    assert decided_labels(name) == [], "a label that waits is not decided"
    bring_back(request, str(out), [RuntimeError("gone")], COMPACT)
    sample.reload()
    assert (sample.relabel, sample.detections.detections[1].decision) == ("failed", "")


def test_the_relabel_command_works_off_what_waits(
    name: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a model would make is a stand-in here; the way there and back is real."""
    from click.testing import CliRunner

    from flows.cli.review import command
    from sam2_core.types import Masks as M
    from tasks.review import relabel as relabeling

    dataset, chosen = pick(name, 2, 0)
    request_relabel(dataset, chosen)
    empty = coco_mask.encode(np.zeros(SIZE_HW, np.uint8, order="F"))["counts"]
    asked = []

    def choose_model(model: str, backend: str) -> object:
        asked.append(model)
        return type("Choice", (), {"stamp": OTHER_STAMP.model})()

    def fake_segment(choice: object, models: object, prompts: list) -> list:
        return [M((empty,), SIZE_HW, [0.1], [0.1], [0.1], [0], ("empty_mask",)) for _ in prompts]

    monkeypatch.setattr(relabeling, "choose_model", choose_model)
    monkeypatch.setattr(relabeling, "_segment", fake_segment)
    result = CliRunner().invoke(command, ["relabel", name])
    assert "1 label of 1 request made" in result.output
    assert asked == ["compact"], "the model that made it, not its kind of graphs"
    result = CliRunner().invoke(command, ["relabel", name])
    assert "0 labels of 0 requests" in result.output
    sample = dataset.match({"frame_number": 2}).first()
    assert sample.detections.detections[0].area_px == 0
    assert sample.detections.detections[0].mask is None


def test_a_model_that_cannot_be_had_is_told_to_the_reviewer(name: str, out: Path) -> None:
    from tasks.review.relabel import relabel_dataset

    dataset, chosen = pick(name, 2, 0)
    request_relabel(dataset, chosen, model="no such model")
    with pytest.raises(AutolabelError, match="no such model"):
        relabel_dataset(name)
    sample = dataset.match({"frame_number": 2}).first()
    assert (sample.relabel, sample.detections.detections[0].decision) == ("failed", "")
    assert "no such model" in read_events(str(out), name)[-1].changes["failed"]
    assert relabel_dataset(name) == (0, 0), "asked for once, answered once"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sent_back_and_made_again_by_a_worker(
    one_frame: str, out: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Prefect worker, the bundled model, and the tests' own database."""
    accept(*pick(one_frame, 0, 0))
    dataset, chosen = pick(one_frame, 0, 2)
    (tmp_path / "prefect").mkdir()
    shared = {"FIFTYONE_DATABASE_URI": database, "AUTOLABEL_DATABASE_URI": ""}
    with Cluster(tmp_path / "prefect", **shared) as cluster:
        cluster.start_worker()
        monkeypatch.setenv("PREFECT_API_URL", cluster.api)
        request = request_relabel(dataset, chosen, prompt="wider box")
        assert submit_relabel(dataset, request).startswith("flow run ")
        wait_for(lambda: [frame[2] for frame in state(one_frame)], ["back"], 240)
        (run,) = cluster.post("flow_runs/filter", {"flows": {"name": {"any_": ["relabel"]}}})
        assert run["parameters"]["request_id"] == request.request_id
        wait_for(lambda: cluster.get(f"flow_runs/{run['id']}")["state_type"], "COMPLETED")
    assert [one.action for one in read_events(str(out), one_frame)] == [
        "accept", "relabel", "relabeled",
    ]  # fmt: skip
    sample = dataset.first()
    sample.reload()
    assert [one.decision for one in sample.detections.detections] == ["accepted", "", ""]
    again = sample.detections.detections[2]
    assert again.model.startswith("compact/")
    assert again.area_px == pytest.approx(disc(PLACES[2]).sum(), rel=0.1)
    assert open_requests(str(out), one_frame) == []
