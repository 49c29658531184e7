"""Frames and prompts in, masks out: batches frames through the encoder and prompts through decoder.

The three steps of a frame can run on different threads: `prepare` (resize, prompts) ahead of the
device, `run` (encode, decode) on it, `finish` (runs of the mask) behind it; `segment` does all.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from sam2_core.backends.protocol import Backend, Later
from sam2_core.batching import gather, group_prompts
from sam2_core.postprocess import finish
from sam2_core.preprocess import (
    PreparedFrame,
    StagedFrame,
    View,
    checked_image,
    prompted_frame,
    resize_square,
)
from sam2_core.types import (
    AutolabelError,
    Boxes,
    DeviceMemoryError,
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    Masks,
    Prompts,
)

logger = logging.getLogger(__name__)

# More than this and a decoder call gets no faster per prompt on an H200. On a CPU the backend makes
# smaller calls of it.
_CHUNK = 136
# Images in one encoder call on a CPU and a GPU: whole frames, and close-ups.
_FRAMES_CPU, _FRAMES_GPU = 1, 4
_CLOSE_UPS_CPU, _CLOSE_UPS_GPU = 32, 64


_PROBE_PX = 64
# Rows of a decoded batch that belong to a frame.
_Part = tuple[Later, slice]


def _rows_of_frame(parts: Sequence[_Part]) -> LowResMasks:
    """Wait for a frame's rows and put them together."""
    return LowResMasks.joined([later().chosen(rows) for later, rows in parts])


