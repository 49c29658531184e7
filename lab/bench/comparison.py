"""Whole frames beside those who run the same model in other ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sam2_core
from lab.bench.peers import PeerOptions, TorchPeer, make_peer
from lab.bench.session import Session
from lab.bench.timing import interleaved, ratio, timings_as_dict
from lab.bench.whole_frame import segment_frame
from sam2_core.cache import cache_folder, file_sha256
from sam2_core.find_weights import CHECKPOINT_SUFFIXES
from sam2_core.presets import preset_named
from sam2_core.types import AutolabelError, Masks


@dataclass(frozen=True)
class _PeerMasks:
    """A peer's masks of the frame as COCO counts: its own way, and on our resized image."""

    own: list[bytes]
    same_input: list[bytes]


def compare_frames(run: Session) -> dict[str, Any]:
    """Whole frames, from bytes to COCO masks: this product and its peers in turns."""
    ours = segment_frame(run.segmenter, run.frame)
    cases: dict[str, Callable[[], object]] = {
        "autolabel": lambda: segment_frame(run.frames, run.frame)
    }
    crops = run.close_ups
    if crops is not None:
        cases["autolabel close-ups"] = lambda: segment_frame(crops, run.frame)
    peers, masks = _load_peers(run)
    for name, peer in peers.items():
        peer.draws_outlines = run.random
        cases[name] = lambda peer=peer: peer.frame(run.frame)  # type: ignore[misc]
    timings = interleaved(
        cases, run.options.repeats, budget_s=run.options.budget_s, warm_up=0,
        note=run.noting("whole frame"),
    )  # fmt: skip
    fast = timings["autolabel"]
    return {
        "whole_frame": timings_as_dict(timings),
        "frame_vs_torch": ratio(timings.get("torch eager"), fast),
        "frame_vs_peers": {name: ratio(timings[name], fast) for name in peers},
        **_agreements(run, ours, masks),
    }


def _agreements(run: Session, ours: Masks, masks: dict[str, _PeerMasks]) -> dict[str, Any]:
    """Agreement of masks: with each peer as it is, and on our resized image, graph against graph.

    We resize to whole grey levels, as transformers does; a peer that keeps fractions sees another
    image, and masks of a few pixels change with it.
    """
    if "mask_iou_with_peers" in run.skipped:
        return {"mask_iou_with_peers": {}, "mask_iou_same_input": {}}
    return {
        "mask_iou_with_peers": {
            name: _agreement(ours, theirs.own) for name, theirs in masks.items()
        },
        "mask_iou_same_input": {
            name: _agreement(ours, theirs.same_input) for name, theirs in masks.items()
        },
    }


def _load_peers(run: Session) -> tuple[dict[str, TorchPeer], dict[str, _PeerMasks]]:
    """Load the peers that are asked for, and return them with the frame's masks by each."""
    if not run.options.peers:
        run.skipped["torch eager"] = "not asked for"
        return {}, {}
    options = PeerOptions(
        preset_named(run.preset), run.precision,
        run.backend.info.device != "cpu", reference_state(run),
    )  # fmt: skip
    peers: dict[str, TorchPeer] = {}
    masks: dict[str, _PeerMasks] = {}
    square = run.segmenter.prepare(run.frame.read(), run.frame.boxes).images_model[0]
    for name in run.options.peers:
        run.note(f"loading {name}")
        try:
            peer = make_peer(name, options)
            masks[name] = _PeerMasks(peer.frame(run.frame), peer.frame(run.frame, square))
        except AutolabelError as error:
            run.skipped[name] = str(error)
        except Exception as error:  # noqa: BLE001 - a peer that fails must not cost the run
            run.skipped[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            peers[name] = peer
    return peers, masks


def _agreement(ours: Masks, theirs: list[bytes]) -> dict[str, float] | None:
    """Mean and low IoU between our masks of the frame and a peer's, empty ones of ours aside."""
    from pycocotools import mask as coco_mask

    size = list(ours.size_hw)
    overlaps = [
        float(
            coco_mask.iou([{"size": size, "counts": a}], [{"size": size, "counts": b}], [0])[0, 0]
        )
        for a, b, area in zip(ours.rle, theirs, ours.area_px, strict=True)
        if area
    ]
    if not overlaps:
        return None
    return {
        "mean": round(float(np.mean(overlaps)), 5),
        "p1": round(float(np.quantile(overlaps, 0.01)), 5),
        "masks": len(overlaps),
    }


def reference_state(run: Session) -> Mapping[str, Any] | None:
    """State dict that the measured model was exported from; None for seeded random weights.

    Where the checkpoint is not here, peers get random weights: their time is the same, and only
    the agreement of masks is then without meaning (and is left out).
    """
    checkpoint = run.backend.info.stamp.checkpoint_sha256
    if checkpoint.startswith("random"):
        return None
    path = _checkpoint_file(run)
    if path is None:
        run.skipped["mask_iou_with_peers"] = (
            f"the checkpoint {checkpoint[:12]} is not on this machine: peers "
            "run with random weights"
        )
        return None
    try:
        from sam2_core.checkpoints import load_checkpoint

        state: Mapping[str, Any] = load_checkpoint(path).state_dict()
    except (ImportError, AutolabelError) as error:
        run.skipped["mask_iou_with_peers"] = f"peers run with random weights: {error}"
        return None
    return state


def _checkpoint_file(run: Session) -> Path | None:
    """File of the measured model's checkpoint: as named, in the cache, or bundled."""
    preset = preset_named(run.preset)
    named = Path(run.options.model)
    bundled = Path(sam2_core.__file__).parent / "weights"
    candidates = [named] if named.suffix in CHECKPOINT_SUFFIXES else []
    candidates += sorted((cache_folder(run.options.cache) / "checkpoints").glob("*"))
    candidates += sorted(bundled.rglob(f"*{preset.name}*.safetensors"))
    wanted = run.backend.info.stamp.checkpoint_sha256
    return next(
        (path for path in candidates if path.is_file() and file_sha256(path) == wanted), None
    )
