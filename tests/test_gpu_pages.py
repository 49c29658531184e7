"""A user with a GPU finds on the first page how to have it used."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/OPERATIONS.md"])
def test_the_page_says_how_a_machine_gets_gpu_support(page: str) -> None:
    text = (ROOT / page).read_text()
    assert {"make extra-gpu", "make extra-torch", "make extra-tensorrt"} <= set(
        re.findall(r"make extra-\w+", text)
    )
    assert "580" in text
    assert "CUDA 13" in text


def test_the_sizing_table_says_what_its_figures_are_of() -> None:
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    section = text.partition("### How many GPUs and cores")[2].partition("\n### ")[0]
    above, _, table = section.partition("|---|")
    for word in ("compact", "onnxruntime-cuda", "fp16", "1280x720", "16 cores", "boxes per frame"):
        assert word in above
    for machine in ("no GPU", "two GPUs", "`base_plus`"):
        assert machine in table
