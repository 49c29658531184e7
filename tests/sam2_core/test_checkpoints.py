"""Checkpoints that load, and files that are refused with the reason."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")
safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors: make torch")

from sam2_core.architecture import random_weights  # noqa: E402
from sam2_core.checkpoints import load_checkpoint  # noqa: E402
from sam2_core.presets import COMPACT, MICRO  # noqa: E402
from sam2_core.types import AutolabelError  # noqa: E402

MEMORY = {"memory_attention.norm.weight": torch.ones(3), "maskmem_tpos_enc": torch.ones(7, 1, 1, 4)}


@pytest.fixture(scope="module")
def model():
    return random_weights(MICRO, 7)


def same(first, second) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return set(a) == set(b) and all(torch.equal(a[key], b[key]) for key in a)


def test_misfits_are_named(model, tmp_path):
    path = tmp_path / "weights.pt"
    state = dict(model.state_dict())
    state.pop("image_encoder.trunk.pos_embed")
    torch.save({"model": state}, path)
    with pytest.raises(AutolabelError, match=r"lacks image_encoder.trunk.pos_embed"):
        load_checkpoint(path)
    with pytest.raises(AutolabelError, match="does not fit the preset compact"):
        load_checkpoint(path, COMPACT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"extra.weight": torch.ones(2)}, "no SAM 2 has: extra.weight"),
        (lambda state: state | {"no_mem_embed": state["no_mem_embed"] * torch.nan},
         "no finite real numbers in no_mem_embed"),
        (lambda state: state | {"no_mem_embed": state["no_mem_embed"] * 1j},
         "no finite real numbers in no_mem_embed"),
        (lambda state: state | {"no_mem_embed": "text"}, "holds no SAM 2 weights"),
        (lambda state: state | {"sam_mask_decoder.conv_s0.weight": torch.zeros(1)},
         r"has misshapen sam_mask_decoder\.conv_s0\.weight"),
        (lambda _: [1], "holds no SAM 2 weights"),
        (lambda _: {"layer.weight": torch.ones(2)}, "no SAM 2 weights"),
    ],
)  # fmt: skip
def test_what_is_no_weights_is_refused(model, tmp_path, change, message):
    path = tmp_path / "weights.pt"
    torch.save({"model": change(dict(model.state_dict()))}, path)
    with pytest.raises(AutolabelError, match=message):
        load_checkpoint(path)
    torch.save([1], path)
    with pytest.raises(AutolabelError, match="holds no SAM 2 weights"):
        load_checkpoint(path)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_unreadable_files(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    with pytest.raises(AutolabelError, match="there is no checkpoint"):
        load_checkpoint(path)
    for content in (b"not a checkpoint at all", b""):
        path.write_bytes(content)
        with pytest.raises(AutolabelError, match=r"cannot read the checkpoint .*: \w") as refused:
            load_checkpoint(path)
        assert "weights_only" not in str(refused.value)
