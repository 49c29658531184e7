"""The model of a fleet: what can be computed by hand, what limits it, and the command."""

import json

import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from flows.plan.simulate import GPUS, PREFECT, Fleet, FleetParams, simulate


def test_one_gpu_takes_its_frames_and_its_starts():
    params = FleetParams(
        frames=120_000, frames_per_s=100, start_s=10, shard_minutes=10, dataset=False
    )
    fleet = Fleet(params, 1)
    assert fleet.shards == 3  # the last one is halved
    planning_s, working_s, starting_s = 6, 1200, 30
    assert fleet.seconds == pytest.approx(planning_s + working_s + starting_s, rel=0.01)
    assert sum(frames for _, frames in fleet.labeled) == 120_000
    assert fleet.busy()[GPUS] == pytest.approx(1200 / fleet.seconds)


def test_eight_gpus_are_almost_eight_times_as_fast_while_nothing_else_is_busy():
    one, eight = simulate(FleetParams(frames=5_000_000, gpus=(1, 8), pictures=False))
    assert 7 < one["hours"] / eight["hours"] <= 8
    assert eight["limit"] == GPUS


def test_short_sequences_on_many_gpus_wait_for_prefects_server():
    short = {"frames": 2_000_000, "sequence_frames": 100, "gpus": (64,), "pictures": False}
    (slow,) = simulate(FleetParams(**short))
    (mended,) = simulate(FleetParams(**short, prefect_servers=4))
    assert slow["limit"] == PREFECT
    assert slow["hours"] > 2 * mended["hours"]


def test_the_command_tells_every_fleet_and_draws_them(tmp_path):
    words = ["simulate", "--frames", "1000000", "--gpus", "1,2", "--plot", str(tmp_path / "f.png")]
    told = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert [one["gpus"] for one in told["fleets"]] == [1, 2]
    assert told["parameters"]["frames_per_s"] == 394
    assert (tmp_path / "f.png").read_bytes()[1:4] == b"PNG"
    shown = CliRunner().invoke(cli, words).stdout
    assert "\n1 GPU: limited by GPUs; more GPUs shorten it\n" in shown
    for bad in (["--gpus", "0"], ["--gpus", "x"], ["--frames", "0"]):
        assert CliRunner().invoke(cli, ["simulate", *bad]).exit_code == 2
