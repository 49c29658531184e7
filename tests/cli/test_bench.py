"""`autolabel bench` as a user calls it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from flows.cli.main import cli
from tests.sam2_core.small_graphs import write_model


@pytest.fixture
def model(tmp_path):
    write_model(tmp_path / "m" / "published-fp32", graph="published")
    return str(write_model(tmp_path / "m" / "restructured-fp32"))


def run(*arguments):
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)])


def test_json_is_one_object_on_stdout(model, tmp_path):
    done = run("--quick", "--json", "--model", model, "--size", "320x200", "--num-boxes", 9,
               "--peer", "none", "--cache", tmp_path, "--plot", tmp_path / "plot.png")  # fmt: skip
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert results["decoder_vs_published"] > 0
    assert results["frame_vs_torch"] is None
    assert results["frame"]["boxes"] == 9
    assert results["frame"]["size_hw"] == [200, 320]
    assert (tmp_path / "plot.png").is_file()


def test_a_frame_of_the_users_own_and_tables(model, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (100, 150, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_text("car 0.9 10 10 60 50\nbus 0.8 20 30 90 80\n")
    done = run("--model", model, "--image", tmp_path / "a.jpg", "--boxes", tmp_path / "a.txt",
               "--num-boxes", 0, "--repeats", 1, "--budget", 1, "--peer", "none", "--cache",
               tmp_path)  # fmt: skip
    assert done.exit_code == 0, done.output
    for text in ("2 boxes, 150x100", "prototype: one box per call", "Encoder, one call",
                 "CPU threads", "left out: torch eager: not asked for"):  # fmt: skip
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "a.jpg"], "--image and --boxes go together"),
        (["--size", "big"], "expected WIDTHxHEIGHT"),
        (["--decoder-chunk", "many"], "expected a number or auto"),
    ],
)
def test_bad_usage_is_exit_2_and_says_why(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output
