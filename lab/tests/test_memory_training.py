"""What the training of the memory learns is what a follower computes."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")

from lab.training.memory import FRAMES, Learner, learned, noisy_boxes  # noqa: E402
from sam2_core.architecture import build_memory, random_memory, random_weights  # noqa: E402
from sam2_core.architecture.memory_graphs import OF_FEATURES  # noqa: E402
from sam2_core.backends.torch_follow import TorchFollowBackend  # noqa: E402
from sam2_core.follow import Follower  # noqa: E402
from sam2_core.presets import preset_named  # noqa: E402


def test_a_learner_tracks_as_a_follower_does_with_what_it_has_learned():
    like_compact = {"memory_layers": 2, "memory_shrink": 2, "tracking_decoder": True}
    preset = replace(preset_named("micro"), **like_compact)
    # A seed by which the mask of the box is stable: training has no other choice than token 0.
    model, memory = random_weights(preset), random_memory(preset, 2)
    of_image_path = model.sam_mask_decoder.state_dict()
    shared = {name: of_image_path[name] for name in OF_FEATURES}
    memory.tracking_decoder.load_state_dict(shared, strict=False)
    memory.tracking_decoder.pred_obj_score_head.layers[-1].bias.data += 50  # always there
    generator = torch.Generator().manual_seed(0)
    size = preset.image_size
    images = torch.randint(0, 256, (1, FRAMES, size, size, 3), generator=generator).float()
    ids = torch.zeros(1, FRAMES, size, size, dtype=torch.uint8)
    ids[:, :, 30:90, 20:80] = 1
    batch = {"images": images, "ids": ids, "clip": torch.zeros(1, dtype=torch.int64),
             "name": torch.ones(1, dtype=torch.int64)}  # fmt: skip
    learner = Learner(model, memory, torch.float32)
    with torch.no_grad():
        for one in learner.parameters():
            one.mul_(1.01 if one.requires_grad else 1)
        found = learner(batch, torch.Generator().manual_seed(3))["logits"]
    points, labels = noisy_boxes(ids[:, 0] == 1, size, torch.Generator().manual_seed(3))
    taught = build_memory(preset)
    learned(learner, taught)
    follower, compared = Follower(TorchFollowBackend(model, taught)), 0
    for row, image in enumerate(images[0].to(torch.uint8).numpy()):
        follower.see(image)
        if row == 0:
            follower.condition(points.numpy()[:, :2], labels.numpy()[:, :2].astype(np.int32))
        else:
            follower.track()
        wanted = follower.followed().masks.logits
        present = (wanted > -100).any()
        compared += present
        if present:  # absent objects have other logits in training
            np.testing.assert_allclose(found[row].numpy(), wanted, atol=2e-2)
    assert compared > 2
