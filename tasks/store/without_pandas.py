"""pyarrow without pandas, which it looks for when it makes its first array: a second of CPU time.

It asks whether there is pandas in order to take pandas' objects, and nothing here has any. Where a
table is to become a data frame after all (`to_pandas`), it looks again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


def let_pyarrow_miss_pandas() -> None:
    """Let pyarrow find no pandas at its first look, unless it is imported already."""
    if "pandas" in sys.modules:
        return
    nowhere = _Nowhere(threading.get_ident())
    sys.meta_path.insert(0, nowhere)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(nowhere)


class _Nowhere(MetaPathFinder):
    """Where one thread, and no other, finds no pandas."""

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None
