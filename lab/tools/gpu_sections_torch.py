"""Sections of `gpu_measure.py` about the torch backend."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from gpu_common import (
    CACHE,
    OUT,
    PRESET,
    TRAINED,
    Frame,
    agreement,
    mask_iou,
    median_ms,
    profiled,
    record,
)

from lab.bench.outlines import outlined
from sam2_core.backends.torch_backend import TorchBackend
from sam2_core.find_weights import Wanted, resolve_weights
from sam2_core.frame_loop import FrameJob, FrameLoop
from sam2_core.segmenter import Segmenter

FIDELITY_FRAMES = ("street", *(f"scene{number}" for number in range(8)))
LARGE_PX = 32 * 32


class BoxShapedMasks(torch.nn.Module):
    """A decoder whose random weights' noise is exchanged, on the device, for outlines in the boxes.

    See `lab.bench.outlines` for why; here it is part of the compiled decoder.
    """

    def __init__(self, decoder: torch.nn.Module, grid: int) -> None:
        super().__init__()
        self.decoder, self.grid = decoder, grid

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, scores = self.decoder(*inputs)
        cell = torch.arange(self.grid, device=logits.device, dtype=torch.float32) + 0.5
        return outlined(logits.float(), inputs[3][:, :2] / 4, cell).to(logits.dtype), scores


def backend_of(
    model: str, precision: str, graph: str = "restructured", *, compiled: bool = True,
    outlines: bool = False, close_ups: bool = False,
) -> TorchBackend:  # fmt: skip
    """Load the torch backend on the GPU; `outlines` as in `BoxShapedMasks`."""
    wanted = Wanted(precision, graph, CACHE)
    backend = TorchBackend(
        resolve_weights(model, wanted), wanted, "cuda", compiled=compiled, close_ups=close_ups
    )
    if outlines:
        grid = backend.info.image_size // 4
        for name in ("decoder", "decoder_single"):
            inner = getattr(backend._modules, name)
            object.__setattr__(backend._modules, name, BoxShapedMasks(inner, grid).eval())
    return backend


def graph_ms(graph: torch.cuda.CUDAGraph, repeats: int = 30) -> float:
    """Device time of one replay of a captured graph."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return round(sorted(times)[repeats // 2], 3)


def components(batches: tuple[int, ...] = (4,)) -> None:
    """Encoder and decoder of the torch backend: wall clock, and device time of each graph."""
    frame = Frame()
    backend = backend_of(f"random:{PRESET}", "fp16", outlines=True)
    started = time.perf_counter()
    features = backend.encode([frame.square])
    backend.decode(features, frame.prompts)
    record("torch", first_call_s=round(time.perf_counter() - started, 1))
    wait = torch.cuda.synchronize
    encode = median_ms(lambda: backend.encode([frame.square]), wait)
    decode = median_ms(lambda: backend.decode_later(features, frame.prompts), wait)
    host = median_ms(lambda: backend.decode(features, frame.prompts), wait)
    view = backend.stage(frame.image).whole()
    for what, image in (("uploaded", view), ("square", frame.square),
                        ("uploaded", view)):  # fmt: skip
        work = lambda image=image: backend.decode(backend.encode([image]), frame.prompts)  # noqa: E731
        record("torch", preset=PRESET, boxes=len(frame.prompts), frame=what,
               encode_decode_to_host_ms=median_ms(work, wait, 100))  # fmt: skip
    staging = median_ms(lambda: backend.stage(frame.image), wait)
    anew = median_ms(lambda: backend.encode([backend.stage(frame.image).whole()]), wait)
    record("torch", stage_ms=staging, stage_upload_resize_encode_ms=anew)
    traced(lambda: backend.decode(backend.encode([view]), frame.prompts))
    record("torch", preset=PRESET, boxes=len(frame.prompts), encode_ms=encode, decode_ms=decode,
           decode_and_wait_ms=host)  # fmt: skip
    for (kind, images, count), captured in backend._graphs.captured.items():
        record(
            "torch", graph=kind, images=images, prompts=count, device_ms=graph_ms(captured.graph)
        )
    profiled(lambda: backend.encode([frame.square]), "torch encode")
    profiled(lambda: backend.decode_later(features, frame.prompts), "torch decode")
    for batch in batches:
        squares = [frame.square] * batch
        ms = median_ms(lambda squares=squares: backend.encode(squares), wait) / batch
        record("torch", encoder_batch=batch, encode_ms_per_image=round(ms, 3))


