"""Checkpoints of both layouts make one model; files that are damaged or no weights make none."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")
safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors: make dev")
transformers = pytest.importorskip("transformers", reason="needs transformers: make dev")

from click.testing import CliRunner  # noqa: E402

from flows.cli.models import command as models  # noqa: E402
from sam2_core.architecture import (  # noqa: E402
    build_memory,
    build_model,
    random_memory,
    random_weights,
)
from sam2_core.checkpoints import (  # noqa: E402
    from_hugging_face,
    load_checkpoint,
    load_memory,
)
from sam2_core.find_weights import Wanted, resolve_weights  # noqa: E402
from sam2_core.presets import BASE_PLUS, COMPACT, LARGE, MICRO, SMALL, TINY  # noqa: E402
from sam2_core.types import AutolabelError  # noqa: E402
from tests.sam2_core.test_architecture import paired  # noqa: E402
from tests.transformers_model import transformers_config  # noqa: E402

RAISE = {"catch_exceptions": False}
POINTS = "prompt_encoder.point_embed.weight"
OF_VIDEO = {
    "memory_attention.norm.weight": torch.ones(3),
    "maskmem_tpos_enc": torch.ones(7, 1, 1, 4),
}
UNUSED = (
    "prompt_encoder.shared_embedding.positional_embedding", "no_memory_positional_encoding",
)  # fmt: skip


def video_oracle(preset):
    """A transformers `Sam2VideoModel`, whose memory has the same dimensions for all presets."""
    image = transformers_config(preset)
    parts = ("vision_config", "prompt_encoder_config", "mask_decoder_config")
    config = transformers.Sam2VideoConfig(**{part: getattr(image, part) for part in parts})
    return transformers.Sam2VideoModel(config)


def same(first, second) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return set(a) == set(b) and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.ci
@pytest.mark.parametrize("preset", [TINY, SMALL, BASE_PLUS, LARGE], ids=lambda one: one.name)
def test_every_parameter_of_both_layouts_is_used_once_and_none_is_left(preset):
    with torch.device("meta"):  # shapes alone: the large ones' weights take gigabytes
        hub = video_oracle(preset).state_dict()
        ours = build_model(preset).state_dict() | build_memory(preset).state_dict()
    tagged = {
        name: torch.tensor(float(tag)).expand(value.shape)
        for tag, (name, value) in enumerate(hub.items())
    }
    mapped = from_hugging_face(tagged)
    assert {k: v.shape for k, v in mapped.items()} == {k: v.shape for k, v in ours.items()}
    names = list(hub)
    used = Counter(names[int(value.flatten()[0])] for value in mapped.values())
    assert used == Counter({name: 1 for name in names if name not in UNUSED} | {POINTS: 4})


@pytest.mark.parametrize("preset", [
    MICRO,
    pytest.param(TINY, marks=pytest.mark.ci),
    *(pytest.param(one, marks=pytest.mark.slow) for one in (SMALL, BASE_PLUS, LARGE)),
], ids=lambda one: one.name)  # fmt: skip
def test_both_layouts_of_the_same_weights_are_the_same_model(preset, tmp_path):
    ours, theirs = paired(preset)
    torch.save({"model": ours.state_dict() | OF_VIDEO}, tmp_path / "meta.pt")
    hub = {name: value.clone() for name, value in theirs.state_dict().items()}
    safetensors.save_file(hub | OF_VIDEO, tmp_path / "model.safetensors")
    del hub, theirs
    meta = load_checkpoint(tmp_path / "meta.pt")
    assert meta.preset == preset
    assert same(meta, ours)
    assert same(load_checkpoint(tmp_path / "model.safetensors"), ours)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    state = random_weights(MICRO, 3).state_dict()
    torch.save({"model": state}, folder / "weights.pt")
    safetensors.save_file(state, folder / "weights.safetensors")
    return folder


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (self.target, "w"))


@pytest.mark.parametrize("way", ["in the weights", "beside them", "old format", "plain pickle"])
def test_code_hidden_in_a_checkpoint_is_not_run(tmp_path, way):
    ran, path = tmp_path / "ran", tmp_path / "evil.pt"
    state = dict(random_weights(MICRO, 3).state_dict())
    if way == "in the weights":
        torch.save({"model": state | {"no_mem_embed": Evil(str(ran))}}, path)
    elif way == "beside them":
        torch.save({"model": state, "optimizer": Evil(str(ran))}, path)
    elif way == "old format":
        torch.save({"model": Evil(str(ran))}, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(pickle.dumps({"model": Evil(str(ran))}))
    with pytest.raises(AutolabelError, match="cannot read the checkpoint"):
        load_checkpoint(path)
    assert not ran.exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_sound_file_in_the_place_of_a_damaged_one_is_taken(whole, tmp_path, suffix, monkeypatch):
    data, path = (whole / f"weights{suffix}").read_bytes(), tmp_path / f"weights{suffix}"
    cache = tmp_path / "cache"
    monkeypatch.setenv("AUTOLABEL_CACHE", str(cache))
    export = ["export", "micro", "--checkpoint", str(path)]
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(AutolabelError, match="cannot read the checkpoint"):
        CliRunner().invoke(models, export, **RAISE)
    with pytest.raises(AutolabelError, match="cannot read the checkpoint"):
        resolve_weights(path, Wanted(cache=cache)).load()
    path.write_bytes(data)
    assert resolve_weights(path, Wanted(cache=cache)).load().preset == MICRO
    safetensors.save_file(random_weights(MICRO, 4).state_dict(), path)  # a sound one, but another
    for refused in (resolve_weights, lambda *_: CliRunner().invoke(models, export, **RAISE)):
        with pytest.raises(AutolabelError, match="damaged or has been replaced"):
            refused(path, Wanted(cache=cache))


def test_a_memory_is_read_from_a_checkpoint_that_has_one(whole, tmp_path):
    path, memory = tmp_path / "video.pt", random_memory(MICRO, 5)
    state = random_weights(MICRO, 3).state_dict() | memory.state_dict()
    torch.save({"model": state | {"no_mem_pos_enc": torch.ones(1, 1, 32)}}, path)
    assert same(load_memory(path, MICRO), memory)
    assert same(load_checkpoint(path), load_checkpoint(whole / "weights.pt"))
    assert load_memory(whole / "weights.pt") is None
    torch.save({"model": memory.state_dict()}, tmp_path / "alone.pt")
    with pytest.raises(AutolabelError, match="a memory of video alone"):
        load_checkpoint(tmp_path / "alone.pt")
    for load in (load_memory, load_checkpoint):
        with pytest.raises(AutolabelError, match="does not fit the preset compact"):
            load(path, COMPACT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"extra.weight": torch.ones(2)}, "no SAM 2 has: extra.weight"),
        (lambda state: state.pop("image_encoder.trunk.pos_embed") is None or state,
         r"lacks image_encoder.trunk.pos_embed"),
        (lambda state: state | {"no_mem_embed": state["no_mem_embed"] * torch.nan},
         "other than finite real numbers in no_mem_embed"),
        (lambda state: state | {"no_mem_embed": state["no_mem_embed"] * 1j},
         "other than finite real numbers in no_mem_embed"),
        (lambda state: state | {"no_mem_embed": "text"}, "holds no SAM 2 weights"),
        (lambda state: state | {"sam_mask_decoder.conv_s0.weight": torch.zeros(1)},
         r"has misshapen sam_mask_decoder\.conv_s0\.weight"),
        (lambda _: [1], "holds no SAM 2 weights"),
        (lambda _: {"layer.weight": torch.ones(2)}, "no SAM 2 weights"),
    ],
)  # fmt: skip
def test_what_is_no_weights_is_refused(tmp_path, change, message):
    path = tmp_path / "weights.pt"
    torch.save({"model": change(dict(random_weights(MICRO, 3).state_dict()))}, path)
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
