"""What the benchmark measures with: timing in turns, crowded frames, memory, whole runs."""

from __future__ import annotations

import getpass
import json
import mmap
import platform
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pycocotools import mask as coco_mask

from lab.bench import comparison
from lab.bench.__main__ import command as bench_command
from lab.bench.comparison import reference_state
from lab.bench.frame import BenchFrame, crowded
from lab.bench.machine import describe_machine
from lab.bench.outlines import OutlinedBackend
from lab.bench.peers import PeerOptions, TorchPeer, make_peer
from lab.bench.run import run_benchmark
from lab.bench.session import BenchOptions, start
from lab.bench.timing import Timing, interleaved, ratio
from lab.bench.whole_frame import PeakMemory
from sam2_core.architecture import random_weights, select_mask
from sam2_core.postprocess import finish
from sam2_core.preprocess import resize_square
from sam2_core.presets import preset_named
from sam2_core.prompts import box_prompts
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, LowResMasks
from tests.sam2_core.small_graphs import write_model


def test_cases_run_in_turns_and_both_ways_round():
    order = []
    cases = {name: lambda name=name: order.append(name) for name in "abc"}
    timings = interleaved(cases, 4)
    assert "".join(order) == "cba" + "abc" + "cba" + "abc" + "cba"
    assert {timing.runs for timing in timings.values()} == {4}


def test_the_median_is_the_time_of_a_run_and_outliers_do_not_move_it():
    naps = iter([0.0, 0.01, 0.01, 0.01, 0.08, 0.01])
    timing = interleaved({"nap": lambda: time.sleep(next(naps))}, 5)["nap"]
    assert 10 <= timing.median_ms < 20
    assert timing.high_ms > 40
    assert ratio(Timing(30, 0, 0, 1), Timing(10, 0, 0, 1)) == 3
    assert ratio(None, timing) is None


def test_crowded_keeps_the_given_boxes_and_stays_inside():
    given = np.array([[0, 0, 40, 20], [90, 30, 100, 50]], np.float32)
    boxes = crowded(given, 135, (60, 100))
    assert boxes.shape == (135, 4)
    np.testing.assert_array_equal(boxes[:2], given)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= [100, 60]).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert len(np.unique(boxes, axis=0)) == 135
    np.testing.assert_array_equal(crowded(given, 1, (60, 100)), given[:1])
    with pytest.raises(ValueError, match="no box"):
        crowded(given[:0], 3, (60, 100))


def test_peak_memory_sees_what_was_freed_again():
    if not describe_machine()["system"].startswith("Linux"):
        pytest.skip("resident memory is read from /proc")
    # New pages: malloc would give what this process has freed before.
    with PeakMemory() as memory, mmap.mmap(-1, 100_000_000) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        time.sleep(0.02)
    assert 90e6 < memory.peak - memory.before < 300e6


def test_the_machine_is_described_without_naming_it():

    described = json.dumps(describe_machine())
    assert platform.node() not in described
    assert f"/{getpass.getuser()}" not in described


@pytest.fixture
def frame():
    image = np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)
    boxes = crowded(np.array([[10, 10, 60, 50]]), 20, (90, 120))
    given = Boxes(boxes, np.ones(20, np.float32), ("car",) * 20)
    return BenchFrame(b"file", lambda data: image, given, "noise")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "models" / "small"
    write_model(folder / "published-fp32", graph="published")
    return write_model(folder / "restructured-fp32")


def test_a_run_measures_every_section(frame, model, tmp_path):
    said = []
    options = BenchOptions(str(model), "onnxruntime-cpu", repeats=2, peers=(), cache=tmp_path)
    results = run_benchmark(frame, options, said.append)
    assert set(results["decoder"]) == {"published", "restructured"}
    assert results["decoder_vs_published"] > 0
    assert results["frame_vs_torch"] is None
    assert results["skipped"]["torch eager"] == "not asked for"
    assert results["model"]["decoder_chunk"] == 136
    assert results["frame"] == {"source": "noise", "boxes": 20, "size_hw": [90, 120]}
    assert json.loads(json.dumps(results)) == results
    assert set(results["whole_frame"]) == {"autolabel"}
    assert set(results["memory"]) >= {"loaded_mb", "peak_mb"}
    assert any("decoder" in text for text in said)


def test_peers_get_the_weights_of_the_bundled_model(frame):
    assert reference_state(start(frame, BenchOptions("compact", "onnxruntime-cpu"), print))


