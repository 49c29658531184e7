"""Drives that come with the package: three rendered ones with their exact truth, and a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tasks.dataset.coco_truth import Truth, load_truth

# A folder for each drive: `images/`, where the truth is known `truth.json`, and the licence of
# frames that others made. The lab writes them: `lab/examples.py`.
EXAMPLES = Path(__file__).parent / "examples"


def example_truths(folder: Path = EXAMPLES) -> Iterator[tuple[Path, Truth]]:
    """Yield each drive of known truth: its folder of pictures and what is in them."""
    for path in sorted(folder.glob("*/truth.json")):
        yield path.parent / "images", load_truth(path)
