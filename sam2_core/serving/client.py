"""A client for scripts and batch workers: open an image on the server, then ask for masks of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from sam2_core.prompts import PointPrompts
from sam2_core.serving.contract import DEFAULT_URL, ServedModel, served_as
from sam2_core.serving.failover import Servers
from sam2_core.serving.image_requests import (
    SentImage,
    as_prompts,
    content_inputs,
    known_name,
    masks_in,
    name_inputs,
    open_call,
    opened,
    predict_call,
    predictable,
    refuse_other_size,
)
from sam2_core.serving.transport import Access, ExpiredOnServerError, connect
from sam2_core.types import ImageArray, Masks


class Sam2Client:
    """A model on Triton servers; any thread may ask.

    Args:
        urls: address of a server, or several in the order in which they are tried: grpc://HOST:PORT,
            grpcs://, http:// or https://.
        model: as it was given to `autolabel serve`.
        access: TLS and headers.
        deadline_s: how long to wait for an answer.
        patience_s: how long to go on while no server answers.

    Raises:
        AutolabelError: no server answers, or none serves the model.

    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        model: str | Path = "compact",
        *,
        access: Access | None = None,
        deadline_s: float = 30.0,
        patience_s: float = 10.0,
    ) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        transports = [connect(url, access) for url in given]
        self._deadline_s = deadline_s
        self._servers = Servers(transports, served_as(model), patience_s=patience_s)
        self._model = self._servers.names.image

    @property
    def served(self) -> ServedModel:
        """What the server runs."""
        return self._servers.served

    def set_image(self, image: ImageArray | bytes) -> SentImage:
        """Make an image known to the server, which keeps it for as long as it has room.

        Args:
            image: uint8 (H, W, 3) RGB, or a JPEG. One that the server knows is not sent again.

        """
        name = known_name(image)
        if name is not None:
            try:
                return self._opened(image, name)
            except ExpiredOnServerError:
                pass
        return self._opened(image, None)

    def _opened(self, image: ImageArray | bytes, name: str | None) -> SentImage:
        inputs = content_inputs(image) if name is None else name_inputs(name)
        found = self._servers.infer(open_call(self._model, inputs, self._deadline_s))
        return opened(found, image)

    def predict(
        self,
        image: SentImage,
        *,
        boxes_xyxy_px: npt.ArrayLike | None = None,
        points_px: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        masks: npt.NDArray[np.bool_] | None = None,
    ) -> Masks:
        """Return the masks of N prompts, all in pixels of the image.

        Args:
            image: of `set_image`; sent again where the server has forgotten it.
            boxes_xyxy_px: (N, 4).
            points_px: (N, K, 2).
            labels: (N, K): 1 positive, 0 negative, -1 no point.
            masks: bool (N, H, W) of earlier masks, to refine; of models of whole frames.

        Returns:
            N rows; one that is no valid prompt is empty and says why.

        """
        refuse_other_size(image, masks)
        prompts = as_prompts(
            boxes_xyxy_px, points_px, labels, masks, grid=self.served.image_size // 4
        )
        return self.segment(image, prompts)

    def segment(self, image: SentImage, prompts: PointPrompts) -> Masks:
        """Return the masks of prompts; as `OpenImage.segment` without a server."""
        nothing = predictable(image, prompts)
        if nothing is not None:
            return nothing
        for about in (name_inputs(image.name), content_inputs(image.content)):
            call = predict_call(self._model, about, prompts, self._deadline_s)
            try:
                return masks_in(self._servers.infer(call))
            except ExpiredOnServerError as error:
                expired = error
        raise expired

    def close(self) -> None:
        """Let go of connections."""
        self._servers.close()

    def __enter__(self) -> Sam2Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()
