"""Trains a memory for the compact model on rendered drives: `python -m lab.training.memory`.

    python -m lab.training.memory --out FOLDER --minutes 6 [--size 1024] [--start FILE]

The image path stays as it is, so that masks without `--follow` do: only memory attention, memory
encoder, pointers and places in time learn. Each object is prompted with a box on a clip's first
frame and tracked through the others, as `sam2_core.follow` does; gradients go through the whole
clip. `FOLDER/memory.safetensors` has the averaged weights, under Meta's names.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lab.scenes import render_sequence
from sam2_core.architecture import Memory, Sam2, build_memory, build_model, cast
from sam2_core.architecture.lean_attention import token_side
from sam2_core.architecture.mask_decoder import MASK_TOKENS
from sam2_core.architecture.memory import CONDITIONING_PLACE, RECENT_MEMORIES
from sam2_core.architecture.memory_graphs import (
    OF_FEATURES,
    Recall,
    Remember,
)
from sam2_core.find_weights import bundled_checkpoint
from sam2_core.presets import preset_named
from sam2_core.types import BOX_BOTTOM_RIGHT, BOX_TOP_LEFT, POINT_PADDING

FRAMES = 8
SIZE_HW = (576, 1024)
RATES_FPS = (10.0, 5.0, 3.0)
FIRST_SEED, HELD_OUT_SEED = 40_000_000, 60_000_000
LEAST_AREA = 4e-4  # share of the picture that an object covers on a clip's first frame
PRESENT_AREA = 5e-5
BOX_NOISE = 0.06  # standard deviation of each side, in box sides
FOCAL, DICE, SCORE, IOU = 20.0, 1.0, 0.5, 0.25
PROMPTED = 0.3  # weight of the first frame, on which the decoder works already
OF_DECODER = 0.3  # share of the learning rate


def render_clip(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Render a clip: uint8 (T, H, W, 3) RGB, uint8 (T, H, W) ids, and shares of pixels (T, 256)."""
    images = np.zeros((FRAMES, *SIZE_HW, 3), np.uint8)
    ids = np.zeros((FRAMES, *SIZE_HW), np.uint8)
    known: dict[int, int] = {}
    rate = RATES_FPS[seed % len(RATES_FPS)]
    for row, frame in enumerate(render_sequence(seed, FRAMES, SIZE_HW, fps=rate)):
        images[row] = frame.scene.image
        for instance in (*frame.scene.instances, *frame.scene.dropped):
            name = known.setdefault(instance.track_id, len(known) + 1)
            x, y = instance.origin_xy_px
            height, width = instance.mask.shape
            if name < 256:
                ids[row, y : y + height, x : x + width][instance.mask] = name
    pixels = ids.reshape(FRAMES, -1)
    areas = np.stack([np.bincount(one, minlength=256) for one in pixels])
    return images, ids, areas / pixels.shape[1]


def _rendering() -> None:
    import cv2

    cv2.setNumThreads(1)
    os.nice(10)  # the step comes first


class Clips:
    """Clips on the device; a thread replaces the oldest by fresh ones."""

    def __init__(self, device: str, capacity: int, workers: int, seeds: range) -> None:
        self.device, self.capacity = device, capacity
        self.held: list[tuple[Tensor, Tensor, Tensor]] = []
        self.rendered = 0
        pool = multiprocessing.get_context("spawn").Pool(workers, _rendering)
        self._found = pool.imap_unordered(render_clip, seeds)
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self) -> None:
        for arrays in self._found:
            images, ids, shares = map(torch.from_numpy, arrays)
            clip = images.to(self.device), ids.to(self.device), shares
            if len(self.held) < self.capacity:
                self.held.append(clip)
            else:
                self.held[self.rendered % self.capacity] = clip
            self.rendered += 1

    def sample(
        self, clips: int, objects: int, random: np.random.Generator, frames: int = FRAMES
    ) -> dict[str, Any]:
        """Draw parts of clips, some backwards or mirrored, and objects of their first frames."""
        images, ids, names, places = list[Tensor](), list[Tensor](), list[int](), list[int]()
        while len(images) < clips:
            image, owner, shares = self.held[random.integers(len(self.held))]
            part = slice(first := random.integers(FRAMES - frames + 1), first + frames)
            image, owner, shares = image[part], owner[part], shares[part]
            if random.random() < 0.5:
                image, owner, shares = image.flip(0), owner.flip(0), shares.flip(0)
            there = np.flatnonzero(shares[0, 1:].numpy() > LEAST_AREA) + 1
            if not len(there):
                continue
            if random.random() < 0.5:
                image, owner = image.flip(2), owner.flip(2)
            light = float(random.uniform(0.6, 1.4))
            image = (image.float() * light).clamp(0, 255)
            # Few ones again and again: compiled code knows one number of objects only.
            chosen = np.resize(random.permutation(there), objects)
            names += chosen.tolist()
            places += [len(images)] * len(chosen)
            images.append(image)
            ids.append(owner)
        return {
            "images": torch.stack(images), "ids": torch.stack(ids),
            "clip": torch.tensor(places, device=self.device),
            "name": torch.tensor(names, device=self.device),
        }  # fmt: skip


