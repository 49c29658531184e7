"""One benchmark run: what this product does, in turns with how others do it, on one frame."""

from __future__ import annotations

from typing import Any

from lab.bench.comparison import compare_frames
from lab.bench.decoding import (
    Decoder,
    decoder_cases,
    encode_and_wait,
)
from lab.bench.frame import BenchFrame
from lab.bench.machine import describe_machine
from lab.bench.session import BenchOptions, Session, start
from lab.bench.timing import Note, interleaved, ratio, timings_as_dict
from lab.bench.whole_frame import memory_of_a_frame, stage_times
from sam2_core.backends.protocol import Backend
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
        results["stages"] = timings_as_dict(stage_times(run.frames, frame, options.repeats))
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
    if not len(image.prompts):
        run.skipped["decoder"] = "no valid box in the frame"
        return {"decoder": {}, "decoder_vs_published": None}
    decoders = _decoders(run, image.images_model[0])
    ours = run.graph
    cases = decoder_cases(decoders, image.prompts)
    repeats, budget = run.options.repeats, run.options.budget_s
    timings = interleaved(cases, repeats, budget_s=budget, note=run.noting("decoder"))
    found: dict[str, Any] = {
        "decoder": timings_as_dict(timings),
        "decoder_vs_prototype": ratio(timings["prototype"], timings[ours]),
        "decoder_vs_published": None,
    }
    if ours == "published":
        run.skipped["decoder_vs_published"] = (
            "only the published graph of this model is here; with PyTorch the other one is exported"
        )
    elif "published" in decoders:
        for name in decoders.keys() - {"published", ours}:
            found[f"decoder_{name}_vs_published"] = ratio(timings["published"], timings[name])
        found["decoder_vs_published"] = ratio(timings["published"], timings[ours])
    return found


def _decoders(run: Session, image_model: ImageArray) -> dict[str, Decoder]:
    """Return the ways to decode, each with the frame encoded by its own graph."""
    chunk = run.segmenter.decoder_chunk
    backends: dict[str, Backend] = {}
    found: dict[str, Decoder] = {}
    if run.graph == "published":
        features = encode_and_wait(run.backend, [image_model])
        return {"published": Decoder(run.backend, features, chunk)}
    alone = run.published_decoder()
    if alone is not None:
        features = alone.laid_out(encode_and_wait(run.backend, [image_model]))
        found["published"] = Decoder(alone, features, PUBLISHED_CHUNK)
    else:
        try:
            backends["published"] = run.load("published")
        except AutolabelError as error:
            run.skipped["published"] = str(error)
    backends[run.graph] = run.backend
    for name, backend in backends.items():
        found[name] = Decoder(backend, encode_and_wait(backend, [image_model]), chunk)
    return found
