"""The decoder executions that a set of prompts takes: engines, rows, images and buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sam2_core.backends.tensorrt_plan import Shape, split_into_buckets
from sam2_core.batching import bucket_for
from sam2_core.types import BOX_POINTS, FEATURES, AutolabelError, Prompts

if TYPE_CHECKING:
    from sam2_core.backends.tensorrt_engine import LoadedEngine

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DecoderCall:
    """One decoder execution: rows of the caller's prompts, padded to a bucket.

    Attributes:
        engine: that runs it.
        rows: of the prompts, at most `bucket`.
        images: that these prompts are of, ascending, at most `image_bucket`.
        bucket: prompts that the engine sees.
        image_bucket: images whose features it sees.

    """

    engine: LoadedEngine
    rows: Rows
    images: Rows
    bucket: int
    image_bucket: int

    def shapes(self, points: int) -> dict[str, Shape]:
        """Shapes of all inputs, for prompts of this many points."""
        shapes = {}
        for name, largest in self.engine.largest.items():
            first = self.image_bucket if name in FEATURES else self.bucket
            shapes[name] = (first, *largest[1:])
        return shapes | {"points": (self.bucket, points, 2), "labels": (self.bucket, points)}


class DecoderEngines:
    """A model's decoders, and which of them decodes what.

    Args:
        engines: by the name of their graph.
        image_buckets: of the encoder.
        model: folder of the model, for messages.

    """

    def __init__(
        self, engines: Mapping[str, LoadedEngine], image_buckets: tuple[int, ...], model: Path
    ) -> None:
        self._model = model
        self._image_buckets = image_buckets
        self.several = engines["decoder"]
        # For features of one image: what its prompts share is computed once.
        self._single = engines.get("decoder_single")
        self._masked = engines.get("decoder_mask")
        self.box_buckets = self.several.buckets("points")
        self.most_images = self.several.largest["embedding"][0]

    def box_calls(self, images: int) -> Iterator[DecoderCall]:
        """Yield a call without rows of every box bucket, over features of this many images."""
        engine = self._single if images == 1 else None
        nothing = np.zeros(0, np.int64)
        for count in self.box_buckets:
            yield DecoderCall(engine or self.several, nothing, nothing, count, images)

    def calls(self, prompts: Prompts) -> Iterator[DecoderCall]:
        """Yield the calls that decode every prompt once.

        Raises:
            AutolabelError: mask prompts, and the model cannot take them.

        """
        engine = self.several
        if prompts.mask_logits is not None:
            if self._masked is None:
                raise AutolabelError(
                    f"{self._model} has no decoder_mask.onnx: export the model again "
                    "to refine masks"
                )
            engine = self._masked
        buckets = engine.buckets("points") if prompts.labels.shape[1] == BOX_POINTS else ()
        # Other prompts run unpadded, without a CUDA graph.
        buckets = buckets or tuple(range(1, engine.most_free("points") + 1))
        for start, stop, _ in split_into_buckets(len(prompts), buckets):
            images = np.unique(prompts.image_index[start:stop])
            for first in range(0, len(images), self.most_images):
                group = images[first : first + self.most_images]
                rows = start + np.flatnonzero(np.isin(prompts.image_index[start:stop], group))
                image_bucket = min(bucket_for(len(group), self._image_buckets), self.most_images)
                bucket = bucket_for(len(rows), buckets)
                alone = len(group) == 1 and engine is self.several
                chosen = (self._single or engine) if alone else engine
                yield DecoderCall(chosen, rows, group, bucket, image_bucket)
