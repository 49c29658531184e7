"""`autolabel bench` as a user calls it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli import bench
from flows.cli import label as label_command
from flows.cli.bench import GIVEN_UP, Watch, measure_pipeline
from flows.cli.main import cli
from sam2_core.types import AutolabelError


def run(*arguments):
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick"], "No such option"),
        (["--plot", "p.svg"], "a PNG is what is written"),
    ],
)
def test_bad_usage_is_exit_2_and_says_why(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize("source", [["--pipeline", "x"], ["x"], []])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(source, tmp_path):
    (tmp_path / "file").touch()
    done = run(*source, "--plot", tmp_path / "file" / "p.png")
    assert f"cannot write to {tmp_path / 'file'}" in str(done.exception)


def test_the_rate_of_a_run_counts_all_stages_also_where_they_follow_each_other():
    watch = Watch()
    for stage, first in (("download", 1.0), ("detect", 2.0), ("segment", 12.0)):
        watch.moments[stage] = [(first + second, 1) for second in range(10)]
    assert str(watch.rate("segment")) == (
        "{'frames': 10, 'first_s': 12.0, 'last_s': 21.0, 'frames_per_s': 1.0}"
    )
    assert watch.whole_rate() == 0.5  # ten frames from 1.0 to 21.0
    watch.moments["load"] = [(41.0, 10)]
    assert watch.whole_rate() == 0.25
    assert "frames_per_s" not in watch.rate("load")
    assert Watch().whole_rate() is None


SMI = """#!/bin/sh
[ "$1" = --id=0 ] || { echo 99; exit 0; }
echo 40
exec sleep 30
"""


@pytest.mark.parametrize(
    ("visible", "busy", "unknown"),
    [
        ("0", 0.4, ""),
        ("", None, ""),  # strangers' GPUs are not its own
        ("MIG-aa", None, "unknown: nvidia-smi reports none for MIG-aa"),
    ],
)
def test_only_the_device_of_this_process_is_looked_at(
    visible, busy, unknown, monkeypatch, tmp_path
):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(bench, "no_gpu", lambda: "")
    with Watch() as watch:
        deadline = time.monotonic() + (10 if busy else 0.3)
        while not watch.busy and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [share for _, share in watch.busy] == ([busy] if busy else [])
    assert busy or watch.unknown.endswith(unknown)


def measured(**more):
    return {
        "machine": {"gpus": [], "cpu": "a processor", "cores": 2},
        "model": {"name": "compact", "precision": "fp32"},
        "to_first_frame_s": 6.0, "frames_per_s": 2.2, "whole_frames_per_s": 1.4, "frames": 9,
        "instances": 9, "failed": 0, "device_busy": None,
        "device_busy_unknown": "no NVIDIA GPU for this process", "seconds": {"segment": 4.0},
        "stages": {"segment": {"frames": 9, "first_s": 6.0, "last_s": 9.0, "frames_per_s": 2.2},
                   "load": {"frames": 9, "first_s": 9.0, "last_s": 9.0}},
        "curves": {"segment": [(6.0, 1), (9.0, 9)], "load": [(9.0, 9), (9.0, 9)]},
        "busy": [],
    } | more  # fmt: skip


def test_a_whole_run_says_both_rates_and_where_its_picture_lies(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "measure_pipeline", lambda *_: measured())
    done = run("--pipeline", "x", "--json", "--plot", tmp_path / "p.png")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["whole_frames_per_s"] == 1.4
    told = " ".join(done.stderr.split())
    for words in ("2.2 frames/s in segment", "1.4 frames/s in this run", "plot: "):
        assert words in told
    assert "0.0" not in told
    assert (tmp_path / "p.png").is_file()


def test_a_measurement_that_is_given_up_keeps_nothing_and_says_so(tmp_path, monkeypatch):
    seen = []

    def label(params, tools, *, stopped, clean_up):
        labels = Path(params.out)
        labels.mkdir()
        clean_up()  # what Ctrl-C does before the command ends
        seen.append((stopped, labels.parent.exists()))
        raise AutolabelError("as if")

    monkeypatch.setattr(label_command, "run_label", label)
    with pytest.raises(AutolabelError, match="as if"):
        measure_pipeline(("in",), {})
    assert seen == [(GIVEN_UP, False)]
    assert "starts from the beginning" in GIVEN_UP
