"""How others run the same model on the same frame: PyTorch eager, transformers eager and compiled.

Each peer goes all the way as its users do: read the image, resize, encode, decode every box,
upsample every mask to the full image, threshold, copy to the host, encode COCO masks. Boxes are
decoded in chunks that fit the memory, and masks are upsampled in chunks for the same reason.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.bench.frame import BenchFrame
from lab.bench.outlines import outlined
from sam2_core.presets import Preset
from sam2_core.types import AutolabelError
from tests.transformers_model import transformers_config


@dataclass(frozen=True)
class PeerOptions:
    """What peers run.

    Attributes:
        preset: model dimensions.
        precision: "fp32" or "fp16".
        cuda: on the GPU, or on the CPU.
        state: state dict under Meta's names, or None for seeded random weights.

    """

    preset: Preset
    precision: str
    cuda: bool
    state: Any = None


class TorchPeer:
    """A peer; `frame` goes from bytes to masks, `encode` and `decode` are its parts."""

    def __init__(self, options: PeerOptions) -> None:
        import torch

        self.torch = torch
        self.size = options.preset.image_size
        self.device = torch.device("cuda" if options.cuda else "cpu")
        self.dtype = torch.float16 if options.precision == "fp16" else torch.float32
        # As many as fit comfortably; a user of a GPU decodes a frame's boxes in one call.
        self.chunk = 256 if options.cuda else 32
        self.masks_at_once = 256 if options.cuda else 16
        self.draws_outlines = False

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def encode(self, image: Any) -> Any:
        """Resize and encode one image (H, W, 3)."""
        raise NotImplementedError

    def decode(self, features: Any, boxes_model: Any) -> Any:
        """Decode boxes (P, 4) of the model's square; logits (P, 1, G, G)."""
        raise NotImplementedError

    def boxes_model(self, frame: BenchFrame, size_hw: tuple[int, int]) -> Any:
        """Boxes in the model's square, on the device."""
        height, width = size_hw
        scale = np.array([self.size / width, self.size / height] * 2, np.float32)
        return self.torch.from_numpy(frame.boxes.xyxy_px * scale).to(self.device)

    def masks(self, frame: BenchFrame) -> Iterator[npt.NDArray[np.bool_]]:
        """Do one frame; yields its masks (M, H, W) at full resolution on the host, in order."""
        torch = self.torch
        given = np.array(frame.read())
        size_hw = given.shape[:2]
        with torch.inference_mode():
            features = self.encode(torch.from_numpy(given).to(self.device))
            for boxes in self.boxes_model(frame, size_hw).split(self.chunk):
                logits = self.decode(features, boxes)
                if self.draws_outlines:
                    logits = self._outlined(logits, boxes)
                for part in logits.split(self.masks_at_once):
                    full = torch.nn.functional.interpolate(
                        part.float(), size_hw, mode="bilinear", align_corners=False
                    )
                    yield (full[:, 0] > 0).cpu().numpy()

    def frame(self, frame: BenchFrame) -> list[bytes]:
        """Do one frame and return its masks as COCO counts."""
        from pycocotools import mask as coco_mask

        counts: list[bytes] = []
        for masks in self.masks(frame):
            columns = np.asfortranarray(masks.astype(np.uint8).transpose(1, 2, 0))
            counts += [mask["counts"] for mask in coco_mask.encode(columns)]
        return counts

    def _outlined(self, logits: Any, boxes_model: Any) -> Any:
        cell = self.torch.arange(logits.shape[-1], device=self.device) + 0.5
        return outlined(logits[:, 0], boxes_model.reshape(-1, 2, 2) / 4, cell)[:, None]

    def _resized(self, image: Any) -> Any:
        """(1, 3, S, S) float 0..255, antialiased bilinear."""
        planes = image.permute(2, 0, 1)[None].float()
        return self.torch.nn.functional.interpolate(
            planes, (self.size, self.size), mode="bilinear", antialias=True
        )


def reference_model(options: PeerOptions) -> Any:
    """Meta's modules with the weights that everybody uses in this run."""
    from sam2_core.architecture import build_model, random_weights

    if options.state is None:
        return random_weights(options.preset, 0)
    model = build_model(options.preset)
    model.load_state_dict(options.state)
    return model.eval()


