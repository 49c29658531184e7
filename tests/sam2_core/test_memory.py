"""SAM 2's memory against Meta's own video predictor, whose masks are recorded."""

from __future__ import annotations

import gc
import json
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")
onnx = pytest.importorskip("onnx", reason="needs onnx: make dev")

from flows.cli.main import cli  # noqa: E402
from sam2_core.architecture import random_memory, random_weights  # noqa: E402
from sam2_core.architecture.memory_fused import FusedEncoder  # noqa: E402
from sam2_core.architecture.memory_graphs import ABSENT_LOGIT, Recall  # noqa: E402
from sam2_core.backends import torch_compiled  # noqa: E402
from sam2_core.backends.follow_backends import OnnxFollowBackend  # noqa: E402
from sam2_core.backends.torch_compiled import Graphs  # noqa: E402
from sam2_core.backends.torch_follow import TorchFollowBackend  # noqa: E402
from sam2_core.find_weights import resolve_weights  # noqa: E402
from sam2_core.follow import Follower, FollowRules  # noqa: E402
from sam2_core.load import load_follow_backend, memory_sha256  # noqa: E402
from sam2_core.presets import MICRO  # noqa: E402
from sam2_core.trust import following  # noqa: E402
from sam2_core.trust.certify import UncertifiedEngineError  # noqa: E402
from sam2_core.types import AutolabelError  # noqa: E402
from tasks.masks.model import Segmenters, choose_model  # noqa: E402
from tests.followed_objects import (  # noqa: E402
    compared,
    our_masks,
    prompts,
    video,
    weights,
)
from tests.planted_graphs import FAULTS, as_exported, micro_with_memory  # noqa: E402
from tests.sam2_core.recorded_reference import DATA  # noqa: E402
from tests.sam2_core.test_torch_compiled import HostGraph  # noqa: E402

FRAMES, COARSE = 20, "coordinates in half precision"


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Threads wait for one another longer than these small products take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return micro_with_memory(tmp_path_factory.mktemp("exported") / "model")


@pytest.fixture(scope="module", params=["torch", pytest.param("onnxruntime", marks=pytest.mark.ci)])
def backend(request):
    if request.param == "torch":
        return TorchFollowBackend(*weights(MICRO))
    return OnnxFollowBackend(request.getfixturevalue("exported"), MICRO, threads=1)


def test_masks_are_those_of_metas_video_predictor(backend):
    """Three objects; one late, two corrected, two conditioned again, one absent for a while.

    lab/tools/follow_with_meta.py --frames 20 --record tests/data/micro_follow.npz wrote the file.
    """
    with np.load(DATA / "micro_follow.npz") as file:
        theirs = {
            tuple(key): logits.astype(np.float32)
            for key, logits in zip(file["keys"].tolist(), file["logits"], strict=True)
        }
    ours = our_masks(backend, video(MICRO, FRAMES), prompts(FRAMES))
    iou = compared(ours, theirs)
    assert len(iou) == 3 * FRAMES - FRAMES // 4
    assert iou.mean() >= 0.999
    assert np.percentile(iou, 1) >= 0.98
    there = {key: bool((logits > ABSENT_LOGIT).any()) for key, logits in theirs.items()}
    assert sorted(set(there.values())) == [False, True]
    for key, present in there.items():
        assert bool((ours[key] > ABSENT_LOGIT).any()) == present
        np.testing.assert_allclose(ours[key], theirs[key], atol=0.02)


# Traced as on a GPU, where it is also made faster; tracing takes most of the time.
TRACED = pytest.param(partial(torch.compile, backend="eager"), marks=pytest.mark.ci)


