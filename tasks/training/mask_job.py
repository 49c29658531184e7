"""Training the compact SAM 2.1: one step from pictures to a loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sam2_core.architecture.model import Sam2, build_model
from sam2_core.presets import Preset, preset_named
from sam2_core.types import AutolabelError
from tasks.training.config import MaskConfig, MaskPhase
from tasks.training.mask_loss import LossPoints, at_points, draw_points, mask_losses, total_loss
from tasks.training.photometric import Appearance
from tasks.training.pool import PicturePool
from tasks.training.prompts import (
    PromptSampler,
    Targets,
    box_points,
    point_points,
    with_correction,
)
from tasks.training.views import Crops, cut, random_crops
from tasks.training.visible import owner_at, visible_boxes

POSITION_STD = 0.02


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


class MaskJob:
    """The mask model, what it learns from and how it is judged."""

    name = "mask"

    def __init__(self, config: MaskConfig, pool: PicturePool, seed: int) -> None:
        self.config, self.pool = config, pool
        self.device = pool.device
        self.learning_rate, self.weight_decay = config.learning_rate, config.weight_decay
        self.model = fresh_model(preset_named(config.preset), seed).to(self.device)
        self.host = torch.Generator().manual_seed(seed)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.appearance = Appearance(self.generator)
        self.prompts = PromptSampler(self.generator)
        self.phase(0.0)

    def phase(self, progress: float) -> MaskPhase:
        """Return the phase at a share of the budget, the model set to its input size."""
        phases = self.config.phases
        phase = next((p for p in phases if progress < p.until), phases[-1])
        preset = preset_named(self.config.preset).sized(image_size=phase.image_size)
        if preset != self.model.preset:
            self.model.preset = preset
            encoder = self.model.sam_prompt_encoder
            encoder.image_size, encoder.embedding_grid = preset.image_size, preset.embedding_grid
        return phase

    def step(self, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw a batch and return its loss and what to plot."""
        phase = self.phase(progress)
        batch = self.pool.sample(phase.batch, self.host, street=False)
        crops = random_crops(batch, self.host)
        images = cut(batch.images, crops, phase.image_size)
        crops = Crops(crops.boxes_px.to(self.device), crops.flipped.to(self.device))
        images = self.appearance(images, _owners(batch.ids, crops, phase.image_size))
        visible = visible_boxes(batch.ids, crops.boxes_px)
        targets = self.prompts.targets(batch, visible, crops.boxes_px, phase)
        points = draw_points(batch.ids, crops, targets, self.config.roi, self.generator)
        by_point = float(torch.rand((), generator=self.host)) < self.config.point_share
        prompt = self._prompt(targets, crops, points, phase.image_size, by_point=by_point)
        index = torch.arange(phase.batch, device=self.device).repeat_interleave(phase.prompts)
        # Autocast, not weights cast to bfloat16: norms and residuals stay in float32, and so does
        # the position embedding, whose resizing has a backward pass many times slower in bfloat16.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            features = self.model.encode(images.permute(0, 2, 3, 1))
            logits, predicted, score = self.model.decode(features, *prompt, index)
            loss, iou = total_loss(mask_losses(logits, points), predicted, score, targets)
            numbers = {"loss": loss.detach(), "point_iou" if by_point else "box_iou": iou}
            if float(torch.rand((), generator=self.host)) < self.config.refine_share:
                previous = logits[:, :1].detach()
                prompt = self._correction(prompt, previous, points, phase.image_size)
                logits, predicted, score = self.model.decode(features, *prompt, index, previous)
                second, iou = total_loss(mask_losses(logits, points), predicted, score, targets)
                loss = loss + second
                numbers["refined_iou"] = iou
        return loss, numbers

    def _prompt(
        self, targets: Targets, crops: Crops, points: LossPoints, size: int, *, by_point: bool
    ) -> tuple[Tensor, Tensor]:
        if by_point:
            return point_points(self._somewhere(points.near_truth, points.near_rel) * size)
        boxes = self.prompts.boxes(targets, crops.boxes_px)
        return box_points((crops.to_view(boxes) * size).reshape(-1, 4))

    def _somewhere(self, weight: Tensor, points_rel: Tensor) -> Tensor:
        """Draw one of K points (P, K, 2) by weight (P, K); any where all weights are 0."""
        weight = weight + (weight.sum(1, keepdim=True) == 0) + 1e-6
        chosen = torch.multinomial(weight, 1, generator=self.generator)
        return points_rel.gather(1, chosen[..., None].expand(-1, -1, 2))[:, 0]

    def _correction(
        self, prompt: tuple[Tensor, Tensor], logits: Tensor, points: LossPoints, size: int
    ) -> tuple[Tensor, Tensor]:
        found = (at_points(logits.detach(), points.near_rel)[:, 0] > 0).float()
        wrong = (found != points.near_truth).float()
        weight = wrong + (wrong.sum(1, keepdim=True) == 0) + 1e-6
        chosen = torch.multinomial(weight, 1, generator=self.generator)
        place = points.near_rel.gather(1, chosen[..., None].expand(-1, -1, 2))[:, 0]
        positive = points.near_truth.gather(1, chosen)[:, 0] > 0
        return with_correction(*prompt, place * size, positive)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take weights over; the input size does not matter."""
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise AutolabelError(f"weights do not fit {self.config.preset}: {error}") from error


def _owners(ids: Tensor, crops: Crops, size: int) -> Tensor:
    """Resample ids to the view: uint8 (B, S, S)."""
    centres = (torch.arange(size, device=ids.device, dtype=torch.float32) + 0.5) / size
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    points = torch.stack([x, y], -1).reshape(1, -1, 2).expand(len(ids), -1, -1)
    return owner_at(ids, crops.to_picture(points)).reshape(-1, size, size)
