"""Frames and prompts in, masks out: batches frames through the encoder and prompts through decoder.

The three steps of a frame can run on different threads: `prepare` (resize, prompts) ahead of the
device, `run` (encode, decode) on it, `finish` (runs of the mask) behind it; `segment` does all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.batching import collect, group_prompts, no_masks, slice_low_res, slice_prompts
from sam2_core.postprocess import finish
from sam2_core.preprocess import box_prompts, resize_square
from sam2_core.prompts import PointPrompts, point_prompts
from sam2_core.stage_times import StageTimes
from sam2_core.types import (
    Backend,
    Boxes,
    DeviceMemoryError,
    Features,
    ImageArray,
    LowResMasks,
    Masks,
    PendingMasks,
    Prompts,
)

logger = logging.getLogger(__name__)
Given = TypeVar("Given", Boxes, PointPrompts)

# More than this and a decoder call gets no faster per prompt on anything measured.
_CHUNK_CPU, _CHUNK_GPU = 8, 136


@dataclass(frozen=True, eq=False)
class PreparedFrame:
    """A frame ready for the device.

    Attributes:
        image_model: uint8 (S, S, 3).
        size_hw: of the original image.
        prompts: V valid prompts; their image index is set when frames are batched.
        rows: int64 (V,), the caller's row of each.
        reasons: N reasons, "" for a valid row.

    """

    image_model: ImageArray
    size_hw: tuple[int, int]
    prompts: Prompts
    rows: npt.NDArray[np.int64]
    reasons: tuple[str, ...]


def _rows(pending: PendingMasks, rows: slice) -> LowResMasks:
    return slice_low_res(pending.wait(), rows)


class Segmenter:
    """Batched SAM 2 over a loaded backend.

    Args:
        backend: a loaded model.
        decoder_chunk: prompts in one decoder call, of one or several frames; "auto" measures what
            is fastest on this machine once and remembers it. Out of memory halves it for good.
        encoder_batch: frames in one encoder call.
        post_threads: threads that encode masks in `segment`.
        cache: folder where "auto" remembers; the default cache when None.

    """

    def __init__(
        self,
        backend: Backend,
        *,
        decoder_chunk: int | Literal["auto"] | None = None,
        encoder_batch: int | None = None,
        post_threads: int = 2,
        cache: Path | None = None,
    ) -> None:
        self.backend = backend
        on_cpu = backend.info.device == "cpu"
        self.image_size = backend.info.image_size
        self.encoder_batch = encoder_batch or (1 if on_cpu else 4)
        self._pool = ThreadPoolExecutor(post_threads, "sam2-masks")
        self._staged = getattr(backend, "staged", lambda image: image)
        if decoder_chunk == "auto":
            from sam2_core.tuning import tuned_decoder_chunk

            decoder_chunk = tuned_decoder_chunk(backend, cache)
        self.decoder_chunk = decoder_chunk or (_CHUNK_CPU if on_cpu else _CHUNK_GPU)
        if self.decoder_chunk < 1 or self.encoder_batch < 1:
            raise ValueError("decoder_chunk and encoder_batch must be at least 1")

    def close(self) -> None:
        """Stop the threads that encode masks."""
        self._pool.shutdown(wait=True)

    def __enter__(self) -> Segmenter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, image: ImageArray, boxes: Boxes) -> PreparedFrame:
        """Resize a frame and turn its boxes into prompts; no device needed.

        Args:
            image: uint8 (H, W, 3) RGB.
            boxes: N boxes in the image's pixels; invalid ones stay as rows with a reason.

        """
        size_hw = (image.shape[0], image.shape[1])
        found = box_prompts(boxes.xyxy_px, size_hw, self.image_size)
        index = np.zeros(len(found.rows), np.int64)
        prompts = Prompts(found.points_model, found.labels, index)
        resized = self._staged(resize_square(image, self.image_size))
        return PreparedFrame(resized, size_hw, prompts, found.rows, found.reasons)

    def prepare_points(self, image: ImageArray, points: PointPrompts) -> PreparedFrame:
        """Resize a frame and turn clicks, boxes with clicks, or earlier masks into prompts."""
        size_hw = (image.shape[0], image.shape[1])
        prompts, rows, reasons = point_prompts(points, size_hw, self.image_size)
        return PreparedFrame(resize_square(image, self.image_size), size_hw, prompts, rows, reasons)

    def run(
        self, frames: Sequence[PreparedFrame], times: StageTimes | None = None
    ) -> list[LowResMasks]:
        """Encode and decode prepared frames on the device and wait for the results.

        Args:
            frames: any number; `encoder_batch` of them are encoded at a time.
            times: where the seconds of encoding and decoding are added.

        Returns:
            One `LowResMasks` a frame, rows as in its prompts.

        Raises:
            DeviceMemoryError: a single frame, or a single prompt, does not fit.

        """
        return [later() for later in self.start(frames, times)]

    def start(
        self, frames: Sequence[PreparedFrame], times: StageTimes | None = None
    ) -> list[Callable[[], LowResMasks]]:
        """Queue prepared frames on the device; frames without prompts are not encoded.

        As `run`, but returns functions that wait for each frame's result, on any thread.
        """
        times = times or StageTimes()
        results: list[Callable[[], LowResMasks]] = [partial(no_masks, self.image_size // 4)] * len(
            frames
        )
        busy = [index for index, frame in enumerate(frames) if len(frame.prompts)]
        start = 0
        while start < len(busy):
            batch = busy[start : start + self.encoder_batch]
            try:
                with times.measure("encode"):
                    features = self.backend.encode([frames[index].image_model for index in batch])
            except DeviceMemoryError as error:
                self.encoder_batch = self._halved("encoder_batch", len(batch), error)
                continue
            with times.measure("decode"):
                decoded = self._decode(features, [frames[index].prompts for index in batch])
            position = 0
            for index in batch:
                stop = position + len(frames[index].prompts)
                results[index] = partial(_rows, decoded, slice(position, stop))
                position = stop
            start += len(batch)
        return results

    def _decode(self, features: Features, frames: Sequence[Prompts]) -> PendingMasks:
        parts: list[tuple[npt.NDArray[np.int64], PendingMasks]] = []
        for rows, prompts in group_prompts(frames):
            start = 0
            while start < len(rows):
                chosen = slice(start, start + self.decoder_chunk)
                try:
                    decoded = self._queue(features, slice_prompts(prompts, chosen))
                except DeviceMemoryError as error:
                    tried = len(rows[chosen])
                    self.decoder_chunk = self._halved("decoder_chunk", tried, error)
                    continue
                parts.append((rows[chosen], decoded))
                start += len(decoded)
        total = sum(len(prompts) for prompts in frames)
        return PendingMasks(total, partial(collect, parts, total, self.image_size // 4))

    def _queue(self, features: Features, prompts: Prompts) -> PendingMasks:
        later = getattr(self.backend, "decode_later", None)
        if later is not None:
            pending: PendingMasks = later(features, prompts)
            return pending
        decoded = self.backend.decode(features, prompts)
        return PendingMasks(len(prompts), lambda: decoded)

    def _halved(self, name: str, tried: int, error: DeviceMemoryError) -> int:
        """Return half of a size that was too much for the device; raise if it was 1."""
        if tried <= 1:
            raise error
        device = self.backend.info.device
        logger.warning("out of memory on %s with %s %d: halving it", device, name, tried)
        return tried // 2

    @staticmethod
    def finish(frame: PreparedFrame, decoded: LowResMasks | Callable[[], LowResMasks]) -> Masks:
        """Make a frame's masks of the decoder's output, waiting for it first where needed."""
        low_res = decoded() if callable(decoded) else decoded
        return finish(low_res, frame.size_hw, frame.rows, frame.reasons)

    def segment(self, images: Sequence[ImageArray], boxes: Sequence[Boxes]) -> list[Masks]:
        """Segment every box of every image.

        Args:
            images: F images, uint8 (H, W, 3) RGB, of any sizes.
            boxes: F sets of boxes in their image's pixels.

        Returns:
            F `Masks`; row i of each belongs to box i of that image.

        """
        return self._segment(images, boxes, self.prepare)

    def segment_prompts(
        self, images: Sequence[ImageArray], prompts: Sequence[PointPrompts]
    ) -> list[Masks]:
        """Segment clicks, boxes with clicks, or refine earlier masks; rows as in `segment`."""
        return self._segment(images, prompts, self.prepare_points)

    def _segment(
        self,
        images: Sequence[ImageArray],
        prompts: Sequence[Given],
        prepare: Callable[[ImageArray, Given], PreparedFrame],
    ) -> list[Masks]:
        if len(images) != len(prompts):
            raise ValueError(f"{len(images)} images but {len(prompts)} sets of prompts")
        pending = []
        for start in range(0, len(images), self.encoder_batch):
            stop = start + self.encoder_batch
            frames = [
                prepare(image, given)
                for image, given in zip(images[start:stop], prompts[start:stop], strict=True)
            ]
            for frame, later in zip(frames, self.start(frames), strict=True):
                pending.append(self._pool.submit(self.finish, frame, later))
        return [future.result() for future in pending]
