"""`autolabel bench` as a user calls it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from flows.cli import bench_pipeline, bench_tables, label_run
from flows.cli.bench_pipeline import GIVEN_UP, Watch, measure_pipeline, plot_pipeline, rate_told
from flows.cli.main import cli
from sam2_core import backend_choice
from sam2_core.types import AutolabelError
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
        (["--dataset", "streets"], "--dataset: of no use without --pipeline"),
        (
            ["--pipeline", "x", "--quick", "--num-boxes", "20", "--image", "a.jpg"],
            "--image, --num-boxes, --quick: of no use with --pipeline",
        ),
        (["--plot", "p.svg"], "a PNG is what is written"),
    ],
)
def test_bad_usage_is_exit_2_and_says_why(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize("more", [["--pipeline", "x"], []])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(more, tmp_path):
    (tmp_path / "file").touch()
    done = run(*more, "--plot", tmp_path / "file" / "p.png")
    assert f"cannot write to {tmp_path / 'file'}" in str(done.exception)


def test_the_rate_of_a_run_counts_all_stages_also_where_they_follow_each_other():
    watch = Watch()
    for stage, first in (("download", 1.0), ("detect", 2.0), ("segment", 12.0)):
        watch.moments[stage] = [(first + second, 1) for second in range(10)]
    assert watch.rate("segment")["frames_per_s"] == 1.0
    assert watch.whole_rate() == 0.5  # ten frames from 1.0 to 21.0
    watch.moments["load"] = [(41.0, 10)]
    assert watch.whole_rate() == 0.25
    assert "frames_per_s" not in watch.rate("load")
    assert Watch().whole_rate() is None


def test_frames_that_come_many_at_a_time_are_counted_only_with_the_time_they_took():
    watch = Watch()
    watch.moments["segment"] = [(10.0, 5), (12.0, 4)]
    assert watch.rate("segment")["frames_per_s"] == 2.0
    watch.moments["segment"] = [(float(second), 25) for second in range(8)]
    assert watch.rate("segment")["frames_per_s"] == 25.0


SMI = """#!/bin/sh
[ "$1" = --id=0 ] || { echo 99; exit 0; }
echo 40
exec sleep 30
"""


@pytest.mark.parametrize(
    ("visible", "busy", "unknown"),
    [
        ("0", 0.4, ""),
        ("", None, "no NVIDIA GPU for this process"),  # and strangers' GPUs are not its own
        ("MIG-aa", None, "unknown: nvidia-smi tells none of a MIG device"),
    ],
)
def test_only_the_device_of_this_process_is_looked_at(
    visible, busy, unknown, monkeypatch, tmp_path
):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(bench_pipeline, "no_gpu", lambda: "")
    with Watch() as watch:
        deadline = time.monotonic() + (10 if busy else 0.3)
        while not watch.busy and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [share for _, share in watch.busy] == ([busy] if busy else [])
    assert busy or unknown in watch.unknown


def test_an_unknown_rate_is_no_zero_and_that_of_files_that_are_here_no_number():
    assert [rate_told(one) for one in (None, 2.25, 34060.7)] == ["-", "2.2", "over 1,000"]


def measured(**more):
    return {
        "machine": {"gpus": [], "cpu": "a processor", "cores": 2},
        "model": {"name": "compact", "precision": "fp32"},
        "to_first_frame_s": 6.0, "frames_per_s": 2.2, "whole_frames_per_s": 1.4, "frames": 9,
        "long_run_frames_per_s": None,
        "instances": 9, "failed": 0, "device_busy": None,
        "device_busy_unknown": "no NVIDIA GPU for this process", "seconds": {"segment": 4.0},
        "stages": {"segment": {"frames": 9, "first_s": 6.0, "last_s": 9.0, "frames_per_s": 2.2},
                   "load": {"frames": 9, "first_s": 9.0, "last_s": 9.0}},
        "curves": {"segment": [(6.0, 1), (9.0, 9)], "load": [(9.0, 9), (9.0, 9)]},
        "busy": [],
    } | more  # fmt: skip


@pytest.mark.parametrize("busy", [[], [(1.0, 0.5), (2.0, 0.9)]])
def test_the_picture_begins_at_the_start_and_has_no_empty_panel(busy, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    plot_pipeline(measured(busy=busy), tmp_path / "p.png")
    (figure,) = drawn
    assert len(figure.axes) == (2 if busy else 1)
    curves = figure.axes[0]
    assert curves.get_xlim()[0] == 0
    assert [one.get_marker() for one in curves.lines] == ["", "o"]  # loaded all at once
    assert "2.2 frames/s in segment" in curves.get_title()
    assert "1.4 frames/s from the first frame fetched" in " ".join(curves.get_title().split())


def test_a_whole_run_says_both_rates_and_where_its_picture_lies(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_pipeline, "measure_pipeline", lambda *_: measured())
    done = run("--pipeline", "x", "--json", "--plot", tmp_path / "p.png")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["whole_frames_per_s"] == 1.4
    told = " ".join(done.stderr.split())
    assert "2.2 frames/s in segment" in told
    assert "1.4 frames/s in this run" in told
    assert "frames are too few, so it tells nothing of a long run" in told
    assert "plot: " in told
    assert "0.0" not in told
    assert (tmp_path / "p.png").is_file()


@pytest.mark.parametrize(
    ("frames", "apart_s", "rate", "told"),
    [
        (100, 1.0, 1.0, "a long run comes to about 1.0, the rate of detect, its slowest stage"),
        (100, 90.0, None, "stages hardly overlapped, so it tells nothing of a long run"),
        (9, 1.0, None, "frames are too few, so it tells nothing of a long run"),
        (1, 1.0, None, "too few frames for a rate of the segment stage"),
    ],
)
def test_a_long_run_is_no_faster_than_its_slowest_stage(
    frames, apart_s, rate, told, monkeypatch, capsys
):
    def labeled(_, tools, **__):
        (watch,) = tools.progress._listeners
        for number, (stage, pace) in enumerate((("download", 4), ("detect", 1), ("segment", 2))):
            watch.moments[stage] = [(number * apart_s + one / pace, 1) for one in range(frames)]
        return {
            "frames": frames, "instances": 3, "failed": [], "seconds": {"total": 9.0},
            "model": {"name": "compact", "precision": "fp32"},
        }  # fmt: skip

    monkeypatch.setattr(label_run, "run_label", labeled)
    found = bench_pipeline.measure_pipeline(("drives",), {})
    assert found["long_run_frames_per_s"] == rate
    bench_pipeline.show(found)
    said = " ".join(capsys.readouterr().err.split())
    assert told in said
    assert "- frames/s in segment" not in said


@pytest.mark.parametrize("given", [{"--pipeline"}, set()])
def test_a_variable_that_names_no_gpu_is_why_the_processor_was_measured(given, monkeypatch, capsys):
    monkeypatch.setattr(backend_choice, "cuda_devices", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "banana")
    if given:
        with Watch() as watch:
            told = watch.unknown
        bench_pipeline.show(measured(device_busy_unknown=told))
        assert "names no GPU here" in " ".join(capsys.readouterr().err.split())
    else:
        model = dict.fromkeys(("preset", "weights", "graph", "precision", "backend"), "x")
        frame = {"size_hw": [9, 16], "boxes": 1, "source": "rendered"}
        machine = {"cpu": "c", "cores": 2, "gpus": ["H200"], "load_average_before": None}
        told = str(bench_tables._heading({"machine": machine, "model": model, "frame": frame}))
    assert "CUDA_VISIBLE_DEVICES=banana names no GPU here" in " ".join(told.split())


def test_every_stage_says_what_it_cost_also_the_load(monkeypatch):
    """`load` comes after a sequence's chunks, which know nothing of it."""

    def labeled(_, tools, **__):
        for stage in ("download", "detect", "segment", "load"):
            tools.progress.advance(stage, 2)
        return {
            "frames": 2, "instances": 3, "failed": [], "model": {},
            "seconds": {"download": 1.0, "detect": 2.0, "segment": 3.0, "load": 4.0, "total": 9.0},
        }  # fmt: skip

    monkeypatch.setattr(label_run, "run_label", labeled)
    found = bench_pipeline.measure_pipeline(("drives",), {})
    assert found["seconds"] == {"download": 1.0, "detect": 2.0, "segment": 3.0, "load": 4.0}
    assert set(found["stages"]) <= set(found["seconds"])


def test_a_measurement_that_is_given_up_keeps_nothing_and_says_so(tmp_path, monkeypatch):
    seen = []

    def label(params, tools, *, given_up):
        labels = Path(params.out)
        labels.mkdir()
        given_up.clean_up()  # what Ctrl-C does before the command ends
        seen.append((given_up.said, labels.parent.exists()))
        raise AutolabelError("as if")

    monkeypatch.setattr(label_run, "run_label", label)
    with pytest.raises(AutolabelError, match="as if"):
        measure_pipeline(("in",), {})
    assert seen == [(GIVEN_UP, False)]
    assert "begins anew" in GIVEN_UP
