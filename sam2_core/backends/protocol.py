"""What every backend can do, and what one does that cannot do all of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sam2_core.preprocess import PreparedFrame, StagedFrame
from sam2_core.types import (
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    Masks,
    ModelStamp,
    Prompts,
)

# Waits for decoder output that may still be on its way from the device; any thread may call it.
Later = Callable[[], LowResMasks]


@dataclass(frozen=True)
class BackendInfo:
    """What a caller may need to know of a loaded backend.

    Attributes:
        stamp: what makes its masks.
        image_size: S, side of the square input in pixels.
        device: "cpu", or the GPU's name.
        close_ups: whether it takes each box in a crop of its own, not whole frames.

    """

    stamp: ModelStamp
    image_size: int
    device: str = "cpu"
    close_ups: bool = False


class Backend(Protocol):
    """A loaded model. No hidden state: any thread may decode any features.

    Backends derive from this class. What only some devices can do has a body here: that of a
    device which cannot. Of `decode` and `decode_later` each has one of its own.

    Attributes:
        info: stamp, input size and where it runs.

    """

    info: BackendInfo

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Encode B images.

        Raises:
            DeviceMemoryError: the batch is too large; fewer images may fit.

        """
        ...

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts in one call; the caller chooses the chunk.

        Raises:
            DeviceMemoryError: the chunk is too large; fewer prompts may fit.

        """
        return self.decode_later(features, prompts)()

    def decode_later(self, features: Features, prompts: Prompts) -> Later:
        """Queue P prompts on the device and go on; waiting for the result is another thread's.

        A device that cannot queue decodes them now.
        """
        decoded = self.decode(features, prompts)
        return lambda: decoded

    def certified(self) -> dict[str, Any] | None:
        """Return, in short, the certificate that it brings; None: it is held against PyTorch here.

        Raises:
            UncertifiedEngineError: it should bring one, and has none.

        """
        return None

    def stage(self, image: ImageArray) -> StagedFrame | None:
        """Copy a frame, uint8 (H, W, 3) RGB, to where the device fetches, cuts and resizes it.

        On any thread, ahead of the device. None: this device takes squares.
        """
        del image
        return None

    def staged(self, frame: StagedFrame) -> StagedFrame | None:
        """Return a frame that was staged for a device, another one's maybe, as `stage` would."""
        return self.stage(frame.pixels)

    def segment_later(self, frames: Sequence[PreparedFrame]) -> list[Callable[[], Masks]] | None:
        """Send frames with boxes to where they are segmented, and return what waits for each.

        None: this backend encodes and decodes here.
        """
        del frames
        return None

    def warm_up(self) -> None:
        """Do before the first frame what would keep it waiting; nothing where nothing would."""
        return
