"""Memory as it runs in PyTorch and is exported: four graphs beside `LeanEncoder`.

`Recall` conditions a frame on what is remembered of O objects, `MemoryDecoder` makes their masks
and pointers, `MaskPrompt` prompts it with masks, `Remember` encodes the masks. All take the
encoder's features as they are, which have `no_mem_embed` added: it is subtracted where the
published model does not add it. What depends on the frame alone is computed once for all objects,
as far as the first layer's self-attention.
"""

import copy
import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.lean_attention import token_side
from sam2_core.architecture.lean_decoder import LeanDecoder
from sam2_core.architecture.memory import (
    Memory,
    Packed,
    RotaryAttention,
    Rotations,
    Turns,
    age_encoding,
    grid_position,
    sent,
)
from sam2_core.architecture.memory_fused import FusedEncoder
from sam2_core.architecture.model import Sam2, select_mask

POINTER_TOKENS = 4  # a pointer is cut into so many tokens of a memory's width
POINTER_FRAMES = 15  # ages of pointers are in units of this; shorter videos are not special here
ABSENT_LOGIT = -1024.0
# Weights of a decoder that the features of a frame already have in them: a decoder for tracking
# has no own ones.
OF_FEATURES = {
    "conv_s0.weight", "conv_s0.bias", "conv_s1.weight", "conv_s1.bias",
    "output_upscaling.0.bias", "output_upscaling.3.bias",
}  # fmt: skip


class Recall(nn.Module):
    """Memory attention.

    Args:
        model: the image path, in float32; unchanged.
        memory: its memory, in float32; unchanged.
        fused: attention by PyTorch's kernel, not by plain products (for ONNX).

    """

    def __init__(self, model: Sam2, memory: Memory, *, fused: bool = False) -> None:
        super().__init__()
        preset, self.fused = model.preset, fused
        self.attention = copy.deepcopy(memory.memory_attention)
        # The first halves of all pairs that are turned, then the second ones. Queries and keys are
        # reordered alike, which their product does not notice.
        inner = preset.memory_attention_width
        order = torch.arange(inner).reshape(-1, 2).t().flatten()
        for layer in self.attention.layers:
            for attention in (layer.self_attn, layer.cross_attn_image):
                for projection in (attention.q_proj, attention.k_proj):
                    reordered = {k: v[order] for k, v in projection.state_dict().items()}
                    projection.load_state_dict(reordered)
        self.age_projection = token_side(memory.obj_ptr_tpos_proj)
        start = 0.1 * grid_position(preset.embedding_grid, preset.width)
        self.register_buffer("start", start - model.no_mem_embed.detach().reshape(-1))
        self.register_buffer("position", grid_position(preset.embedding_grid, preset.memory_width))
        self.register_buffer("times", memory.maskmem_tpos_enc.detach().flatten(1).clone())
        self.rotations = Rotations(preset.embedding_grid, inner)

    def forward(
        self,
        embedding: Tensor,
        memories: Tensor,
        memory_places: Tensor,
        pointers: Tensor,
        pointer_ages: Tensor,
    ) -> Tensor:
        """Condition a frame on the memories of O objects, which have equally many.

        Args:
            embedding: (1, E*E, w) of `LeanEncoder`.
            memories: (O, M, E*E, w / 4) of `Remember`.
            memory_places: int64 (O, M) places in the table of times.
            pointers: float32 (O, P, w).
            pointer_ages: float32 (O, P) in frames.

        Returns:
            (O, E*E, w).

        """
        count, frames, _, width = memories.shape
        placed = memories + self.position + self.times[memory_places][:, :, None]
        tokens = pointers.to(memories.dtype).reshape(count, -1, width)
        ages = age_encoding(pointer_ages / POINTER_FRAMES, pointers.shape[-1])
        age = self.age_projection(ages).to(memories.dtype)
        age = age.repeat_interleave(POINTER_TOKENS, 1)
        values = torch.cat([memories.flatten(1, 2), tokens], 1)
        keys = torch.cat([placed.flatten(1, 2), tokens + age], 1)
        turns = self.turns, self.rotations(frames, tokens.shape[1])
        return self.through_layers(
            embedding, lambda attention, x: attention(x, keys, values, *turns, fused=self.fused)
        )

    @property
    def turns(self) -> Turns:
        """Cosine and sine of a frame's cells."""
        return self.rotations.cosine, self.rotations.sine

    def through_layers(
        self, embedding: Tensor, recall: Callable[[RotaryAttention, Tensor], Tensor]
    ) -> Tensor:
        """Take an embedding (1 or O, E*E, w) through all layers.

        Args:
            embedding: of `LeanEncoder`.
            recall: lets queries attend to what is remembered.

        """
        x, here = embedding + self.start, self.turns
        for layer in self.attention.layers:
            normal = layer.norm1(x)
            x = x + layer.self_attn(normal, normal, normal, here, here, fused=self.fused)
            x = x + recall(layer.cross_attn_image, layer.norm2(x))
            x = x + layer.linear2(F.relu(layer.linear1(layer.norm3(x))))
        return self.attention.norm(x)

    def packed(
        self,
        embedding: Tensor,
        memories: Sequence[Sequence[Tensor]],
        memory_places: Sequence[Sequence[int]],
        pointers: Sequence[Sequence[Tensor]],
        pointer_ages: Sequence[Sequence[float]],
    ) -> Tensor:
        """Condition a frame as `forward`, on as many memories and pointers as each object has.

        Args:
            embedding: (1, E*E, w) of `LeanEncoder`.
            memories: of O objects, (E*E, w / 4) each.
            memory_places: their places in the table of times.
            pointers: of O objects, float32 (w,) each.
            pointer_ages: their ages in frames.

        """
        device = embedding.device
        cells = torch.stack([memory for some in memories for memory in some])
        places = sent([place for some in memory_places for place in some], device)
        placed = cells + self.position + self.times[places][:, None]
        flat = torch.stack([pointer for some in pointers for pointer in some])
        tokens = flat.to(cells.dtype).reshape(-1, cells.shape[-1])
        ages = sent([age for some in pointer_ages for age in some], device)
        encoded = age_encoding(ages / POINTER_FRAMES, flat.shape[-1])
        age = self.age_projection(encoded).to(cells.dtype).repeat_interleave(POINTER_TOKENS, 0)
        memories_each, cells_each = [len(some) for some in memories], cells.shape[1]
        tokens_each = [POINTER_TOKENS * len(some) for some in pointers]

        def joined(of_memories: Tensor, of_tokens: Tensor) -> Tensor:
            """Put (M, E*E, ...) and (T, ...) of each object together."""
            several = of_memories.split(memories_each), of_tokens.split(tokens_each)
            pairs = zip(*several, strict=True)
            return torch.cat([part for some, few in pairs for part in (some.flatten(0, 1), few)])

        numbers = torch.arange(cells_each, device=device).expand(len(cells), -1)
        keys_each = [
            cells_each * some + few for some, few in zip(memories_each, tokens_each, strict=True)
        ]
        remembered = Packed(
            joined(cells, tokens), joined(placed, tokens + age),
            joined(numbers, numbers.new_full((len(tokens),), cells_each)),
            sent([0, *itertools.accumulate(keys_each)], device).int(),
        )  # fmt: skip
        turns = self.rotations(1, 1)
        return self.through_layers(
            embedding, lambda attention, x: attention.packed(x, remembered, turns)
        )