@pytest.mark.parametrize(
    "compiled", [lambda module, **_: module, TRACED], ids=["as it is", "traced"]
)
def test_what_a_gpu_records_for_so_many_objects_gives_the_same_masks(
    compiled, tmp_path, monkeypatch
):
    """Recorded on a CPU: rows that are padded, and inputs that stay where they are."""
    monkeypatch.setattr(torch_compiled, "Captured", HostGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain, recorded = (TorchFollowBackend(*weights(MICRO)) for _ in range(2))
    recorded._graphs = Graphs(torch.device("cpu"), tmp_path, {}, None)
    # Enough for every prompt, and for more memories than are kept.
    frames, asked = video(MICRO, 12), prompts(12)
    expected, found = (our_masks(backend, frames, asked) for backend in (plain, recorded))
    assert compared(found, expected).min() == 1
    keys = {key for key in recorded._graphs.captured if key[0] != "encoder"}
    assert {("memory_encoder", 0, 4), ("memory_decoder", 2, 4)} <= keys


def test_the_encoder_for_a_gpu_gives_what_the_plain_one_gives():
    """On a CPU, where it runs no kernels of ours."""
    _, memory = weights(MICRO)
    generator = torch.Generator().manual_seed(0)
    cells = MICRO.embedding_grid
    image = torch.randn(1, MICRO.width, cells, cells, generator=generator)
    masks = 20 * torch.rand(3, 1, *[MICRO.image_size] * 2, generator=generator) - 10
    expected = memory.memory_encoder(image, masks)
    assert torch.allclose(FusedEncoder(memory.memory_encoder)(image, masks), expected, atol=1e-5)


def test_halves_give_nearly_the_same_masks():
    model, memory = weights(MICRO)
    frames, asked = video(MICRO, FRAMES), prompts(FRAMES)
    both = [TorchFollowBackend(model, memory, precision=one) for one in ("fp32", "fp16")]
    single, half = (our_masks(backend, frames, asked) for backend in both)
    assert compared(half, single).mean() >= 0.995


@pytest.mark.parametrize("fused", [True, False])
def test_an_object_is_conditioned_as_if_alone_and_packed_with_others(fused):
    model, memory = random_weights(MICRO, 1), random_memory(MICRO, 1)
    recall = Recall(model, memory, fused=fused).eval()
    generator = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(*shape, generator=generator)

    cells, narrow = MICRO.embedding_grid**2, MICRO.memory_width
    embedding, memories = noise(1, cells, MICRO.width), noise(2, 3, cells, narrow)
    pointers = noise(2, 4, MICRO.width)
    places, ages = torch.tensor([[6, 0, 1], [6, 6, 5]]), torch.tensor([[9.0, 1, 2, 3]] * 2)
    plain = recall(embedding, memories, places, pointers, ages)
    packed = recall.packed(
        embedding, list(memories), places.tolist(), list(pointers), ages.tolist()
    )
    assert torch.allclose(plain, packed, atol=2e-5)
    alone = recall(embedding, memories[1:], places[1:], pointers[1:], ages[1:])
    assert torch.allclose(plain[1:], alone, atol=2e-5)
    older = recall(embedding, memories, places, pointers, ages + 1)
    swapped = recall(embedding, memories, places.roll(1, 1), pointers, ages)
    for other in (older, swapped):
        assert (plain - other).abs().max() > 0.01


def swapped(graph):
    """Two weights of one shape, each in the place of the other."""
    one, other = [one for one in graph.initializer if one.dims == graph.initializer[0].dims][:2]
    one.raw_data, other.raw_data = other.raw_data, one.raw_data


@pytest.mark.ci
def test_no_memory_follows_before_it_was_held_against_pytorch(exported, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))

    def planted(name, graph, change):
        folder = shutil.copytree(exported, tmp_path / name)
        path = folder / f"memory_{graph}.onnx"
        path.write_bytes(change(path.read_bytes()))
        as_exported(path)
        return choose_model(str(folder), "onnxruntime-cpu")

    def edited(change):
        def of(data):
            model = onnx.load_from_string(data)
            change(model)
            return model.SerializeToString()

        return of

    sound, models = choose_model(str(exported), "onnxruntime-cpu"), Segmenters()
    models.load(sound)
    models.follow_backend(sound)
    assert models.certified_by(sound)["memory"]["verdict"] == "passed"
    monkeypatch.setattr(following, "certify_memory", None)  # a second process only reads
    Segmenters().follow_backend(sound)
    monkeypatch.undo()
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))

    wrong = planted("swapped", "attention", edited(lambda model: swapped(model.graph)))
    asked = ["models", "certify", wrong.source, "--backend", "onnxruntime-cpu", "--json"]
    told = CliRunner().invoke(cli, [*asked, "--quick"])
    image = json.loads(told.stdout)
    assert (told.exit_code, image["verdict"], image["memory"]["verdict"]) == (1, "passed", "failed")
    assert Path(image["memory"]["worst"][0]["file"]).is_file()
    listed = json.loads(CliRunner().invoke(cli, ["models", "list", "--json"]).stdout)
    verdicts = {(one["engine"].split()[0], one["verdict"]) for one in listed["other_certificates"]}
    assert ("micro/memory", "failed") in verdicts
    assert all(one["now"] for one in listed["other_certificates"])
    coarse = planted("coarse", "decoder", edited(lambda model: FAULTS[COARSE][1](model.graph)))
    for choice, reason in ((wrong, "logits"), (coarse, "rounded to half precision")):
        with pytest.raises(UncertifiedEngineError, match=f"may not label.*{reason}"):
            Segmenters().follow_backend(choice)
        Segmenters().follow_backend(replace(choice, allow_uncertified=True))

    half = edited(lambda model: onnx.helper.set_model_props(model, {"precision": "fp16"}))
    cut = planted("cut", "encoder", lambda data: data[:-1000])
    for choice, reason in (
        (planted("half", "mask", half), "precision is 'fp32', and memory_mask.onnx was exported w"),
        (cut, "memory_encoder.onnx"),
    ):
        with pytest.raises(AutolabelError, match=reason):
            Segmenters().follow_backend(choice)


