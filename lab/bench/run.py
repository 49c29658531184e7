"""One benchmark run: what this product does, in turns with how others do it, on one frame."""

from __future__ import annotations

from functools import partial
from typing import Any

from lab.bench.comparison import compare_frames
from lab.bench.decoding import Decoder, encode_and_wait
from lab.bench.frame import BenchFrame
from lab.bench.machine import describe_machine
from lab.bench.session import BenchOptions, Session, start
from lab.bench.timing import Note, interleaved, ratio, timings_as_dict
from lab.bench.whole_frame import memory_of_a_frame
from sam2_core.types import AutolabelError, ImageArray

FORMAT_VERSION = 1
# Boxes in a call of the published decoder: a call of all would take gigabytes.
PUBLISHED_CHUNK = 8


def run_benchmark(
    frame: BenchFrame, options: BenchOptions, note: Note = lambda _: None
) -> dict[str, Any]:
    """Measure and return one JSON-able object.

    Args:
        frame: the image and its boxes.
        options: what to measure.
        note: told what is running.

    Raises:
        AutolabelError: the model or the backend cannot be loaded here. What only a comparison
            needs is left out instead, with the reason under "skipped".

    """
    machine = describe_machine()
    run = start(frame, options, note)
    with run.segmenter:
        results: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "machine": machine,
            "model": _model_facts(run),
            "frame": {"source": frame.source, "boxes": len(frame.boxes)},
        }
        # First of all: nothing else is loaded yet that memory could belong to.
        note("memory of one frame")
        results["memory"] = memory_of_a_frame(run.frames, frame)
        image = frame.read()
        results["frame"]["size_hw"] = [int(size) for size in image.shape[:2]]
        results |= _decoder_sections(run)
        results |= compare_frames(run)
        results["skipped"] = run.skipped
    return results


def _model_facts(run: Session) -> dict[str, Any]:
    info = run.backend.info
    sha256 = info.stamp.checkpoint_sha256
    weights = f"random, seed {sha256.removeprefix('random-')}"
    if not sha256.startswith("random-"):
        facts = run.folder.facts if run.folder is not None else {}
        weights = str(facts.get("weights", f"checkpoint {sha256[:12]}"))
    return {
        "preset": run.preset,
        "weights": weights,
        "checkpoint_sha256": sha256,
        "graph": run.graph,
        "precision": run.precision,
        "image_size": info.image_size,
        "backend": info.stamp.backend,
        "device": info.device,
        "masks_of_whole_frames": "outlines in the boxes" if run.random else "the model's",
        "decoder_chunk": run.segmenter.decoder_chunk,
        "encoder_batch": run.segmenter.encoder_batch,
    }


def _decoder_sections(run: Session) -> dict[str, Any]:
    """All boxes of the frame by each way to decode them."""
    image = run.segmenter.prepare(run.frame.read(), run.frame.boxes)
    decoders = _decoders(run, image.images_model[0])
    cases = {name: partial(decoder.decode, image.prompts) for name, decoder in decoders.items()}
    repeats, budget = run.options.repeats, run.options.budget_s
    timings = interleaved(cases, repeats, budget_s=budget, note=run.noting("decoder"))
    return {
        "decoder": timings_as_dict(timings),
        "decoder_vs_published": ratio(timings.get("published"), timings[run.graph]),
    }


def _decoders(run: Session, image_model: ImageArray) -> dict[str, Decoder]:
    """Return the ways to decode, each with the frame encoded by its own graph."""
    ways = {run.graph: (run.backend, run.segmenter.decoder_chunk)}
    try:
        ways["published"] = (run.load("published"), PUBLISHED_CHUNK)
    except AutolabelError as error:
        run.skipped["published"] = str(error)
    return {
        name: Decoder(backend, encode_and_wait(backend, [image_model]), chunk)
        for name, (backend, chunk) in ways.items()
    }
