"""Training the compact SAM 2.1: one step from pictures to a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lab.scenes import LABELS
from lab.training.close_ups import cut_close_ups, draw_close_ups
from lab.training.config import MaskConfig, MaskPhase
from lab.training.mask_loss import LossPoints, at_points, draw_points, mask_losses, total_loss
from lab.training.photometric import Appearance
from lab.training.pool import PicturePool, to_device
from lab.training.prompts import (
    PromptSampler,
    Targets,
    box_points,
    choice_weights,
    click_points,
    with_correction,
)
from lab.training.view_decoder import decode_views, spread
from lab.training.views import Crops, cut, random_crops
from lab.training.visible import owner_at, visible_boxes
from sam2_core.architecture.model import Sam2, build_model, cast
from sam2_core.presets import Preset, preset_named
from sam2_core.types import AutolabelError

POSITION_STD = 0.02
# In views of many objects an instance is asked for when this much of it is in the view, in pixels
# of the model's input: five cells of the mask grid. Less teaches nothing.
SMALLEST_AREA_MODEL = 80.0
REFINED_WEIGHT = 0.2


def fresh_model(preset: Preset, seed: int) -> Sam2:
    """Build a model to train from scratch: PyTorch's initialisation, small position embeddings."""
    torch.manual_seed(seed)
    model = build_model(preset)
    trunk = model.image_encoder.trunk
    for parameter in (trunk.pos_embed, trunk.pos_embed_window, model.no_mem_embed):
        nn.init.trunc_normal_(parameter, std=POSITION_STD)
    for name, module in model.image_encoder.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=POSITION_STD)
            nn.init.zeros_(module.bias)
        if name.endswith("patch_embed.proj"):
            nn.init.kaiming_normal_(module.weight)
    return model


@dataclass(frozen=True, eq=False)
class MaskBatch:
    """What a step learns from.

    Attributes:
        images: (B, S, S, 3) in 0..255.
        prompt: points (B * N, 3, 2) and labels (B * N, 3): boxes first on every view, then clicks.
        targets: of all prompts of a view (B, N, ...).
        points: where their masks are judged, B * N rows.

    """

    images: Tensor
    prompt: tuple[Tensor, Tensor]
    targets: Targets
    points: LossPoints


class Judged(NamedTuple):
    """A round's loss; IoU of token 0 and whether there is an object, (P,); token 0's logits."""

    loss: Tensor
    iou: Tensor
    has: Tensor
    logits: Tensor


