"""The run's graph as Prefect's pages draw it, and what a chunk costs storage."""

from collections import Counter

import pytest
import s3fs

from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.server import artifacts
from flows.shard import label_shard
from tasks.frames import download, images
from tasks.store import storage
from tests.integration.cluster import wait_for
from tests.integration.dataset_rows import held
from tests.integration.prefect_server import client_of
from tests.integration.runs import MICRO, write_sequence


def graph(cluster, flow_name):
    """Task runs of the newest run of a flow by name: whose results they were given, their state."""
    body = {"flows": {"name": {"any_": [flow_name]}}, "sort": "START_TIME_DESC", "limit": 1}
    (run,) = cluster.post("flow_runs/filter", body)
    nodes = dict(cluster.get(f"flow_runs/{run['id']}/graph-v2")["nodes"])
    names = {key: node["label"] for key, node in nodes.items()}
    return {
        node["label"]: ({names[one["id"]] for one in node["parents"]}, node["state_type"])
        for node in nodes.values()
    }


@pytest.fixture
def recorded(terminal, cluster):
    """`autolabel` under a server that records task runs, as ours for one command does not."""
    password = cluster.home.environment["PREFECT_API_AUTH_STRING"]
    terminal.monkeypatch.setenv("PREFECT_API_URL", cluster.api)
    with client_of(cluster.api, password):
        yield terminal


@pytest.mark.ci
def test_the_graph_shows_every_step_and_what_it_waits_for(recorded, cluster, tmp_path):
    write_sequence(tmp_path / "in" / "long", tmp_path / "boxes", 8)
    (tmp_path / "in" / "broken.mp4").write_bytes(b"no video at all")
    recorded.label(
        tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes",
        "--dataset", "graph", "--chunk-frames", "2", code=1,
    )  # fmt: skip
    pieces = ["long 0-1", "long 1-2", "long 2-4"]
    expected = {
        "prepare graph": set(),
        "open broken": set(),
        "open long": set(),
        **{f"label {one}": {"open long"} for one in pieces},
        "check long": {"open long", *(f"label {one}" for one in pieces)},
        "track long": {"open long", "check long"},
        "load long": {"prepare graph", "open long", "track long"},
    }

    def drawn():
        found = graph(cluster, "label")
        ended = all(state in {"COMPLETED", "FAILED"} for _, state in found.values())
        return found if ended and len(found) == len(expected) else None

    found = wait_for(drawn, 30)
    assert {name: above for name, (above, _) in found.items()} == expected
    states = {name: state for name, (_, state) in found.items()}
    assert states.pop("open broken") == "FAILED"
    assert set(states.values()) == {"COMPLETED"}


def test_a_fresh_chunk_is_decoded_once_written_once_and_not_read_back(
    terminal, tmp_path, monkeypatch
):
    """What is read is whether another worker was first: its table of frames, which is not there."""
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 6)
    found = Counter()
    for module, name, counts in (
        (storage, "read_bytes", lambda uri: "/labels/" in uri),
        (storage, "write_bytes", lambda uri: "/labels/" in uri),
        (images, "decode_image", lambda _: True),
    ):
        call = getattr(module, name)

        def counting(first, *more, name=name, call=call, counts=counts):
            found[name] += counts(first)
            return call(first, *more)

        monkeypatch.setattr(module, name, counting)
    terminal.label(
        tmp_path / "in", "--out", tmp_path / "out", "--dataset", "requests", "--chunk-frames", "2",
        "--min-score", "0.01",
    )  # fmt: skip
    assert found == {"write_bytes": 3 * 3, "read_bytes": 3, "decode_image": 6}


def test_a_shard_loads_and_downloads_the_selected_frames_only(
    terminal, under_prefect, s3, tmp_path, monkeypatch
):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 21)
    store = s3fs.S3FileSystem()
    store.put(str(tmp_path / "in"), f"{s3}/in", recursive=True)
    asked, get = [], download._get
    monkeypatch.setattr(download, "_get", lambda uri, *more: (asked.append(uri), get(uri, *more)))
    label = LabelParams(
        sources=(f"{s3}/in",), out=f"{s3}/out", boxes=str(tmp_path / "boxes"), model=str(MICRO),
        frames="::10", dataset="every tenth",
    )  # fmt: skip
    (shard,) = plan_backfill(BackfillParams(label=label)).shards
    assert label_shard(shard, return_state=True).is_completed()
    assert sorted(uri[-8:] for uri in asked) == ["0000.jpg", "0010.jpg", "0020.jpg"]
    assert [row["frame"] for row in held("every tenth")["rows"]] == [0, 10, 20]


def test_a_shard_that_is_begun_again_tells_what_failed_the_first_time(
    terminal, under_prefect, tmp_path, monkeypatch
):
    """Its worker may have died when a sequence was complete: nobody else tells of its frames."""
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 3)
    (tmp_path / "in" / "drive" / "0001.jpg").write_bytes(b"no picture")
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), boxes=str(tmp_path / "boxes"),
        model=str(MICRO), load_dataset=False,
    )  # fmt: skip
    (shard,) = plan_backfill(BackfillParams(label=label)).shards
    told, counted = [], []
    monkeypatch.setattr("flows.shard.publish", told.append)

    def told_last(_, percent, text):
        if percent == 100:
            counted.append(text)

    monkeypatch.setattr(artifacts, "update_progress_artifact", told_last)
    for _ in range(2):
        assert label_shard(shard, return_state=True).is_completed()
    assert counted == ["3 of 3 frames"] * 2
    first, again = ([(row["frame"], row["stage"]) for row in one["failed"]] for one in told)
    assert first == again == [(1, "decode")]