class Learner(nn.Module):
    """The graphs of `memory_graphs`, without their padding, as they learn."""

    def __init__(self, model: Sam2, memory: Memory, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.preset, self.dtype = model.preset, dtype
        self.image_path = cast(copy.deepcopy(model).eval(), dtype)
        self.prompts = copy.deepcopy(model.sam_prompt_encoder)
        self.recalling, self.remembering = (
            Recall(model, memory, fused=True),
            Remember(model, memory),
        )
        self.pointer = token_side(memory.obj_ptr_proj)
        self.judge = judge  # what `compile_on_gpu` replaces
        self.tracking = memory.tracking_decoder
        self.requires_grad_(False)
        self.no_pointer = nn.Parameter(memory.no_obj_ptr.detach().clone())
        for module, name in ((self.recalling, "times"), (self.remembering, "absent")):
            value = getattr(module, name)
            delattr(module, name)
            setattr(module, name, nn.Parameter(value.clone()))
        for part in (
            self.recalling.attention, self.recalling.age_projection, self.pointer,
            self.remembering.encoder, self.tracking,
        ):  # fmt: skip
            part.requires_grad_(True)
        for name, weight in self.tracking.named_parameters():
            weight.requires_grad_(name not in OF_FEATURES)

    def recall(self, embedding: Tensor, past: dict[str, Any], now: int) -> Tensor:
        """Condition (N, E*E, w) on memories."""
        kept = [age for age in past["memories"] if age == 0 or now - age <= RECENT_MEMORIES]
        places = [CONDITIONING_PLACE if age == 0 else now - age - 1 for age in kept]
        memories = torch.stack([past["memories"][age] for age in kept], 1)
        pointers = torch.stack(list(past["pointers"].values()), 1)
        ages = torch.tensor([now - age for age in past["pointers"]], device=pointers.device)
        count, where = len(memories), torch.tensor(places, device=memories.device)
        found: Tensor = self.recalling(
            embedding, memories, where.expand(count, -1), pointers, ages.expand(count, -1)
        )
        return found

    def decode(
        self, image: Tensor, fine: tuple[Tensor, Tensor], points: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits (N, 4, G, G), predicted IoU (N, 4), score (N,), mask tokens (N, 4, w)."""
        decoder, side = self.tracking, self.preset.embedding_grid
        sparse = self.prompts.sparse(points, labels)
        prompt = torch.cat([decoder.output_tokens().expand(len(sparse), -1, -1), sparse], 1)
        position = self.prompts.image_position().flatten(2).transpose(1, 2)
        image = image + self.prompts.no_mask_embed.weight
        tokens, x = decoder.transformer(image, position, prompt)
        finer = decoder.upscale(x.transpose(1, 2).unflatten(2, (side, side)), *fine)
        mlps = decoder.output_hypernetworks_mlps
        hyper = torch.stack([mlp(tokens[:, 2 + i]) for i, mlp in enumerate(mlps)], 1)
        logits = (hyper @ finer.flatten(2)).unflatten(2, finer.shape[-2:])
        iou = decoder.iou_prediction_head(tokens[:, 1]).sigmoid()
        score = decoder.pred_obj_score_head(tokens[:, 0])[:, 0]
        return logits, iou, score, tokens[:, 2 : 2 + MASK_TOKENS]

    def features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode (B, H, W, 3): embedding (B, E*E, w) and both finer maps."""
        size = (self.preset.image_size, self.preset.image_size)
        planes = F.interpolate(images.permute(0, 3, 1, 2), size, mode="bilinear", antialias=True)
        with torch.no_grad():
            embedding, fine, middle = self.image_path.encode_planes(planes)
        return embedding.flatten(2).transpose(1, 2), fine, middle

    def forward(self, batch: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
        """Track every object through its clip.

        Returns:
            loss; iou (T, N) and logits (T, N, G, G) of the masks that are kept; there (T, N).

        """
        clip, name, size = batch["clip"], batch["name"], self.preset.image_size
        clips, frames = batch["images"].shape[:2]
        found = self.features(batch["images"].flatten(0, 1))
        features = [one.unflatten(0, (clips, frames))[clip].float() for one in found]
        owned = batch["ids"][clip] == name[:, None, None, None]
        grid = self.preset.grid
        truth = F.adaptive_avg_pool2d(owned.float(), (grid, grid))
        there = owned.flatten(2).float().mean(2) > PRESENT_AREA
        points, labels = noisy_boxes(owned[:, 0], size, generator)
        nowhere = torch.zeros(len(name), 2, 2, device=points.device)
        nothing = torch.full((len(name), 2), POINT_PADDING, device=points.device)
        past: dict[str, Any] = {"memories": {}, "pointers": {}}
        losses, ious, kept = [], [], []
        for now in range(frames):
            embedding, *fine = (one[:, now] for one in features)
            prompt = (points, labels) if now == 0 else (nowhere, nothing)
            image = self.recall(embedding, past, now) if now else embedding
            logits, predicted, score, tokens = self.decode(image, (fine[0], fine[1]), *prompt)
            judged = logits[:, :1] if now == 0 else logits[:, 1:]
            guesses = predicted[:, :1] if now == 0 else predicted[:, 1:]
            loss, iou = self.judge(judged, guesses, score, truth[:, now], there[:, now])
            best = guesses.argmax(1)
            rows = torch.arange(len(name), device=best.device)
            losses.append(loss if now else PROMPTED * loss)
            ious.append(iou[rows, best])
            token = tokens[rows, best + (now > 0)]
            present = (score > 0)[:, None]
            past["pointers"][now] = torch.where(present, self.pointer(token), self.no_pointer)
            mask = torch.where(present[:, :, None], judged[rows, best], -32.0)
            kept.append(mask.detach())
            past["memories"][now] = self.remembering(
                embedding, mask.float(), score, torch.full_like(present[:, 0], now == 0)
            ).float()
        return {
            "loss": torch.stack(losses).mean(), "iou": torch.stack(ious), "there": there.t(),
            "logits": torch.stack(kept),
        }  # fmt: skip

    def compile_on_gpu(self) -> None:
        """Compile what is large, on a GPU; attention to any number of memories is one kernel."""
        if not self.no_pointer.is_cuda:
            return
        for name in ("features", "decode", "judge"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))
        self.remembering.compile(dynamic=False)


def noisy_boxes(masks: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return box prompts around masks (N, H, W), off as a detector's are."""
    height, width = masks.shape[1:]
    columns, rows = masks.any(1), masks.any(2)
    edges = [
        columns.float().argmax(1) / width, rows.float().argmax(1) / height,
        1 - columns.flip(1).float().argmax(1) / width, 1 - rows.flip(1).float().argmax(1) / height,
    ]  # fmt: skip
    box = torch.stack(edges, 1)
    sides = (box[:, 2:] - box[:, :2]).repeat(1, 2)
    noise = torch.randn(box.shape, generator=generator, device=box.device)
    corners = ((box + BOX_NOISE * noise * sides).clamp(0, 1) * size).unflatten(1, (2, 2))
    points = F.pad(corners, (0, 0, 0, 1))
    labels = torch.tensor([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING], device=box.device)
    return points, labels.expand(len(box), -1)


def judge(
    logits: Tensor, guesses: Tensor, score: Tensor, truth: Tensor, there: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss of the best of K masks (N, K, G, G) of each object, and the IoU of all, (N, K)."""
    logits, wanted = logits.float(), truth[:, None].expand_as(logits)
    probability = logits.sigmoid()
    cross = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    focal = (cross * (probability - wanted).abs() ** 2).mean((2, 3))
    shared = (probability * wanted).sum((2, 3))
    dice = 1 - (2 * shared + 1) / (probability.sum((2, 3)) + wanted.sum((2, 3)) + 1)
    mask = FOCAL * focal + DICE * dice
    with torch.no_grad():
        found, real = logits > 0, wanted > 0.5
        union = (found | real).sum((2, 3)).clamp(min=1)
        iou = (found & real).sum((2, 3)) / union
    best = mask.argmin(1, keepdim=True)
    of_masks = (mask + IOU * (guesses - iou).abs()).gather(1, best)[:, 0]
    of_score = F.binary_cross_entropy_with_logits(score.float(), there.float())
    weight = there.float()
    return (of_masks * weight).sum() / weight.sum().clamp(min=1) + SCORE * of_score, iou


def fresh_memory(model: Sam2) -> Memory:
    """PyTorch's initialisation, small tables; mask prompts are averaged; the decoder's weights."""
    memory = build_memory(model.preset)
    for table in (memory.maskmem_tpos_enc, memory.no_obj_ptr, memory.no_obj_embed_spatial):
        nn.init.trunc_normal_(table, std=0.02)
    nn.init.constant_(memory.mask_downsample.weight, 1 / 16)
    nn.init.zeros_(memory.mask_downsample.bias)
    memory.tracking_decoder.load_state_dict(model.sam_mask_decoder.state_dict())
    return memory


def as_embedding(learner: Learner, images: Tensor) -> None:
    """Let memory attention begin with what the decoder knows: the scale of an embedding."""
    embedding = learner.features(images)[0].float() + learner.recalling.start
    norm = learner.recalling.attention.norm
    with torch.no_grad():
        norm.weight.fill_(embedding.std(-1).mean())
        norm.bias.copy_(embedding.mean((0, 1)).mean().expand_as(norm.bias))


def learned(learner: Learner, memory: Memory) -> dict[str, Tensor]:
    """Put what was learned under Meta's names."""
    order = torch.arange(learner.preset.memory_attention_width).reshape(-1, 2).t().flatten()
    attention = {k: v.cpu() for k, v in learner.recalling.attention.state_dict().items()}
    for name in attention:
        if ".q_proj." in name or ".k_proj." in name:
            attention[name] = attention[name][order.argsort()]
    memory.memory_attention.load_state_dict(attention)
    for target, source in (
        (memory.obj_ptr_tpos_proj, learner.recalling.age_projection),
        (memory.obj_ptr_proj, learner.pointer),
        (memory.tracking_decoder, learner.tracking),
        (memory.memory_encoder, learner.remembering.encoder),
    ):
        target.load_state_dict({k: v.cpu() for k, v in source.state_dict().items()})
    with torch.no_grad():
        memory.maskmem_tpos_enc.copy_(
            learner.recalling.times.cpu().reshape(memory.maskmem_tpos_enc.shape)
        )
        memory.no_obj_ptr.copy_(learner.no_pointer.cpu())
        memory.no_obj_embed_spatial.copy_(learner.remembering.absent.cpu())
    return {name: value.detach().contiguous() for name, value in memory.state_dict().items()}


def held_out(learner: Learner, clips: Clips, given: argparse.Namespace) -> dict[str, Any]:
    """Mean IoU by frame on unseen clips, beside that of the first frame's true mask, unmoved."""
    random, generator = np.random.default_rng(0), torch.Generator(given.device).manual_seed(0)
    sums = [torch.zeros(FRAMES) for _ in range(3)]
    for _ in range(given.held_out // given.clips + 1):
        batch = clips.sample(given.clips, given.objects, random)
        with torch.no_grad(), torch.autocast(given.device.split(":")[0], torch.bfloat16):
            found = learner(batch, generator)
        rows = list(zip(batch["clip"].tolist(), batch["name"].tolist(), strict=True))
        once = torch.tensor([rows.index(one) == row for row, one in enumerate(rows)])
        there = found["there"].float().cpu() * once
        owned = batch["ids"][batch["clip"]] == batch["name"][:, None, None, None]
        shared = (owned & owned[:, :1]).flatten(2).sum(2)
        unmoved = (shared / (owned | owned[:, :1]).flatten(2).sum(2)).t().cpu()
        for total, value in zip(
            sums, (found["iou"].cpu() * there, unmoved * there, there), strict=True
        ):
            total.add_(value.sum(1))
    return {
        "iou": (sums[0] / sums[2]).tolist(), "unmoved": (sums[1] / sums[2]).tolist(),
        "objects": int(sums[2][0]),
    }  # fmt: skip


def main() -> None:
    """Train until the minutes are over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--model", default="compact")
    parser.add_argument("--size", type=int, default=1024, help="of the model's input")
    parser.add_argument("--clips", type=int, default=16, help="in a batch")
    parser.add_argument("--objects", type=int, default=3, help="of each clip")
    parser.add_argument("--frames", default="4,8", help="of each clip, for equal times")
    parser.add_argument("--held", type=int, default=600, help="clips on the device")
    parser.add_argument("--held-out", type=int, default=96, help="clips that are judged at the end")
    parser.add_argument("--first-clip", type=int, default=0, help="to go on with unseen ones")
    parser.add_argument("--learning-rate", type=float, default=4e-4)
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) // 3))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--start", type=Path, help="memory.safetensors of an earlier run")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    preset = preset_named(given.model)
    model = build_model(preset.sized(image_size=given.size))
    checkpoint = bundled_checkpoint(preset)
    if checkpoint:
        model.load_state_dict({k: v.float() for k, v in load_file(checkpoint).items()})
    memory = fresh_memory(model)
    if given.start:
        memory.load_state_dict({k: v.float() for k, v in load_file(given.start).items()})
    learner = Learner(model.eval(), memory).to(given.device)
    kept = [one for one in learner.parameters() if one.requires_grad]
    averaged = [one.detach().clone() for one in kept]
    known = {id(one) for one in learner.tracking.parameters()}
    groups = [
        {
            "params": [one for one in kept if (id(one) in known, one.ndim > 1) == (old, matrix)],
            "weight_decay": 0.05 if matrix else 0.0, "share": OF_DECODER if old else 1.0,
        }
        for old in (True, False) for matrix in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=given.learning_rate, betas=(0.9, 0.98))
    print(f"{sum(one.numel() for one in kept) / 1e6:.2f} M parameters learn", flush=True)
    held_out_seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + given.held_out)
    unseen = Clips(given.device, given.held_out, max(1, given.workers // 4), held_out_seeds)
    seeds = range(FIRST_SEED + given.first_clip, HELD_OUT_SEED)
    clips = Clips(given.device, given.held, given.workers, seeds)
    while clips.rendered < 4 * given.clips:
        time.sleep(0.1)
    random, generator = np.random.default_rng(1), torch.Generator(given.device).manual_seed(1)
    if not given.start:
        as_embedding(learner, clips.sample(given.clips, 1, random, 1)["images"].flatten(0, 1))
    learner.compile_on_gpu()
    lengths = [int(one) for one in given.frames.split(",")]
    started, step, told = time.monotonic(), 0, 0.0
    while (progress := (time.monotonic() - started) / (60 * given.minutes)) < 1:
        rate = (
            given.learning_rate * min(1, (step + 1) / 100) * (1 + math.cos(math.pi * progress)) / 2
        )
        for group in optimizer.param_groups:
            group["lr"] = rate * group["share"]
        frames = lengths[int(progress * len(lengths))]
        count = given.clips if frames > FRAMES // 2 else 2 * given.clips
        batch = clips.sample(count, given.objects, random, frames)
        with torch.autocast(given.device.split(":")[0], torch.bfloat16):
            found = learner(batch, generator)
        optimizer.zero_grad()
        found["loss"].backward()
        norm = nn.utils.clip_grad_norm_(kept, 1.0)
        optimizer.step()
        step += 1
        decay = min(0.998, (1 + step) / (10 + step))
        for mean, value in zip(averaged, kept, strict=True):
            mean.lerp_(value.detach(), 1 - decay)
        if time.monotonic() - told > 15:
            told = time.monotonic()
            there = found["there"].float()
            iou = ((found["iou"] * there).sum(1) / there.sum(1).clamp(min=1)).tolist()
            print(json.dumps({
                "s": round(told - started), "step": step, "rendered": clips.rendered,
                "loss": round(found["loss"].item(), 4), "norm": round(float(norm), 2),
                "iou": [round(one, 3) for one in iou],
            }), flush=True)  # fmt: skip
    for mean, value in zip(averaged, kept, strict=True):
        value.data.copy_(mean)
    weights = learned(learner, memory)
    save_file({k: v.half() for k, v in weights.items()}, given.out / "memory.safetensors")
    print(json.dumps(held_out(learner, unseen, given)), flush=True)


if __name__ == "__main__":
    main()
