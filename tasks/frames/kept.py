"""Frames that a device has already: what was read for its detector is not read again for masks."""

from __future__ import annotations

from sam2_core.backends.gpu import opened_gpu
from sam2_core.types import ImageArray
from sam2_core.views import StagedFrame
from tasks.frames.images import read_image
from tasks.types import FrameRef


def keep_frame(frame: FrameRef, staged: StagedFrame) -> None:
    """Keep a frame that was read for a detector on this process's GPU, where there is room."""
    gpu = opened_gpu()
    if gpu is not None:
        gpu.kept.keep(_key(frame), staged)


def kept_or_read(frame: FrameRef) -> ImageArray | StagedFrame:
    """Return a frame, the one that was kept if it was, else its pixels as of `read_image`."""
    gpu = opened_gpu()
    kept = gpu.kept.take(_key(frame)) if gpu else None
    return read_image(frame) if kept is None else kept


def _key(frame: FrameRef) -> tuple[str, ...]:
    return frame.uri, frame.etag, frame.local_path