class MemoryDecoder(nn.Module):
    """The mask decoder for O objects of one frame, each with an embedding of its own.

    Args:
        model: the image path, in float32; unchanged.
        memory: its memory, in float32; unchanged.

    """

    def __init__(self, model: Sam2, memory: Memory) -> None:
        super().__init__()
        if model.preset.tracking_decoder:
            model = copy.deepcopy(model)
            model.sam_mask_decoder = memory.tracking_decoder
        self.lean = LeanDecoder(model, masked=True)
        self.pointer = token_side(memory.obj_ptr_proj)
        self.register_buffer("no_pointer", memory.no_obj_ptr.detach().clone())

    def forward(
        self,
        conditioned: Tensor,
        conditioned_index: Tensor,
        high_res_s0: Tensor,
        high_res_s1: Tensor,
        points: Tensor,
        labels: Tensor,
        mask_input: Tensor | None,
        has_mask: Tensor | None,
        ambiguous: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decode one prompt for each object.

        Args:
            conditioned: (C, E*E, w) of `Recall`, or the encoder's embedding without memory.
            conditioned_index: int64 (O,), which of them belongs to each object.
            high_res_s0: (1, E*E, 16, w/8) of `LeanEncoder`.
            high_res_s1: (1, E*E, 4, w/4).
            points: float32 (O, K, 2) in model pixels; two paddings where an object is tracked.
            labels: int32 (O, K).
            mask_input: float32 (O, 1, G, G) logits to refine; None where no object has any.
            has_mask: bool (O,), whether to; None where `mask_input` is.
            ambiguous: bool (O,): the best of three masks (tracking, one click), not the single one.

        Returns:
            Logits (O, G, G), predicted IoU (O,), object score (O,), pointer (O, w), in float32.
            Where the object is absent (a score of at most 0) all logits are `ABSENT_LOGIT`.

        """
        lean = self.lean
        few, position = lean.tokens, lean._position().to(conditioned.dtype)
        prompt = few.prompt(points, labels)
        image, dense = conditioned.index_select(0, conditioned_index), lean.empty
        if mask_input is not None and has_mask is not None:
            prompted = few.encoder.dense(mask_input).flatten(2).transpose(1, 2)
            prompted = prompted.to(conditioned.dtype)
            dense = torch.where(has_mask[:, None, None], prompted, lean.empty)
        image = image + dense
        tokens, x = lean.first(prompt, prompt, image, position)
        tokens, x = lean.second(tokens, prompt, x, position)
        hyper, iou, score, tokens = few(tokens, prompt, x, position)
        logits = lean.laid_out(lean.masks(x, high_res_s0, high_res_s1, hyper.to(x.dtype)))
        best = iou[:, 1:].argmax(1) + 1
        stable, stable_iou = select_mask(logits, iou)
        rows = torch.arange(best.shape[0], device=best.device)
        chosen = torch.where(ambiguous[:, None, None], logits[rows, best], stable[:, 0])
        chosen_iou = torch.where(ambiguous, iou[rows, best], stable_iou)
        # Of a single mask it is the first token even where the mask fell back to another one.
        token = tokens[rows, 2 + torch.where(ambiguous, best, 0)]
        present = (score > 0)[:, None]
        pointer = torch.where(present, self.pointer(token), self.no_pointer.to(token.dtype))
        chosen = torch.where(present[:, :, None], chosen, ABSENT_LOGIT)
        return chosen.float(), chosen_iou.float(), score.float(), pointer.float()


class MaskPrompt(nn.Module):
    """A mask that is taken as it is: what `MemoryDecoder` makes its pointer of.

    Args:
        model: the image path, in float32; unchanged.
        memory: its memory, in float32; unchanged.

    """

    keeps_float32 = True

    def __init__(self, model: Sam2, memory: Memory) -> None:
        super().__init__()
        size, grid = model.preset.image_size, model.preset.grid
        # ONNX Runtime's own resizing with antialias is another one; this is exact and separable.
        unit = torch.eye(size)[None, None]
        shrink = F.interpolate(unit, (grid, size), mode="bilinear", antialias=True)[0, 0]
        self.register_buffer("shrink", shrink)
        self.downsample = copy.deepcopy(memory.mask_downsample)
        self.register_buffer("no_memory", model.no_mem_embed.detach().reshape(-1).clone())

    def forward(self, embedding: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn O masks of one frame into prompts.

        Args:
            embedding: (1, E*E, w) of `LeanEncoder`.
            masks: float32 (O, S, S), 0 or 1.

        Returns:
            The frame without memory (1, E*E, w), the masks' logits (O, G, G) and the prompts
            (O, 1, G, G).

        """
        logits = self.shrink @ (masks * 20.0 - 10.0) @ self.shrink.t()
        conditioned = embedding - self.no_memory.to(embedding.dtype)
        return conditioned, logits, self.downsample(masks[:, None])


class Remember(nn.Module):
    """Memory encoder.

    Args:
        model: the image path, in float32; unchanged.
        memory: its memory, in float32; unchanged.
        fused: with kernels of our own on a GPU.

    """

    def __init__(self, model: Sam2, memory: Memory, *, fused: bool = False) -> None:
        super().__init__()
        self.size, self.cells = model.preset.image_size, model.preset.embedding_grid
        encoder = copy.deepcopy(memory.memory_encoder)
        self.encoder = FusedEncoder(encoder) if fused else encoder
        self.register_buffer("no_memory", model.no_mem_embed.detach().reshape(-1).clone())
        self.register_buffer("absent", memory.no_obj_embed_spatial.detach().clone())

    def forward(
        self, embedding: Tensor, logits: Tensor, object_score: Tensor, prompted: Tensor
    ) -> Tensor:
        """Encode O masks of one frame.

        Args:
            embedding: (1, E*E, w) of `LeanEncoder`, not the conditioned one.
            logits: float32 (O, G, G) of `MemoryDecoder`.
            object_score: float32 (O,).
            prompted: bool (O,): the mask is of a prompt, and is thresholded.

        Returns:
            (O, E*E, w / 4), rounded to bfloat16 as the published predictor stores it.

        """
        size = (self.size, self.size)
        fine = F.interpolate(logits[:, None], size, mode="bilinear", align_corners=False)
        masks = torch.where(prompted[:, None, None, None], (fine > 0).float(), fine.sigmoid())
        masks = (masks * 20.0 - 10.0).to(embedding.dtype)
        image = (embedding - self.no_memory).transpose(1, 2).unflatten(2, (self.cells, self.cells))
        memory = self.encoder(image, masks).flatten(2).transpose(1, 2)
        memory = torch.where((object_score > 0)[:, None, None], memory, memory + self.absent)
        return memory.to(torch.bfloat16).to(embedding.dtype)
