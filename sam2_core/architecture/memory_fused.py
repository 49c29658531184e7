"""Memory as a GPU runs it: channels side by side, and kernels of our own where those are faster.

Each module gives what the one that it is made of gives; elsewhere than on a GPU, too.
"""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.hiera import LayerNorm2d
from sam2_core.architecture.memory import FuserLayer, MemoryEncoder, in_halves_on_gpu


class Downsampled(nn.Module):
    """A convolution of few channels with 3x3 and stride 2, normalised, GELU."""

    def __init__(self, conv: nn.Conv2d, norm: LayerNorm2d, gelu: nn.GELU) -> None:
        super().__init__()
        self.conv, self.norm, self.gelu = conv, norm, gelu

    def forward(self, x: Tensor) -> Tensor:
        """(O, c, S, S) -> (O, w, S / 2, S / 2)."""
        if not in_halves_on_gpu(x):
            return self.gelu(self.norm(self.conv(x)))
        from sam2_core.architecture import memory_kernels

        return memory_kernels.downsampled(x, self.conv, self.norm)


class FusedLayer(nn.Module):
    """A `FuserLayer` of cells whose channels lie side by side."""

    def __init__(self, layer: FuserLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(O, E, E, w) -> the same."""
        layer = self.layer
        if in_halves_on_gpu(x):
            from sam2_core.architecture import memory_kernels

            inner = memory_kernels.depthwise(x, layer.dwconv)
        else:
            inner = layer.dwconv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        norm = layer.norm
        inner = F.layer_norm(inner, inner.shape[-1:], norm.weight, norm.bias, norm.eps)
        return x + layer.gamma * layer.pwconv2(F.gelu(layer.pwconv1(inner)))


class FusedEncoder(nn.Module):
    """A `MemoryEncoder`, which must not be used afterwards."""

    def __init__(self, encoder: MemoryEncoder) -> None:
        super().__init__()
        steps = encoder.mask_downsampler["encoder"]
        self.masks = nn.Sequential(Downsampled(*steps[:3]), Downsampled(*steps[3:6]), *steps[6:])
        self.image, self.out = encoder.pix_feat_proj, encoder.out_proj
        self.layers = nn.Sequential(*map(FusedLayer, encoder.fuser["layers"]))

    def forward(self, image: Tensor, masks: Tensor) -> Tensor:
        """Return (O, memory_width, E, E) of (1 or O, w, E, E) and (O, 1, S, S)."""
        x = (self.image(image) + self.masks(masks)).permute(0, 2, 3, 1)
        return self.out(self.layers(x).permute(0, 3, 1, 2))


class Unrefined(nn.Module):
    """A `MemoryDecoder` of prompts without masks."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Decode conditioned maps, their index, fine features, points, labels and `ambiguous`."""
        return self.decoder(*inputs[:-1], None, None, inputs[-1])
