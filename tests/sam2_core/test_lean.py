"""The restructured modules against the plain ones: the same numbers, fewer of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from sam2_core.architecture import cast, random_weights, select_mask  # noqa: E402
from sam2_core.architecture.lean_decoder import LeanDecoder  # noqa: E402
from sam2_core.architecture.lean_encoder import LeanEncoder  # noqa: E402
from sam2_core.architecture.token_grid import ROWS  # noqa: E402
from sam2_core.presets import COMPACT, MICRO  # noqa: E402
from tests.sam2_core.test_architecture import boxes_and_prompts, close, scene  # noqa: E402

INDEX = torch.tensor([1, 0, 1, 0, 0, 1])


@pytest.fixture(scope="module", params=["micro", "compact"])
def case(request):
    """Model, images, prompts over two images, and the plain modules' features and outputs."""
    preset = MICRO if request.param == "micro" else COMPACT.sized(image_size=256)
    model = random_weights(preset)
    images = scene(preset, 2)
    _, points, labels = boxes_and_prompts(preset)
    with torch.no_grad():
        features = model.encode(images)
        outputs = model.decode(features, points, labels, INDEX)
        lean = LeanEncoder(model)(images.permute(0, 3, 1, 2))
    return preset, model, images, points, labels, features, outputs, lean


@pytest.mark.parametrize(("fused", "early"), [(False, False), (False, True), (True, False)])
def test_encoder(case, fused, early):
    preset, model, images, _, _, (embedding, s0, s1), _, _ = case
    with torch.no_grad():
        encoder = LeanEncoder(model, fused=fused, early=early)
        lean, lean_s0, lean_s1 = encoder(images.permute(0, 3, 1, 2))
    close(lean.transpose(1, 2).reshape(embedding.shape), embedding)
    cells = preset.embedding_grid
    up1, up2 = (model.sam_mask_decoder.output_upscaling[i].bias for i in (0, 3))
    # Back from cells to maps; the upscaling biases have moved here, and s1 has lost its mean.
    lean_s1 = lean_s1.reshape(2, cells, cells, 2, 2, -1).permute(0, 5, 1, 3, 2, 4)
    whole_s1 = s1 + up1[:, None, None]
    close(lean_s1.reshape(s1.shape), whole_s1 - whole_s1.mean(1, keepdim=True))
    lean_s0 = lean_s0.reshape(2, cells, cells, 2, 2, 2, 2, -1).permute(0, 7, 1, 3, 5, 2, 4, 6)
    close(lean_s0.reshape(s0.shape), s0 + up2[:, None, None])


@pytest.mark.ci
def test_encoder_of_a_grid_in_several_parts():
    preset = COMPACT.sized(image_size=512)
    assert preset.embedding_grid**2 > ROWS
    model, image = random_weights(preset), scene(preset, 1)
    with torch.no_grad():
        embedding = model.encode(image)[0]
        lean = LeanEncoder(model)(image.permute(0, 3, 1, 2))[0]
    close(lean.transpose(1, 2).reshape(embedding.shape), embedding)


def test_decoder(case):
    _, model, _, points, labels, _, (logits, iou, score), lean = case
    with torch.no_grad():
        found = LeanDecoder(model)(*lean, points, labels, INDEX)
    close(found[0], logits, 2e-4)
    assert torch.allclose(found[1], iou, atol=2e-5)
    assert torch.allclose(found[2], score, atol=1e-4)


def test_decoder_with_mask_prompts(case):
    preset, model, _, points, labels, features, _, lean = case
    generator = torch.Generator().manual_seed(4)
    masks = torch.randn(len(points), 1, preset.grid, preset.grid, generator=generator) * 3
    with torch.no_grad():
        expected, _, _ = model.decode(features, points, labels, INDEX, masks)
        decoder = LeanDecoder(model, masked=True)
        found, _, _ = decoder(*lean, points, labels, INDEX, mask_input=masks)
    close(found, expected, 2e-4)


@pytest.mark.parametrize("side", [2, 5])
def test_windows_are_exact_inside(case, side):
    preset, model, _, points, labels, _, (logits, iou, _), lean = case
    generator = torch.Generator().manual_seed(5)
    last = preset.embedding_grid - side
    window = torch.randint(0, last + 1, (len(points), 2), generator=generator, dtype=torch.int32)
    window[0], window[1] = 0, last
    with torch.no_grad():
        decoder = LeanDecoder(model, window=side)
        found, found_iou, _ = decoder(*lean, points, labels, INDEX, window)
    for row, (y, x) in enumerate((4 * window).tolist()):
        inside = logits[row, :, y : y + 4 * side, x : x + 4 * side]
        assert (found[row] - inside).abs().max() / logits.std() < 2e-4
    assert torch.allclose(found_iou, iou, atol=2e-5)


@pytest.mark.ci
def test_halves_keep_the_masks():
    """True FP16 modules: coordinates and counts in float32, IoU to float32 as MODEL.md asks."""
    model = random_weights(MICRO)
    images = scene(MICRO, 1)
    _, points, labels = boxes_and_prompts(MICRO, 24, seed=9)
    index = torch.zeros(24, dtype=torch.long)
    with torch.no_grad():
        exact = select_mask(*model.decode(model.encode(images), points, labels, index)[:2])
        encoder, decoder = LeanEncoder(model), LeanDecoder(model)
        encoder, decoder = cast(encoder, torch.float16), cast(decoder, torch.float16)
        features = encoder(images.permute(0, 3, 1, 2))
        assert features[0].dtype == torch.float16
        half = select_mask(*decoder(*features, points, labels, index)[:2])
    a, b = exact[0] > 0, half[0] > 0
    iou = (a & b).sum((1, 2, 3)) / (a | b).sum((1, 2, 3)).clamp(min=1)
    assert iou.median() > 0.99  # random weights are rougher than trained ones