class Segmenter(AbstractContextManager["Segmenter"]):
    """Batched SAM 2 over a loaded backend.

    Args:
        backend: a loaded model.
        decoder_chunk: prompts in one decoder call, of one or several frames. Out of memory halves
            it for good.
        encoder_batch: images in one encoder call: frames, or close-ups of one frame or several.

    """

    def __init__(
        self,
        backend: Backend,
        *,
        decoder_chunk: int | None = None,
        encoder_batch: int | None = None,
    ) -> None:
        self.backend = backend
        on_cpu = backend.info.device == "cpu"
        self.image_size, self.close_ups = backend.info.image_size, backend.info.close_ups
        self._frames = _FRAMES_CPU if on_cpu else _FRAMES_GPU
        crops = _CLOSE_UPS_CPU if on_cpu else _CLOSE_UPS_GPU
        self.encoder_batch = encoder_batch or (crops if self.close_ups else self._frames)
        self._pool = ThreadPoolExecutor(2, "sam2-masks")
        self.decoder_chunk = decoder_chunk or _CHUNK
        if self.decoder_chunk < 1 or self.encoder_batch < 1:
            raise ValueError("decoder_chunk and encoder_batch must be at least 1")

    @property
    def frame_batch(self) -> int:
        """Frames that are worth handing to `start` at once, so that encoder calls are full."""
        return self._frames if self.close_ups else self.encoder_batch

    def close(self) -> None:
        """Stop the threads that encode masks."""
        self._pool.shutdown(wait=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, image: ImageArray | StagedFrame, boxes: Boxes) -> PreparedFrame:
        """Resize a frame, or stage it for a device that does, and turn its boxes into prompts.

        Args:
            image: uint8 (H, W, 3) RGB, or what a detector's device has of it.
            boxes: N boxes in the image's pixels; invalid ones stay as rows with a reason.

        Raises:
            ValueError: it is no such image, or what should be boxes is something else.

        """
        if isinstance(image, StagedFrame):
            staged, image = self.backend.staged(image), image.pixels
        else:
            staged = self.backend.stage(checked_image(image))
        if not isinstance(boxes, Boxes):
            raise ValueError(f"expected Boxes of the image, got {type(boxes).__name__}")
        height, width = image.shape[:2]
        frame = prompted_frame(
            (height, width), boxes.xyxy_px, self.image_size, close_ups=self.close_ups
        )
        regions = [(0, 0, width, height)]
        if frame.regions_xyxy_px is not None:
            regions = [tuple(region) for region in frame.regions_xyxy_px.tolist()]
        if staged is not None:  # the device itself cuts and resizes
            views = [View(staged, region) for region in regions]
            return replace(frame, images_model=views, boxes_xyxy_px=boxes.xyxy_px)
        squares = [
            resize_square(image[top:bottom, left:right], self.image_size)
            for left, top, right, bottom in regions
        ]
        return replace(frame, images_model=squares)

    def run(self, frames: Sequence[PreparedFrame]) -> list[LowResMasks]:
        """Encode and decode prepared frames on the device and wait for the results.

        Args:
            frames: any number; `encoder_batch` of them are encoded at a time.

        Returns:
            One `LowResMasks` a frame, rows as in its prompts.

        Raises:
            DeviceMemoryError: a single frame, or a single prompt, does not fit.
            AutolabelError: a server segments the frames.

        """
        found = [later() for later in self.start(frames)]
        low_res = [answer for answer in found if isinstance(answer, LowResMasks)]
        if len(low_res) < len(found):
            raise AutolabelError("a server gives whole masks only: name another --backend")
        return low_res

    def start(self, frames: Sequence[PreparedFrame]) -> list[Callable[[], LowResMasks | Masks]]:
        """Queue prepared frames on the device; frames without prompts are not encoded.

        As `run`, but returns functions that wait for each frame's result, on any thread. A server
        makes whole masks.
        """
        if (served := self.backend.segment_later(frames)) is not None:
            return [*served]
        images: list[EncoderImage] = []
        image_of = []  # each prompt's image among those
        for frame in frames:
            used, place = np.unique(frame.prompts.image_index, return_inverse=True)
            image_of.append(place + len(images))
            images += [frame.images_model[image] for image in used]
        parts: list[list[_Part]] = [[] for _ in frames]
        start = 0
        while start < len(images):
            stop = min(start + self.encoder_batch, len(images))
            try:
                features = self.backend.encode(images[start:stop])
            except DeviceMemoryError as error:
                self.encoder_batch = self._halved("encoder_batch", stop - start, error)
                continue
            prompts = []
            for frame, image in zip(frames, image_of, strict=True):
                rows = slice(*np.searchsorted(image, [start, stop]))
                some = frame.prompts.chosen(rows)
                prompts.append(replace(some, image_index=image[rows] - start))
            decoded = self.decode(features, prompts)
            first = 0
            for some, found in zip(prompts, parts, strict=True):
                if len(some):
                    found.append((decoded, slice(first, first + len(some))))
                first += len(some)
            start = stop
        return [partial(_rows_of_frame, found) for found in parts]

    def decode(self, features: Features, frames: Sequence[Prompts]) -> Later:
        """Queue the prompts of several frames on encoded images, in chunks of what fits.

        Args:
            features: B encoded images.
            frames: prompts of each frame; their image index is among the B.

        Returns:
            Masks of all prompts, one frame's after another's.

        """
        parts: list[tuple[npt.NDArray[np.int64], Later]] = []
        for rows, prompts in group_prompts(frames):
            start = 0
            while start < len(rows):
                chosen = slice(start, start + self.decoder_chunk)
                some = prompts.chosen(chosen)
                try:
                    decoded = self.backend.decode_later(features, some)
                except DeviceMemoryError as error:
                    self.decoder_chunk = self._halved("decoder_chunk", len(some), error)
                    continue
                parts.append((rows[chosen], decoded))
                start += len(some)

        @cache  # for each of the frames
        def together() -> LowResMasks:
            return gather([(rows, part()) for rows, part in parts])

        return together

    def _halved(self, name: str, tried: int, error: DeviceMemoryError) -> int:
        """Return half of a size that was too much for the device; raise if it was 1."""
        if tried <= 1:
            raise error
        device = self.backend.info.device
        logger.warning("out of memory on %s with %s %d: halving it", device, name, tried)
        now: int = getattr(self, name)  # another thread may have halved it meanwhile
        return min(now, tried // 2)

    def probe(self) -> None:
        """Segment a plain frame that nothing is wrong with, to see whether the device works."""
        plain = np.zeros((_PROBE_PX, _PROBE_PX, 3), np.uint8)
        corners = np.array([[0.25, 0.25, 0.75, 0.75]], np.float32) * _PROBE_PX
        self.segment([plain], [Boxes(corners, np.ones(1, np.float32), ("probe",))])

    @staticmethod
    def finish(
        frame: PreparedFrame, decoded: LowResMasks | Masks | Callable[[], LowResMasks | Masks]
    ) -> Masks:
        """Make a frame's masks of what `start` or `run` returned, waiting for it where needed."""
        found = decoded() if callable(decoded) else decoded
        if isinstance(found, Masks):
            return found
        return finish(found, frame.size_hw, frame.rows, frame.reasons, frame.regions_xyxy_px)

    def segment(self, images: Sequence[ImageArray], boxes: Sequence[Boxes]) -> list[Masks]:
        """Segment every box of every image.

        Args:
            images: F images, uint8 (H, W, 3) RGB, of any sizes.
            boxes: F sets of boxes in their image's pixels.

        Returns:
            F `Masks`; row i of each belongs to box i of that image.

        Raises:
            ValueError: they are no lists of one length, or hold something else.

        """
        if isinstance(boxes, Boxes) or len(images) != len(boxes):
            raise ValueError(
                f"expected a list of images and a list of as many Boxes, got {len(images)} images "
                f"and {type(boxes).__name__} of {len(boxes)}"
            )
        pending = []
        for start in range(0, len(images), self.frame_batch):
            some = slice(start, start + self.frame_batch)
            frames = [self.prepare(*pair) for pair in zip(images[some], boxes[some], strict=True)]
            for frame, later in zip(frames, self.start(frames), strict=True):
                pending.append(self._pool.submit(self.finish, frame, later))
        return [future.result() for future in pending]
