"""JSON that carries the sha256 of its own values, so that what was changed by hand or cut is seen.

It is no secret's signature: who can write the file can sign it. It tells damage, not malice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sam2_core.types import AutolabelError

_SIGNATURE = "sha256"


def digest_of(values: Mapping[str, Any]) -> str:
    """Return the sha256 of plain values, whatever the order of their names."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def signed_text(values: Mapping[str, Any]) -> str:
    """Return JSON text of the values and their sha256."""
    return json.dumps({**values, _SIGNATURE: digest_of(values)}, indent=1) + "\n"


def read_signed(path: Path) -> dict[str, Any]:
    """Read what `signed_text` made.

    Raises:
        FileNotFoundError: there is no such file.
        AutolabelError: it cannot be read, or its values are not those that were signed.

    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        signature = values.pop(_SIGNATURE)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise AutolabelError(
            f"cannot read {path}: {error!r}. Remove it to have it made again"
        ) from (error)
    if signature != digest_of(values):
        raise AutolabelError(
            f"{path} is not what was signed: it was changed or cut. Remove it to have it made again"
        )
    return dict(values)
