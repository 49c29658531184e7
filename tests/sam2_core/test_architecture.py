"""Our modules against the transformers library's SAM 2 with the same weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")
transformers = pytest.importorskip("transformers", reason="needs transformers: make torch")

from lab.bench.peers import transformers_config  # noqa: E402
from sam2_core.architecture import build_model, image_path_keys, random_weights, select_mask  # noqa: E402
from sam2_core.checkpoints import from_hugging_face, is_hugging_face  # noqa: E402
from sam2_core.presets import (  # noqa: E402
    BASE_PLUS,
    COMPACT,
    LARGE,
    MICRO,
    PRESETS,
    SMALL,
    TINY,
    Preset,
    preset_named,
)
from sam2_core.types import AutolabelError  # noqa: E402


def oracle(preset: Preset):
    """A transformers `Sam2Model` of the preset's dimensions with distinct random weights."""
    return transformers.Sam2Model(transformers_config(preset)).eval()


def paired(preset: Preset, seed: int = 0):
    """Our random weights in our modules and in the oracle's, through the key mapping."""
    ours = random_weights(preset, seed)
    theirs = oracle(preset)
    hub_state = theirs.state_dict()
    mapped = from_hugging_face(hub_state)
    assert set(mapped) == set(ours.state_dict()), "the mapping is one to one"
    with torch.no_grad():
        for name, value in ours.state_dict().items():
            assert mapped[name].shape == value.shape, name
            mapped[name].copy_(value)  # arrays are shared: this writes into the oracle
    hub_state["prompt_encoder.shared_embedding.positional_embedding"].copy_(
        hub_state["shared_image_embedding.positional_embedding"]
    )
    assert is_hugging_face(hub_state)
    assert not is_hugging_face(ours.state_dict())
    return ours, theirs


def scene(preset: Preset, images: int = 1, seed: int = 1):
    """Smooth random images uint8 (B, S, S, 3)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(images, 3, 16, 16, generator=generator)
    size = (preset.image_size,) * 2
    fine = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


def boxes_and_prompts(preset: Preset, count: int = 6, seed: int = 2):
    """Boxes (P, 4) and the same as our points and labels."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 0.5
    size = torch.rand(count, 2, generator=generator) * 0.4 + 0.05
    boxes = torch.cat([corner, corner + size], 1) * preset.image_size
    padding = torch.zeros(count, 1, 2)
    points = torch.cat([boxes.reshape(count, 2, 2), padding], 1)
    return boxes, points, torch.tensor([[2, 3, -1]]).repeat(count, 1)


def normalised(ours, images):
    return (images.permute(0, 3, 1, 2).float() - ours.pixel_mean) / ours.pixel_std


def close(ours, theirs, tolerance: float = 2e-5) -> None:
    """Largest difference in units of the reference's spread."""
    assert ours.shape == theirs.shape
    assert theirs.std() > 1e-3, "a constant reference proves nothing"
    assert ((ours - theirs).abs().max() / theirs.std()).item() < tolerance


@pytest.fixture(scope="module", params=["micro", pytest.param("tiny", marks=pytest.mark.ci)])
def pair(request):
    preset = MICRO if request.param == "micro" else TINY.sized(image_size=512)
    ours, theirs = paired(preset)
    images = scene(preset)
    with torch.no_grad():
        features = ours.encode(images)
        reference = theirs.get_image_embeddings(normalised(ours, images))
    return preset, ours, theirs, features, reference


def test_encoder_matches_the_oracle(pair):
    """Checklist 2 and 3: no_mem_embed is added, both high-resolution features come out."""
    _, ours, _, (embedding, s0, s1), reference = pair
    close(embedding, reference[2])
    close(s0, reference[0])
    close(s1, reference[1])
    assert (embedding - (reference[2] - ours.no_mem_embed.reshape(1, -1, 1, 1))).abs().max() > 0.1


@pytest.mark.parametrize("multi", [True, False])
@pytest.mark.parametrize("prompt", ["box", "points", "mask", "box and points"])
def test_decoder_matches_the_oracle(pair, prompt, multi):
    """Checklist 4 and 5: padding point, shifted coordinates, dynamic single-mask output."""
    preset, ours, theirs, features, reference = pair
    boxes, points, labels = boxes_and_prompts(preset, 2 if preset.name == "tiny" else 6)
    index = torch.zeros(len(boxes), dtype=torch.long)
    mask = None
    given: dict = {}
    if prompt in ("points", "box and points"):
        clicks = points[:, :2].flip(1) * 0.9 + 3.3
        kinds = torch.tensor([[1, 0]]).repeat(len(boxes), 1)
        given = {"input_points": clicks[None], "input_labels": kinds[None]}
        padding = torch.tensor([[-1]]).repeat(len(boxes), 1)
        if prompt == "points":
            points = torch.cat([clicks, torch.zeros(len(boxes), 1, 2)], 1)
            labels = torch.cat([kinds, padding], 1)
        else:
            points, labels = torch.cat([clicks, points], 1), torch.cat([kinds, labels], 1)
            given["input_boxes"] = boxes[None]
    else:
        given = {"input_boxes": boxes[None]}
    if prompt == "mask":
        # The oracle takes a mask prompt for one prompt at a time.
        boxes, points, labels, index = boxes[:1], points[:1], labels[:1], index[:1]
        generator = torch.Generator().manual_seed(3)
        mask = torch.randn(1, 1, preset.grid, preset.grid, generator=generator) * 4
        given = {"input_boxes": boxes[None], "input_masks": mask}
    with torch.no_grad():
        expected = theirs(image_embeddings=list(reference), multimask_output=multi, **given)
        logits, iou, score = ours.decode(features, points, labels, index, mask)
    if multi:
        close(logits[:, 1:], expected.pred_masks[0])
        assert torch.allclose(iou[:, 1:], expected.iou_scores[0], atol=1e-5)
    else:
        chosen, chosen_iou = select_mask(logits, iou)
        close(chosen, expected.pred_masks[0])
        assert torch.allclose(chosen_iou, expected.iou_scores[0, :, 0], atol=1e-5)
    assert torch.allclose(score, expected.object_score_logits[0, :, 0], atol=1e-4)