def kept_by(tensors) -> int:
    """Bytes that tensors keep: of all that a view shows a part of."""
    storages = [one.untyped_storage() for one in tensors]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def held() -> int:
    """Bytes of all tensors there are."""
    gc.collect()
    return kept_by(one for one in gc.get_objects() if type(one) is torch.Tensor)


def test_a_long_stream_takes_no_more_memory_and_time_than_a_short_one():
    model, memory = weights(MICRO)
    rules = FollowRules(refresh_frames=3, absent_frames=5, undetected_frames=10, objects=3)
    follower = Follower(TorchFollowBackend(model, memory), rules)
    scene, random = video(MICRO, 40).numpy(), np.random.default_rng(0)
    one_memory = MICRO.embedding_grid**2 * MICRO.memory_width * 4
    before, seconds, names = held(), [], set()
    for frame in range(120):
        corner = np.array([[8, 8], [60, 20], [30, 70]]) + random.integers(0, 8, (3, 2))
        boxes = np.concatenate([corner, corner + 40], 1).astype(np.float32)
        started = time.process_time()
        shown = follower.step(scene[frame % 40], boxes[random.random(3) < 0.7])
        seconds.append(time.process_time() - started)
        names.update(shown.tracks.tolist())
        if frame % 40 == 39:
            tracks = follower.tracks.values()
            moments = [
                one for track in tracks
                for one in (*track.recent.values(), *track.conditioning.values())
            ]  # fmt: skip
            memories = [one.memory for one in moments if one.memory is not None]
            masks = [one.mask for one in moments if one.mask is not None]
            assert len(memories) + len(masks) <= 14 * rules.objects
            assert kept_by(memories) <= len(memories) * one_memory
            # Recent ones stay with those of objects that ended since, conditioning ones alone.
            logits = [one.logits for one in masks]
            one_mask = MICRO.grid**2 * 4
            assert kept_by(logits) <= (8 + 2 * 6) * rules.objects * one_mask
            features = sum(one.nbytes for one in follower._features.values())
            remembered = kept_by([*memories, *logits, *(one.embedding for one in masks)])
            # Detected and tracked ones, of this frame and of the one before.
            shown_bytes = 4 * len(boxes) * one_mask
            now = features + features // 2 + shown_bytes + one_memory
            assert held() - before <= now + remembered
    assert len(names) > 10  # objects came and went
    assert len(follower.tracks) <= rules.objects
    assert np.median(seconds[80:]) <= 1.3 * np.median(seconds[20:60])


def test_the_bundled_memory_is_known_by_its_own_file_and_not_by_the_models():
    own = memory_sha256("compact", "torch", "fp32")
    assert own == load_follow_backend("compact", "torch", "fp32").memory_sha256
    assert own != resolve_weights("compact").sha256
