"""Model sizes: the four published SAM 2.1 ones, a compact one of ours, and a micro one for tests.

All share one architecture (Hiera trunk, FPN neck, prompt encoder, two-way mask decoder), one code
path and Meta's state-dict keys. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sam2_core.types import AutolabelError

META_URL = "https://dl.fbaipublicfiles.com/segment_anything_2/092824"
HUGGING_FACE_URL = "https://huggingface.co"

# Behind the name of a model of close-ups: it takes whole frames.
WHOLE_FRAMES = ":whole"


@dataclass(frozen=True)
class Preset:
    """The dimensions of a model, and where its published weights are.

    Attributes:
        name: what a user types.
        embed_dim: channels of the trunk's first stage; doubled at each of the three poolings.
        num_heads: attention heads of the first stage; doubled with the channels.
        stages: blocks in each of the four stages.
        global_blocks: indices of blocks that attend to the whole grid instead of windows.
        window_sizes: attention window side of each stage, in tokens.
        position_grid_hw: size of the learned background position embedding.
        image_size: side S of the square input, pixels; divisible by 32 and by 4 * window_sizes[0],
            as close_up_size is.
        close_up_size: the same of a close-up (see `prompted_frame`), 0 where boxes are segmented in
            whole frames only: its weights were not trained for crops.
        width: channels of neck and decoder.
        decoder_mlp_dim: hidden size of the two-way transformer's MLPs.
        iou_head_dim: hidden size of the predicted-IoU head.
        decoder_heads: attention heads of the mask decoder.
        memory_layers: layers of memory attention.
        memory_shrink: its queries and keys are so many times narrower than `width`.
        tracking_decoder: masks that memory makes have a mask decoder of their own.
        checkpoint: file name of Meta's checkpoint, "" where there is none to download.
        checkpoint_sha256: of that file, "" where unknown.
        checkpoint_bytes: its size, 0 where unknown.
        hugging_face: repository of the same weights as safetensors, "" where there is none.

    """

    name: str
    embed_dim: int
    num_heads: int
    stages: tuple[int, int, int, int]
    global_blocks: tuple[int, ...]
    window_sizes: tuple[int, int, int, int]
    position_grid_hw: tuple[int, int] = (7, 7)
    image_size: int = 1024
    close_up_size: int = 0
    width: int = 256
    decoder_mlp_dim: int = 2048
    iou_head_dim: int = 256
    decoder_heads: int = 8
    memory_layers: int = 4
    memory_shrink: int = 1
    tracking_decoder: bool = False
    checkpoint: str = ""
    checkpoint_sha256: str = ""
    checkpoint_bytes: int = 0
    hugging_face: str = ""

    @property
    def grid(self) -> int:
        """Side G of the mask grid: image_size / 4."""
        return self.image_size // 4

    @property
    def embedding_grid(self) -> int:
        """Side E of the image embedding: image_size / 16."""
        return self.image_size // 16

    @property
    def channels(self) -> tuple[int, int, int, int]:
        """Channels of the four stages."""
        return (self.embed_dim, self.embed_dim * 2, self.embed_dim * 4, self.embed_dim * 8)

    @property
    def memory_width(self) -> int:
        """Channels of what is remembered of a frame of video: width / 4."""
        return self.width // 4

    @property
    def memory_attention_width(self) -> int:
        """Channels of queries and keys of memory attention: width / memory_shrink."""
        return self.width // self.memory_shrink

    @property
    def meta_url(self) -> str:
        """Where Meta publishes the checkpoint, "" where there is none."""
        return f"{META_URL}/{self.checkpoint}" if self.checkpoint else ""

    @property
    def hugging_face_url(self) -> str:
        """Where the safetensors file of the same weights is, "" where there is none."""
        if not self.hugging_face:
            return ""
        return f"{HUGGING_FACE_URL}/{self.hugging_face}/resolve/main/model.safetensors"

    def sized(self, *, image_size: int | None = None, width: int | None = None) -> Preset:
        """Return the same model with another input size or decoder width.

        The name stays; a checkpoint fits any input size, but only its own width.
        """
        return replace(self, image_size=image_size or self.image_size, width=width or self.width)


# Checksums: Meta publishes none; these are what independent projects pin for the same files
# (Intel's geti-prompt and micro-sam agree on all four), and what the Hugging Face copies of the
# same .pt files carry as their LFS object ids.
TINY = Preset(
    name="tiny",
    embed_dim=96,
    num_heads=1,
    stages=(1, 2, 7, 2),
    global_blocks=(5, 7, 9),
    window_sizes=(8, 4, 14, 7),
    checkpoint="sam2.1_hiera_tiny.pt",
    checkpoint_sha256="7402e0d864fa82708a20fbd15bc84245c2f26dff0eb43a4b5b93452deb34be69",
    checkpoint_bytes=156_008_466,
    hugging_face="facebook/sam2.1-hiera-tiny",
)
SMALL = Preset(
    name="small",
    embed_dim=96,
    num_heads=1,
    stages=(1, 2, 11, 2),
    global_blocks=(7, 10, 13),
    window_sizes=(8, 4, 14, 7),
    checkpoint="sam2.1_hiera_small.pt",
    checkpoint_sha256="6d1aa6f30de5c92224f8172114de081d104bbd23dd9dc5c58996f0cad5dc4d38",
    checkpoint_bytes=184_416_285,
    hugging_face="facebook/sam2.1-hiera-small",
)
BASE_PLUS = Preset(
    name="base_plus",
    embed_dim=112,
    num_heads=2,
    stages=(2, 3, 16, 3),
    global_blocks=(12, 16, 20),
    window_sizes=(8, 4, 14, 7),
    position_grid_hw=(14, 14),
    checkpoint="sam2.1_hiera_base_plus.pt",
    checkpoint_sha256="a2345aede8715ab1d5d31b4a509fb160c5a4af1970f199d9054ccfb746c004c5",
    checkpoint_bytes=323_606_802,
    hugging_face="facebook/sam2.1-hiera-base-plus",
)
LARGE = Preset(
    name="large",
    embed_dim=144,
    num_heads=2,
    stages=(2, 6, 36, 4),
    global_blocks=(23, 33, 43),
    window_sizes=(8, 4, 16, 8),
    checkpoint="sam2.1_hiera_large.pt",
    checkpoint_sha256="2647878d5dfa5098f2f8649825738a9345572bae2d4350a2468587ece47dd318",
    checkpoint_bytes=898_083_611,
    hugging_face="facebook/sam2.1-hiera-large",
)
# Our own: about 5.2 M parameters. Its windows divide the grid at 512, 768 and 1024, so its encoder
# never pads; its weights are trained by this project and bundled.
COMPACT = Preset(
    name="compact",
    embed_dim=48,
    num_heads=1,
    stages=(1, 2, 5, 1),
    global_blocks=(6,),
    window_sizes=(8, 4, 8, 4),
    image_size=1024,
    close_up_size=256,
    width=128,
    decoder_mlp_dim=1024,
    iou_head_dim=128,
    memory_layers=2,
    memory_shrink=2,
    tracking_decoder=True,
)
# For tests: about 0.1 M parameters, with windows that do not divide the grid (as in the big ones).
MICRO = Preset(
    name="micro",
    embed_dim=8,
    num_heads=1,
    stages=(1, 1, 2, 1),
    global_blocks=(3,),
    window_sizes=(8, 4, 6, 3),
    image_size=128,
    width=32,
    decoder_mlp_dim=64,
    iou_head_dim=32,
)

PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in (COMPACT, TINY, SMALL, BASE_PLUS, LARGE)
}


def preset_named(name: str) -> Preset:
    """Return a preset by name ("base-plus" and "base_plus" alike); `AutolabelError` if unknown."""
    key = name.strip().lower().replace("-", "_").replace("+", "_plus")
    if key == MICRO.name:
        return MICRO
    if key not in PRESETS and ("/" in name or name.startswith((".", "~"))):
        raise AutolabelError(f"there is no model {name}: no such folder or file")
    if key not in PRESETS:
        raise AutolabelError(f"unknown model {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[key]