class PlainTorch(TorchPeer):
    """Meta's modules in eager PyTorch."""

    def __init__(self, options: PeerOptions) -> None:
        super().__init__(options)
        from sam2_core.architecture import cast

        self.model = cast(reference_model(options), self.dtype).to(self.device)

    def encode(self, image: Any) -> Any:
        """Resize and encode one image."""
        return self.model.encode(self._resized(image).permute(0, 2, 3, 1))

    def decode(self, features: Any, boxes_model: Any) -> Any:
        """Decode boxes as corner points with the published padding point."""
        from sam2_core.architecture import select_mask

        torch, count = self.torch, len(boxes_model)
        corners = boxes_model.reshape(count, 2, 2)
        points = torch.cat([corners, corners.new_zeros(count, 1, 2)], 1)
        labels = torch.tensor([[2, 3, -1]], device=self.device).expand(count, 3)
        index = torch.zeros(count, dtype=torch.int64, device=self.device)
        logits, iou, _ = self.model.decode(features, points, labels, index)
        return select_mask(logits, iou)[0]


class Transformers(TorchPeer):
    """The transformers library's `Sam2Model`, eager or under torch.compile."""

    def __init__(self, options: PeerOptions, *, compiled: bool) -> None:
        super().__init__(options)
        from sam2_core.architecture.model import PIXEL_MEAN, PIXEL_STD

        torch = self.torch
        self.model = _transformers_model(options).to(self.device, self.dtype)
        self.mean = torch.tensor(PIXEL_MEAN, device=self.device).reshape(1, 3, 1, 1)
        self.std = torch.tensor(PIXEL_STD, device=self.device).reshape(1, 3, 1, 1)
        self._encoder = self.model.get_image_embeddings
        self._decoder = self._run_decoder
        if compiled:
            mode = "reduce-overhead" if options.cuda else "default"
            self._encoder = torch.compile(self._encoder, mode=mode, dynamic=False)
            self._decoder = torch.compile(self._run_decoder, mode=mode, dynamic=False)

    def _run_decoder(self, features: list[Any], boxes: Any) -> Any:
        output = self.model(image_embeddings=features, input_boxes=boxes, multimask_output=False)
        return output.pred_masks

    def encode(self, image: Any) -> Any:
        """Resize, normalise and encode one image."""
        pixels = ((self._resized(image) - self.mean) / self.std).to(self.dtype)
        # Compiled code reuses its output buffers in the next call.
        return [part.clone() for part in self._encoder(pixels)]

    def decode(self, features: Any, boxes_model: Any) -> Any:
        """Decode boxes of the one image; all that the chunk holds are one batch of prompts."""
        logits = self._decoder(features, boxes_model[None])
        return logits[0].clone()


def _transformers_model(options: PeerOptions) -> Any:
    """`Sam2Model` with the same weights, so that its masks can be compared."""
    import torch
    from transformers import Sam2Model

    from sam2_core.checkpoints import from_hugging_face

    model = Sam2Model(transformers_config(options.preset)).eval()
    state = model.state_dict()
    renamed = from_hugging_face(state)
    with torch.no_grad():
        for name, value in reference_model(options).state_dict().items():
            renamed[name].copy_(value)  # arrays are shared: this writes into the model
        state["prompt_encoder.shared_embedding.positional_embedding"].copy_(
            state["shared_image_embedding.positional_embedding"]
        )
    return model


def make_peer(name: str, options: PeerOptions) -> TorchPeer:
    """Load a peer.

    Raises:
        AutolabelError: it is not installed, or has no GPU where one is asked for.

    """
    needed = ("torch",) if name == "torch eager" else ("torch", "transformers")
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        raise AutolabelError(f"{' and '.join(missing)} not installed (`make dev` installs both)")
    if options.cuda:
        import torch

        if not torch.cuda.is_available():
            raise AutolabelError("this PyTorch has no CUDA, and the other backends ran on the GPU")
    return PEERS[name](options)


PEERS: dict[str, Callable[[PeerOptions], TorchPeer]] = {
    "torch eager": PlainTorch,
    "transformers eager": lambda options: Transformers(options, compiled=False),
    "transformers compiled": lambda options: Transformers(options, compiled=True),
}