def traced(work) -> None:
    """Write when the host and the device do what, in a few rounds of `work`."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(4):
            work()
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(OUT / "trace.json.gz"))


def fidelity() -> None:
    """Trained weights: each precision against the published modules in PyTorch fp32."""
    for model in dict.fromkeys((*TRAINED, "compact")):
        reference = backend_of(model, "fp32", "published", compiled=False)
        for precision, compiled in (("fp16", True), ("fp32", False)):
            backend = backend_of(model, precision, compiled=compiled)
            label = f"torch {precision}{' compiled' if compiled else ''}"
            compare(backend, reference, label, weights=model)


def compare(backend, reference, label: str, **facts) -> None:
    """Record how well a backend's masks agree with the reference's, over all frames."""
    import numpy as np

    ious, areas = [], []
    for name in FIDELITY_FRAMES:
        try:
            frame = Frame(name)
        except FileNotFoundError:
            continue
        expected = reference.decode(reference.encode([frame.square]), frame.prompts)
        found = backend.decode(backend.encode([frame.square]), frame.prompts)
        ious.append(mask_iou(found, expected))
        cells = (np.asarray(expected.logits) > 0).sum((1, 2))
        grid = expected.logits.shape[1:]
        areas.append(cells * (frame.size_hw[0] / grid[0]) * (frame.size_hw[1] / grid[1]))
    iou, large = np.concatenate(ious), np.concatenate(areas) > LARGE_PX
    record("fidelity", backend=label, frames=len(ious), **facts, **agreement(iou, large))


def frames() -> None:
    """Whole frames, JPEG bytes in and COCO masks out, sustained."""
    for model, outlines in ((f"random:{PRESET}", True), (TRAINED[0], False)):
        backend = backend_of(model, "fp16", outlines=outlines)
        for _ in range(2):
            sustained(backend, f"torch {Path(model).stem} fp16", 1)
    backend = backend_of(TRAINED[0], "fp16", close_ups=True)
    sustained(backend, f"torch {Path(TRAINED[0]).stem} fp16 close-ups", None)


def sustained(
    backend, label: str, encoder_batch: int | None, count: int = 200, **loop_args
) -> None:
    """Run frames through the frame loop; the rate is that of all frames after a warm-up pass."""
    frame = Frame(image_size=backend.info.image_size)
    jobs = [FrameJob(i, frame_reader(frame.data), frame.boxes) for i in range(count)]
    with Segmenter(backend, encoder_batch=encoder_batch) as segmenter:
        one = time.perf_counter()
        list(FrameLoop(segmenter, jobs[:16], **loop_args))
        torch.cuda.synchronize()
        started = time.perf_counter()
        loop = FrameLoop(segmenter, jobs, **loop_args)
        done = [result for result in loop if result.masks is not None]
        elapsed = time.perf_counter() - started
    record("frames", what=label, encoder_batch=segmenter.encoder_batch, frames=len(done),
           ms_per_frame=round(elapsed / count * 1e3, 3),
           warm_s=round(started - one, 1), **loop_args)  # fmt: skip


def frame_reader(data: bytes):
    """Return what reads a frame, with the product's decoder."""
    from gpu_common import decoded_rgb

    return lambda: decoded_rgb(data)


