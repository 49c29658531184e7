"""Messages name what installs in the checkout, whose environment has no pip."""

import re
import tomllib
from pathlib import Path

import pytest

from sam2_core.backends.tensorrt_loading import require_tensorrt
from sam2_core.installing import how_to_install
from sam2_core.types import AutolabelError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["sam2_core", "tasks", "flows"])
def test_whatever_names_an_extra_for_pip_names_the_target_of_make_too(folder):
    for path in ROOT.joinpath(folder).rglob("*.py"):
        for line in path.read_text().splitlines():
            if "pip install 'sam2-autolabel[" in line:
                assert re.search(r"make (extra-)?[\w{]", line), f"{path}: {line.strip()}"


def test_without_tensorrt_no_option_is_named_that_building_engines_lacks(monkeypatch):
    monkeypatch.setattr("sam2_core.backends.tensorrt_loading.find_spec", lambda name: None)
    with pytest.raises(AutolabelError, match="make extra-tensorrt") as refused:
        require_tensorrt()
    assert "--" not in str(refused.value)


def test_the_extras_and_targets_that_messages_name_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    makefile = (ROOT / "Makefile").read_text()
    named = set()
    for path in ROOT.joinpath("sam2_core").rglob("*.py"):
        named |= set(re.findall(r"how_to_install\([\"'](\w+)[\"']", path.read_text()))
    assert {"gpu", "tensorrt", "triton", "export"} <= named <= set(extras)
    assert re.search("^extra-%:", makefile, re.M)
    assert re.search("^torch:", makefile, re.M)
    assert "make torch" in how_to_install("export", "torch")
