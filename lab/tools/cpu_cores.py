"""Which threads a CPU's cores are best given: our ways beside the published graph and PyTorch.

    PYTHONPATH=. python lab/tools/cpu_cores.py [--rounds 3] [--frames 12]

`compact` in float32 on a rendered frame with 135 boxes, whole frames. First the side-by-side
comparison of BENCHMARKS.md, then one table for each choice: how many boxes a decoder call takes,
who makes the calls, how many threads the encoder has, and how many frames are under way at a time.
About four minutes on sixteen cores; `--rounds 1 --frames 2 --boxes 20` for a look on two.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from lab.bench.frame import BenchFrame, rendered_frame
from lab.bench.peers import PeerOptions, make_peer
from lab.bench.published import PublishedDecoderOnly
from lab.bench.timing import interleaved
from lab.bench.whole_frame import segment_frame, stage_times, sustained
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend, run_session
from sam2_core.checkpoints import load_checkpoint
from sam2_core.load import load_backend
from sam2_core.machine import describe_machine, usable_cores
from sam2_core.presets import preset_named
from sam2_core.segmenter import Segmenter
from sam2_core.types import DECODED, FEATURES, Features, LowResMasks, Prompts

Case = Callable[[], object]


@dataclass(frozen=True)
class Choice:
    """One way to use the cores.

    Attributes:
        encoder: threads of the encoder.
        spin: whether they wait for work in a loop.
        workers: decoder calls side by side.
        unit: boxes in a call.
        sessions: decoders that are opened, for the calls by turns.
        arena: whether a decoder keeps memory between calls.

    """

    encoder: int
    spin: bool
    workers: int
    unit: int
    sessions: int = 1
    arena: bool = True

    def __str__(self) -> str:
        spin, arena = ("" if self.spin else " asleep"), ("" if self.arena else " no arena")
        return (
            f"encoder {self.encoder}{spin}, {self.workers} calls of {self.unit}, "
            f"{self.sessions} sessions{arena}"
        )


class Chosen(OnnxRuntimeBackend):
    """Our backend with a choice in place of its own; all boxes of a frame are queued at once."""

    def __init__(self, ours: OnnxRuntimeBackend, choice: Choice) -> None:
        vars(self).update(vars(ours))
        folder = self.folder
        self.choice, self._workers = choice, ThreadPoolExecutor(choice.workers, "decoder")
        self._encoder = _opened(folder.graph("encoder"), choice.encoder, spin=choice.spin)
        threads, graph = max(usable_cores() // choice.workers, 1), folder.graph("decoder_single")
        decoders = [
            _opened(graph, threads, number, arena=choice.arena) for number in range(choice.sessions)
        ]
        self._turns = itertools.cycle(decoders)

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode all prompts of one image, some in each call."""
        starts = range(0, len(prompts), self.choice.unit)
        parts = list(self._workers.map(lambda start: self._call(features, prompts, start), starts))
        logits, *scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return LowResMasks(logits[:, 0], *scores)

    def _call(self, features: Features, prompts: Prompts, start: int) -> list[Any]:
        some = prompts.chosen(slice(start, start + self.choice.unit))
        inputs = {name: features.data[name] for name in FEATURES}
        inputs |= {"points": some.points_model, "labels": some.labels}
        inputs["image_index"] = some.image_index
        return run_session(next(self._turns), DECODED, inputs)


@functools.cache
def _opened(
    graph: Path, threads: int, number: int = 0, *, spin: bool = True, arena: bool = True
) -> Any:
    """Open a graph, once for all choices that open it so; `number` tells those of one choice."""
    del number
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.enable_cpu_mem_arena = arena
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    provider = ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    return ort.InferenceSession(str(graph), options, providers=[provider])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--boxes", type=int, default=135)
    parser.add_argument("--without-torch", action="store_true")
    given = parser.parse_args()
    print(json.dumps(describe_machine()))
    bench = Bench(given.rounds, given.frames, rendered_frame(given.boxes))
    bench.side_by_side(torch=not given.without_torch)
    bench.decoders()
    bench.encoders()
    bench.single_frames()
    bench.several_frames()
    print("\n".join(bench.lines))


def in_chunks(backend: PublishedDecoderOnly, features: Features, prompts: Prompts) -> None:
    """Decode as the published example does, a few boxes in a call on all threads."""
    for start in range(0, len(prompts), 8):
        backend.decode(features, prompts.chosen(slice(start, start + 8)))


def encoding(backend: Chosen, square: Any, together: int) -> Case:
    """Return what encodes several frames at a time."""
    pool = ThreadPoolExecutor(together)
    return lambda: list(pool.map(lambda _: backend.encode([square]), range(together)))


