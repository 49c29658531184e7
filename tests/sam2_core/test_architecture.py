"""Our modules against the transformers library's SAM 2 with the same weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")
transformers = pytest.importorskip("transformers", reason="needs transformers: make dev")

from sam2_core.architecture import random_weights, select_mask  # noqa: E402
from sam2_core.checkpoints import from_hugging_face, is_hugging_face  # noqa: E402
from sam2_core.presets import (  # noqa: E402
    MICRO,
    PRESETS,
    TINY,
    Preset,
    preset_named,
)
from sam2_core.types import AutolabelError  # noqa: E402
from tests.transformers_model import transformers_config  # noqa: E402


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


def test_preset_names():
    assert preset_named("base-plus") is preset_named("base_plus") is PRESETS["base_plus"]
    with pytest.raises(AutolabelError, match=r"unknown model 'huge'.*compact, tiny"):
        preset_named("huge")
    assert PRESETS["tiny"].meta_url.endswith("/092824/sam2.1_hiera_tiny.pt")
    assert PRESETS["tiny"].hugging_face_url.startswith("https://huggingface.co/facebook/sam2.1")