@pytest.mark.ci
def test_random_weights_are_worth_comparing():
    """Masks depend on the prompt and both branches of the single-mask choice occur."""
    model = random_weights(COMPACT)
    _, points, labels = boxes_and_prompts(COMPACT, 12)
    with torch.no_grad():
        features = model.encode(scene(COMPACT))
        logits, iou, _ = model.decode(features, points, labels, torch.zeros(12, dtype=torch.long))
        chosen, _ = select_mask(logits, iou)
    covered = (logits > 0).float().mean((2, 3))
    assert 0.05 < covered.median() < 0.95
    masks = (logits[:, 0] > 0).flatten(1).float()
    common = masks @ masks.T
    union = masks.sum(1)[:, None] + masks.sum(1)[None] - common
    assert (common / union).mean() < 0.85
    from_token_0 = (chosen == logits[:, :1]).flatten(1).all(1)
    assert 0 < from_token_0.sum() < 12


def test_random_weights_are_reproducible():
    first, second = random_weights(MICRO, 3).state_dict(), random_weights(MICRO, 3).state_dict()
    other = random_weights(MICRO, 4).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not all(torch.equal(first[k], other[k]) for k in first)


def test_several_images_keep_their_prompts():
    model = random_weights(MICRO)
    images = scene(MICRO, 3)
    _, points, labels = boxes_and_prompts(MICRO, 5)
    index = torch.tensor([2, 0, 1, 2, 0])
    with torch.no_grad():
        mixed, _, _ = model(images, points, labels, index)
        for row in range(5):
            image = images[index[row]][None]
            zero = torch.zeros(1, dtype=torch.long)
            alone, _, _ = model(image, points[row : row + 1], labels[row : row + 1], zero)
            close(mixed[row : row + 1], alone, 1e-4)


def test_gradients_reach_every_weight_of_the_image_path():
    """The training step uses these very modules, in train mode."""
    model = random_weights(MICRO).train()
    _, points, labels = boxes_and_prompts(MICRO, 3)
    points = torch.cat([points, points[:, :2] * 0.5], 1)
    labels = torch.cat([labels, torch.tensor([[1, 0]]).repeat(3, 1)], 1)
    mask = torch.randn(3, 1, MICRO.grid, MICRO.grid)
    features = model.encode(scene(MICRO))
    index = torch.zeros(3, dtype=torch.long)
    has_mask = torch.tensor([1.0, 0.0, 1.0])
    logits, iou, score = model.decode(features, points, labels, index, mask, has_mask)
    (logits.square().mean() + iou.mean() + score.mean()).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize(
    ("preset", "tensors", "millions"),
    [(TINY, 311, 31.4), (SMALL, 359, 38.5), (BASE_PLUS, 455, 73.3), (LARGE, 743, 216.9)],
)
def test_published_sizes(preset, tensors, millions):
    with torch.device("meta"):
        model = build_model(preset)
    state = model.state_dict()
    assert len(state) == tensors
    assert image_path_keys([*state, "memory_attention.norm.weight", "maskmem_tpos_enc"]) == list(
        state
    )
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("image_size", [512, 768, 1024])
@pytest.mark.parametrize("width", [128, 160, 256])
def test_compact_takes_other_sizes(image_size, width):
    preset = COMPACT.sized(image_size=image_size, width=width)
    with torch.device("meta"):
        model = build_model(preset)
        features = model.encode(torch.zeros(1, image_size, image_size, 3))
    assert features[0].shape == (1, width, image_size // 16, image_size // 16)
    assert features[1].shape == (1, width // 8, image_size // 4, image_size // 4)
    if width == 128:
        assert 3e6 < sum(p.numel() for p in model.parameters()) < 6e6


def test_preset_names():
    assert preset_named("base-plus") is preset_named("base_plus") is PRESETS["base_plus"]
    with pytest.raises(AutolabelError, match=r"unknown model 'huge'.*compact, tiny"):
        preset_named("huge")
    with pytest.raises(AutolabelError, match="divisible"):
        COMPACT.sized(image_size=500)
    assert PRESETS["tiny"].meta_url.endswith("/092824/sam2.1_hiera_tiny.pt")
    assert PRESETS["tiny"].hugging_face_url.startswith("https://huggingface.co/facebook/sam2.1")