class Bench:
    """What is measured, and the lines that say so."""

    def __init__(self, rounds: int, frames: int, frame: BenchFrame) -> None:
        self.rounds, self.frames, self.frame = rounds, frames, frame
        backend = load_backend("compact", "onnxruntime-cpu", close_ups=False)
        assert isinstance(backend, OnnxRuntimeBackend)
        self.ours, self.segmenter = backend, Segmenter(backend)
        prepared = self.segmenter.prepare(frame.read(), frame.boxes)
        self.prompts, self.square = prepared.prompts, prepared.images_model[0]
        self.features = backend.encode([self.square])
        self.cores = usable_cores()
        self.encoder_threads = dict.fromkeys(max(self.cores // part, 1) for part in (1, 2, 4))
        self.lines = [""]
        self._expected = segment_frame(self.segmenter, frame).rle

    def side_by_side(self, *, torch: bool) -> None:
        """Time us as we are, the published decoder, and PyTorch."""
        folder = self.ours.folder
        published = PublishedDecoderOnly(folder.path / "decoder_published.onnx", folder, None)
        laid_out = published.laid_out(self.features)
        cases: dict[str, Case] = {
            "decoder, published graph, 8 boxes a call": lambda: in_chunks(
                published, laid_out, self.prompts
            ),
            "decoder, ours": lambda: self.segmenter.decode(self.features, [self.prompts]).wait(),
            "frame, ours": lambda: segment_frame(self.segmenter, self.frame),
        }
        if torch:
            state = load_checkpoint(folder.path / "compact.safetensors").state_dict()
            options = PeerOptions(preset_named("compact"), "fp32", False, state)
            peer = make_peer("torch eager", options)
            cases["frame, PyTorch eager"] = lambda: peer.frame(self.frame)
        self.table("side by side", cases)
        loop = sustained(self.segmenter, self.frame, self.frames)
        self.lines.append(f"{loop['ms_per_frame']:9.1f}  frame, ours, {self.frames} in a loop")
        for stage, timing in stage_times(self.segmenter, self.frame, self.rounds).items():
            self.lines.append(f"{timing.median_ms:9.1f}  stage {stage}")

    def decoders(self) -> None:
        """Time ways to decode all boxes of a frame."""
        cases: dict[str, Case] = {}
        everyone, half = self.cores, max(self.cores // 2, 1)
        for workers, unit, sessions, arena in (
            (everyone, 1, 1, True), (everyone, 2, 1, True), (everyone, 3, 1, True),
            (everyone, 5, 1, True), (everyone, 9, 1, True), (everyone, 1, everyone, True),
            (everyone, 2, everyone, True), (everyone, 2, 1, False), (half, 2, 1, True),
            (half, 4, 1, True), (half, 9, 1, True),
        ):  # fmt: skip
            choice = Choice(everyone, True, workers, unit, sessions, arena)
            cases[str(choice)] = functools.partial(
                self.chosen(choice).decode, self.features, self.prompts
            )
        self.table("decoder", cases)

    def encoders(self) -> None:
        """Time the encoder with more or fewer threads, and several frames at a time."""
        cases: dict[str, Case] = {}
        counts: dict[str, int] = {}
        ways = [
            (threads, spin, together)
            for threads, spin in itertools.product(self.encoder_threads, (True, False))
            for together in (1, 2, 4)
            if together == 1 or (spin and threads * together <= 2 * self.cores)
        ]
        for threads, spin, together in [*ways, (1, True, self.cores)]:
            backend = self.chosen(Choice(threads, spin, self.cores, 2))
            name = f"{threads} threads{'' if spin else ' asleep'}, {together} frames at a time"
            cases[name], counts[name] = encoding(backend, self.square, together), together
        self.table("encoder, of one frame", cases, counts)

    def single_frames(self) -> None:
        """Time one frame from bytes to masks."""
        cases: dict[str, Case] = {}
        for threads, spin in itertools.product(self.encoder_threads, (True, False)):
            for unit in (1, 2, 9):
                choice = Choice(threads, spin, self.cores, unit)
                segmenter = Segmenter(self.chosen(choice), decoder_chunk=len(self.prompts))
                cases[str(choice)] = functools.partial(segment_frame, segmenter, self.frame)
        self.table("one frame", cases)

    def several_frames(self) -> None:
        """Time frames of which several are under way."""
        everyone, half, quarter = self.cores, max(self.cores // 2, 1), max(self.cores // 4, 1)
        for threads, lanes, unit in (
            (everyone, 1, 2), (everyone, 2, 2), (everyone, 2, 9), (everyone, 3, 2), (half, 2, 2),
            (half, 3, 2), (half, 4, 2), (half, 4, 9), (quarter, 4, 2), (quarter, 4, 9),
            (quarter, 6, 2), (1, everyone, 2),
        ):  # fmt: skip
            self.lanes(Choice(threads, True, everyone, unit), lanes)

    @functools.cache  # noqa: B019
    def chosen(self, choice: Choice) -> Chosen:
        """Return the backend of a choice, opened once."""
        return Chosen(self.ours, choice)

    def table(
        self, title: str, cases: dict[str, Case], frames: Mapping[str, int] | None = None
    ) -> None:
        """Time cases by turns; those that do several frames in one go are divided by them."""
        started = time.perf_counter()
        timings = interleaved(cases, self.rounds, budget_s=40)
        print(title, f"{time.perf_counter() - started:.0f} s", flush=True)
        self.lines.append(f"--- {title}, ms (fastest and slowest of {self.rounds})")
        for name, timing in timings.items():
            count = frames[name] if frames else 1
            low, middle, high = (
                value / count for value in (timing.low_ms, timing.median_ms, timing.high_ms)
            )
            self.lines.append(f"{middle:9.1f}  {name}  ({low:.1f} to {high:.1f})")

    def lanes(self, choice: Choice, lanes: int) -> None:
        """Time frames of which several are under way at a time, from bytes to masks."""
        segmenter = Segmenter(self.chosen(choice), decoder_chunk=len(self.prompts))
        lock, same = threading.Lock(), True

        def one(_: int) -> None:
            nonlocal same
            masks = segment_frame(segmenter, self.frame)
            with lock:
                same = same and masks.rle == self._expected

        with ThreadPoolExecutor(lanes) as pool:
            list(pool.map(one, range(lanes)))
            count = max(self.frames, lanes)
            started = time.perf_counter()
            list(pool.map(one, range(count)))
            each_ms = (time.perf_counter() - started) / count * 1e3
        verdict = "" if same else ", OTHER MASKS"
        self.lines.append(f"{each_ms:9.1f}  {lanes} frames at a time, {choice}{verdict}")
        print(self.lines[-1], flush=True)


if __name__ == "__main__":
    main()