def peers() -> None:
    """Others on the same frame: JPEG bytes in, full-resolution masks on the host out, in turn."""
    from lab.bench.peers import PeerOptions, make_peer
    from sam2_core.presets import preset_named

    frame = bench_frame()
    options = PeerOptions(preset_named(PRESET), "fp16", True)
    for name in sys.argv[2:] or ("transformers eager", "transformers compiled"):
        peer = make_peer(name, options)
        work = lambda peer=peer: [masks for masks in peer.masks(frame)]  # noqa: E731, C416
        started = time.perf_counter()
        work()
        first = time.perf_counter() - started
        ms = median_ms(work, torch.cuda.synchronize, repeats=15)
        record("peers", peer=name, preset=PRESET, first_s=round(first, 1), frame_ms=ms)
        parts(peer, frame, name)


def bench_frame():
    """The street as peers take it."""
    from gpu_common import decoded_rgb

    from lab.bench.frame import BenchFrame

    given = Frame()
    return BenchFrame(given.data, decoded_rgb, given.boxes, "street")


def parts(peer, frame, name: str) -> None:
    """Record a peer's encoder and decoder alone."""
    wait = torch.cuda.synchronize
    image = torch.from_numpy(frame.read()).cuda()
    boxes = peer.boxes_model(frame, image.shape[:2])
    with torch.inference_mode():
        features = peer.encode(image)
        record("peers", peer=name,
               encode_ms=median_ms(lambda: peer.encode(image), wait),
               decode_ms=median_ms(lambda: peer.decode(features, boxes), wait))  # fmt: skip


def counts() -> None:
    """Numbers of boxes in a frame: time and device memory."""
    backend = backend_of(f"random:{PRESET}", "fp16", outlines=True)
    frame = Frame()
    with Segmenter(backend, encoder_batch=1) as segmenter:
        for count in (0, 1, 7, 135, 500, 2000):
            rows = frame.xyxy[[i % len(frame.xyxy) for i in range(count)]].reshape(-1, 4)
            from gpu_common import boxes_of

            def work(boxes=boxes_of(rows)):  # noqa: B008
                prepared = segmenter.prepare(frame.image, boxes)
                return segmenter.finish(prepared, segmenter.start([prepared])[0])

            device = lambda boxes=boxes_of(rows): segmenter.run(  # noqa: E731, B008
                [segmenter.prepare(frame.image, boxes)]
            )
            masks = work()
            torch.cuda.synchronize()
            whole = median_ms(work, torch.cuda.synchronize, 5)
            ran = median_ms(device, torch.cuda.synchronize, 5)
            free, total = torch.cuda.mem_get_info()
            record("counts", backend="torch", boxes=count, rows=len(masks), frame_ms=whole,
                   to_logits_ms=ran, device_gb=round((total - free) / 1e9, 2))  # fmt: skip


def prepare() -> None:
    """Compile what other sections need, into the cache on disk: outlines or peers."""
    if sys.argv[2] == "peers":
        from lab.bench.peers import PeerOptions, make_peer
        from sam2_core.presets import preset_named

        frame = bench_frame()
        peer = make_peer("transformers compiled", PeerOptions(preset_named(PRESET), "fp16", True))
        _ = [masks for masks in peer.masks(frame)]  # noqa: C416
        return
    frame = Frame()
    backend = backend_of(f"random:{PRESET}", "fp16", outlines=True)
    features = backend.encode([frame.square])
    for count in (len(frame.prompts), 7, 92):  # the others are what `counts` needs
        backend.decode(features, frame.many(count))
    record("prepared", what=sys.argv[2])


def export() -> None:
    """Export what the ONNX Runtime sections need: encoder and decoder only."""
    from sam2_core.export import export_model

    for model in sys.argv[2:]:
        weights = resolve_weights(model)
        name = Path(model).stem if weights.preset == "*" else weights.preset
        folder = Path(CACHE) / f"{name}-fp16"
        started = time.perf_counter()
        export_model(weights.load(), folder, checkpoint_sha256=weights.sha256,
                     precision="fp16",
                     weights=weights.label, only=("encoder", "decoder"))  # fmt: skip
        record("prepared", what=str(folder), s=round(time.perf_counter() - started, 1))


SECTIONS = (components, fidelity, frames, peers, counts, prepare, export)
if __name__ == "__main__":
    {section.__name__: section for section in SECTIONS}[sys.argv[1]]()