def test_a_peer_that_cannot_run_is_left_out_with_its_reason(frame, model, monkeypatch, tmp_path):

    def refuse(name, options):
        raise RuntimeError(f"{name} broke")

    monkeypatch.setattr(comparison, "make_peer", refuse)
    monkeypatch.setattr(comparison, "preset_named", lambda name: None)
    monkeypatch.setattr(comparison, "reference_state", lambda run: None)
    options = BenchOptions(str(model), "onnxruntime-cpu", repeats=1, cache=tmp_path,
                           peers=("torch eager",))  # fmt: skip
    results = run_benchmark(frame, options)
    assert results["skipped"]["torch eager"] == "RuntimeError: torch eager broke"
    assert results["frame_vs_torch"] is None


def test_random_weights_are_timed_with_outlines_that_everybody_draws(frame, model, tmp_path):

    options = BenchOptions(str(model), "onnxruntime-cpu", peers=(), cache=tmp_path)
    run = start(frame, options, lambda _: None)
    assert run.random == (run.frames is not run.segmenter)
    segmenter = Segmenter(OutlinedBackend(run.backend), decoder_chunk=8)
    prepared = segmenter.prepare(frame.read(), frame.boxes)
    ours = segmenter.run([prepared])[0]
    noise = run.segmenter.run([prepared])[0]
    peer = SimpleNamespace(torch=torch, device="cpu")
    corners = torch.from_numpy(prepared.prompts.points_model[:, :2])
    theirs = TorchPeer._outlined(peer, torch.from_numpy(np.stack(noise.logits))[:, None], corners)
    np.testing.assert_allclose(np.stack(ours.logits), theirs[:, 0].numpy(), atol=1e-4)
    # Outlines reach the sides of their box and leave its corners out.
    masks = finish(ours, prepared.size_hw)
    boxed = np.prod(frame.boxes.xyxy_px[:, 2:] - frame.boxes.xyxy_px[:, :2], axis=1)
    large = boxed > 400
    assert large.sum() > 5
    assert (np.abs(masks.area_px[large] / boxed[large] - 0.92) < 0.15).all()
    assert not np.allclose(np.stack(noise.logits), np.stack(ours.logits), atol=1)


@pytest.mark.slow
def test_peers_make_the_masks_that_we_make(frame):
    """A peer that did less would be unfairly fast, and one that did more unfairly slow."""
    pytest.importorskip("transformers", reason="transformers is installed by `make dev`")

    preset = preset_named("micro")
    smooth = np.kron(np.random.default_rng(0).integers(0, 255, (9, 12, 3)), np.ones((10, 10, 1)))
    given = BenchFrame(b"", lambda data: smooth.astype(np.uint8), frame.boxes, "blocks")
    options = PeerOptions(preset, "fp32", cuda=False)
    plain, theirs = (make_peer(n, options) for n in ("torch eager", "transformers eager"))

    model = random_weights(preset, 0)
    image = resize_square(given.read(), preset.image_size)
    found, _, _ = box_prompts(given.boxes.xyxy_px, (90, 120), preset.image_size)
    with torch.inference_mode():
        features = model.encode(torch.from_numpy(image.copy())[None])
        prompts = torch.from_numpy(found.points_model), torch.from_numpy(found.labels)
        logits, iou, _ = model.decode(features, *prompts, torch.zeros(20, dtype=torch.int64))
        chosen = select_mask(logits, iou)[0][:, 0].numpy()
    nothing = np.zeros(20, np.float32)
    low_res = LowResMasks(chosen, nothing, nothing, nothing)
    ours = finish(low_res, (90, 120)).rle

    def overlap(some, others):
        return [
            float(coco_mask.iou([{"size": [90, 120], "counts": a}],
                                [{"size": [90, 120], "counts": b}], [0])[0, 0])
            for a, b in zip(some, others, strict=True)
        ]  # fmt: skip

    by_torch = plain.frame(given)
    assert np.mean(overlap(by_torch, theirs.frame(given))) > 0.999
    # Ours sees the resized image rounded to whole grey levels, which with random weights flips the
    # choice between candidate masks now and then.
    assert np.median(overlap(by_torch, ours)) > 0.99


def command(*arguments):
    return CliRunner().invoke(bench_command, [str(one) for one in arguments])


def test_json_is_one_object_on_stdout(model):
    done = command("--quick", "--model", model, "--num-boxes", 9, "--peer", "none")
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert results["frame"]["boxes"] == 9
    assert results["frame"]["size_hw"] == [1280, 1920]
