"""What certificates of this machine say of a model that is not loaded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from sam2_core.model_download import checkpoint_path
from sam2_core.presets import PRESETS
from sam2_core.trust.certificate import Certificate, certificates, versions_of
from sam2_core.types import AutolabelError
from tasks.masks.model import ModelChoice, choose_model

NOT_CHECKED = "not checked"


def is_of_now(certificate: Certificate) -> bool:
    """Whether its engine is what loading the same model for the same backend would give now."""
    engine, source = certificate.engine, certificate.source
    try:
        if not _is_here(source):
            return False
        close_ups = None if engine["close_ups"] else False
        choice = choose_model(source, engine["backend"], engine["precision"], close_ups=close_ups)
    except (AutolabelError, OSError):
        return False
    return _is_for(certificate, choice)


def verdict_on(choice: ModelChoice) -> str:
    """Return the verdict that a model has on this machine; `NOT_CHECKED` where it has none."""
    found = [one.verdict for one in certificates() if _is_for(one, choice)]
    return found[0] if found else NOT_CHECKED


def _is_for(certificate: Certificate, choice: ModelChoice) -> bool:
    engine, stamp = certificate.engine, choice.stamp
    if stamp.backend != engine["backend"] or engine["versions"] != versions_of(stamp.backend):
        return False
    known = {name: value for name, value in asdict(stamp).items() if value}
    if "/" not in stamp.name:  # only reading the checkpoint tells
        del known["name"]
    return all(engine[name] == value for name, value in known.items())


def _is_here(source: str) -> bool:
    """Whether a model can be looked at without fetching anything."""
    if source in PRESETS and PRESETS[source].checkpoint:
        return checkpoint_path(PRESETS[source]).is_file()
    return bool(source) and Path(source).expanduser().exists()
