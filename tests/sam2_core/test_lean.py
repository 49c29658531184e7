"""The restructured modules against the plain ones: the same numbers, fewer of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from sam2_core.architecture import cast, random_weights, select_mask  # noqa: E402
from sam2_core.architecture.lean_decoder import LeanDecoder  # noqa: E402
from sam2_core.architecture.lean_encoder import LeanEncoder  # noqa: E402
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
