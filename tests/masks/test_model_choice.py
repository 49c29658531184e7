"""Which backend a model is labeled with."""

from __future__ import annotations

import pytest

from sam2_core import backend_choice
from tasks.masks.model import choose_model


@pytest.mark.parametrize("model", ["auto", "compact"])
def test_pytorch_is_not_asked_about_a_model_that_comes_as_graphs(model, monkeypatch, tmp_path):
    asked = []

    def usable(name: str) -> bool:
        asked.append(name)
        return name != "tensorrt"

    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setattr(backend_choice, "cuda_devices", lambda: 1)
    monkeypatch.setattr(backend_choice, "_usable", usable)
    choice = choose_model(model, "auto")
    assert (choice.backend, choice.precision) == ("onnxruntime-cuda", "fp16")
    assert choice.source.endswith("compact/restructured")
    assert "torch" not in asked


def test_the_tests_own_preset_is_chosen_for_torch_like_any_other(monkeypatch):
    monkeypatch.setattr("sam2_core.backend_choice.need_torch", lambda _: None)
    assert choose_model("random:micro", "torch").stamp.name == "micro/restructured"
