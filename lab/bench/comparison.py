"""Whole frames beside those who run the same model in other ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sam2_core
from lab.bench.peers import PeerOptions, TorchPeer, make_peer
from lab.bench.session import Session
from lab.bench.timing import interleaved, ratio, timings_as_dict
from lab.bench.whole_frame import segment_frame
from sam2_core.cache import cache_folder, file_sha256
from sam2_core.find_weights import CHECKPOINT_SUFFIXES
from sam2_core.presets import preset_named
from sam2_core.types import AutolabelError


def compare_frames(run: Session) -> dict[str, Any]:
    """Whole frames, from bytes to COCO masks: this product and its peers in turns."""
    cases: dict[str, Callable[[], object]] = {
        "autolabel": lambda: segment_frame(run.frames, run.frame)
    }
    peers = _load_peers(run)
    for name, peer in peers.items():
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
    }


def _load_peers(run: Session) -> dict[str, TorchPeer]:
    """Load the peers that are asked for, and run each once."""
    if not run.options.peers:
        run.skipped["torch eager"] = "not asked for"
    peers: dict[str, TorchPeer] = {}
    for name in run.options.peers:
        run.note(f"loading {name}")
        try:
            options = PeerOptions(
                preset_named(run.preset), run.precision,
                run.backend.info.device != "cpu", reference_state(run),
            )  # fmt: skip
            peer = make_peer(name, options)
            peer.draws_outlines = run.random
            peer.frame(run.frame)
        except AutolabelError as error:
            run.skipped[name] = str(error)
        except Exception as error:  # noqa: BLE001 - a peer that fails must not cost the run
            run.skipped[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            peers[name] = peer
    return peers


def reference_state(run: Session) -> Mapping[str, Any] | None:
    """State dict that the measured model was exported from; None for seeded random weights.

    Raises:
        AutolabelError: the checkpoint is not on this machine. Other weights make other masks, and
            noise takes longer to encode.

    """
    if run.random:
        return None
    from sam2_core.checkpoints import load_checkpoint

    path = _checkpoint_file(run)
    if path is None:
        sha256 = run.backend.info.stamp.checkpoint_sha256
        raise AutolabelError(f"the checkpoint {sha256[:12]} is not on this machine")
    return load_checkpoint(path).state_dict()


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