class MaskJob:
    """The mask model, what it learns from and how it is judged."""

    name = "mask"

    def __init__(self, config: MaskConfig, pool: PicturePool, seed: int) -> None:
        self.config, self.pool = config, pool
        self.device = pool.device
        self.learning_rate, self.weight_decay = config.learning_rate, config.weight_decay
        self.optimizer = config.optimizer
        self.model = fresh_model(preset_named(config.preset), seed).to(self.device)
        if self.device.type == "cuda":
            _to_bfloat16(self.model)
        self.host = torch.Generator().manual_seed(seed)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.appearance = Appearance(self.generator)
        self.prompts = PromptSampler(self.generator, choice_weights(LABELS, config.emphasis))
        self._steps = 0

    def _resize(self, phase: MaskPhase) -> None:
        """Set the model to a phase's input size."""
        preset = preset_named(self.config.preset).sized(image_size=phase.image_size)
        if preset != self.model.preset:
            self.model.preset = preset
            encoder = self.model.sam_prompt_encoder
            encoder.image_size, encoder.embedding_grid = preset.image_size, preset.embedding_grid

    def step(self, progress: float) -> dict[str, Tensor]:
        """Draw a batch, leave its gradients in the model; return what to plot."""
        self._steps += 1
        between, every = self.config.between, self.config.between_every
        if not between or not every or self._steps % every:
            return self._learn_from(self.config.phase)
        return {f"between_{name}": value for name, value in self._learn_from(between).items()}

    def _learn_from(self, phase: MaskPhase) -> dict[str, Tensor]:
        """Forward and backward."""
        self._resize(phase)
        batch = self._draw_close_ups(phase) if phase.close_ups else self._draw_views(phase)
        return self._learn(batch, phase, self.model.encode(batch.images))

    @torch.no_grad()
    def _draw_close_ups(self, phase: MaskPhase) -> MaskBatch:
        """Cut a close-up a box; as in `_draw_views`, nothing waits for the device."""
        size = phase.image_size
        batch = self.pool.sample(phase.batch, self.host)
        drawn = draw_close_ups(batch, self.prompts, phase)
        images = cut_close_ups(batch.images, drawn.picture, drawn.crops, size)
        owners = _owners(batch.ids, drawn.crops, size, drawn.picture)
        images = images.half() if images.is_cuda else images
        images = self.appearance(images, owners, phase.strength).to(self.model.no_mem_embed.dtype)
        points = draw_points(
            batch.ids,
            drawn.crops,
            drawn.targets,
            self.config.roi,
            self.generator,
            picture=drawn.picture,
        )
        corners, labels = box_points(drawn.crops.to_view(drawn.boxes_px) * size)
        prompt = (corners.flatten(0, 1), labels.flatten(0, 1))
        return MaskBatch(images.permute(0, 2, 3, 1), prompt, drawn.targets, points)

    @torch.no_grad()
    def _draw_views(self, phase: MaskPhase) -> MaskBatch:
        """Cut views out of pictures and choose prompts."""
        batch = self.pool.sample(phase.batch, self.host)
        crops = random_crops(batch, self.host, whole_share=phase.whole_share)
        images = cut(batch.images, crops, phase.image_size)
        crops = Crops(to_device(crops.boxes_px, self.device), to_device(crops.flipped, self.device))
        owners = _owners(batch.ids, crops, phase.image_size)
        images = self.appearance(images, owners, phase.strength).to(self.model.no_mem_embed.dtype)
        visible = visible_boxes(batch.ids, crops.boxes_px)
        sides = (crops.boxes_px[:, 2:] - crops.boxes_px[:, :2]).float()
        smallest = SMALLEST_AREA_MODEL / phase.image_size**2 * sides.prod(-1)
        prompts = phase.boxes + phase.points
        targets = self.prompts.targets(batch, visible, crops.boxes_px, smallest, prompts)
        points = draw_points(batch.ids, crops, targets, self.config.roi, self.generator)
        size, cut_at = phase.image_size, phase.boxes
        boxes = crops.to_view(self.prompts.boxes(targets, crops.boxes_px)[:, :cut_at])
        clicks = self._somewhere(points.near_truth, points.near_rel).unflatten(0, (len(boxes), -1))
        parts = (box_points(boxes * size), click_points(clicks[:, cut_at:] * size))
        prompt = tuple(torch.cat(both, 1).flatten(0, 1) for both in zip(*parts, strict=True))
        return MaskBatch(images.permute(0, 2, 3, 1), (prompt[0], prompt[1]), targets, points)

    def _learn(
        self, batch: MaskBatch, phase: MaskPhase, features: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        views = len(batch.images)
        found = self._judge(features, batch.prompt, None, batch.targets, batch.points)
        iou, has = (x.unflatten(0, (views, -1)) for x in (found.iou, found.has))
        if not phase.refined:
            found.loss.backward()
            return {"loss": found.loss.detach(), "box_iou": _mean(iou, has)}
        some = slice(None, phase.refined)
        points, labels, previous = (
            part.unflatten(0, (views, -1))[:, some].flatten(0, 1)
            for part in (*batch.prompt, found.logits)
        )
        judged = batch.points.columns(some, views)
        prompt = self._correction((points, labels), previous, judged, phase.image_size)
        refined = self._judge(features, prompt, previous, batch.targets.columns(some), judged)
        loss = (found.loss + REFINED_WEIGHT * refined.loss) / (1 + REFINED_WEIGHT)
        loss.backward()
        boxes, clicks = slice(None, phase.boxes), slice(phase.boxes, None)
        return {
            "loss": loss.detach(), "box_iou": _mean(iou[:, boxes], has[:, boxes]),
            "point_iou": _mean(iou[:, clicks], has[:, clicks]),
            "refined_iou": _mean(refined.iou, refined.has),
        }  # fmt: skip

    def _judge(
        self, features: tuple[Tensor, ...], prompt: tuple[Tensor, Tensor],
        previous: Tensor | None, targets: Targets, judged: LossPoints,
    ) -> Judged:  # fmt: skip
        """Decode equally many prompts on every view and compare."""
        if previous is None:
            decoded = decode_views(self.model, features, *prompt)
        else:
            per = len(previous) // len(features[0])
            rows = tuple(spread(part, per) for part in features)
            decoded = self.model.decode_rows(rows, *prompt, previous)
        logits, predicted, score = decoded
        masks = mask_losses(logits, judged)
        loss = total_loss(masks, predicted, score, targets)
        has = targets.has_object.reshape(-1).float()
        return Judged(loss, masks.iou[:, 0], has, logits[:, :1].detach())

    def _somewhere(self, weight: Tensor, points_rel: Tensor) -> Tensor:
        """Draw one of K points (P, K, 2) by weight (P, K)."""
        chosen = self.prompts.choose(weight)
        return points_rel.gather(1, chosen[..., None].expand(-1, -1, 2))[:, 0]

    @torch.no_grad()
    def _correction(
        self, prompt: tuple[Tensor, ...], logits: Tensor, points: LossPoints, size: int
    ) -> tuple[Tensor, Tensor]:
        """Add a point where the mask is wrong."""
        found = (at_points(logits, points.near_rel)[:, 0] > 0).float()
        chosen = self.prompts.choose((found != points.near_truth).float())
        place = points.near_rel.gather(1, chosen[..., None].expand(-1, -1, 2))[:, 0]
        positive = points.near_truth.gather(1, chosen)[:, 0] > 0
        points_model, labels = prompt
        return with_correction(points_model, labels, place * size, positive)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take weights over; the input size does not matter."""
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise AutolabelError(f"weights do not fit {self.config.preset}: {error}") from error


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)


def _to_bfloat16(model: Sam2) -> None:
    """Compute in bfloat16, norms and losses inside in float32 as PyTorch does.

    The position embedding stays: resizing it has a backward pass many times slower in bfloat16.
    """
    cast(model, torch.bfloat16)
    trunk = model.image_encoder.trunk
    for parameter in (trunk.pos_embed, trunk.pos_embed_window):
        parameter.data = parameter.data.float()


def _owners(ids: Tensor, crops: Crops, size: int, picture: Tensor | None = None) -> Tensor:
    """Resample ids to the view: uint8 (V, S, S)."""
    centres = (torch.arange(size, device=ids.device, dtype=torch.float32) + 0.5) / size
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    points = torch.stack([x, y], -1).reshape(1, -1, 2).expand(len(crops.boxes_px), -1, -1)
    return owner_at(ids, crops.to_picture(points), picture).reshape(-1, size, size)
