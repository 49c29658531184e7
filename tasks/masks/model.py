"""Which model labels, and the one copy of it that a run keeps warm."""

import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sam2_core.backends.follow_backends import FollowBackend
from sam2_core.find_weights import Wanted, resolve_weights
from sam2_core.load import load_follow_backend, memory_sha256, resolve_model
from sam2_core.model_download import checkpoint_path
from sam2_core.presets import PRESETS, WHOLE_FRAMES, preset_named
from sam2_core.segmenter import Segmenter
from sam2_core.trust.certify import (
    Certificate,
    UncertifiedEngineError,
    certificates,
    ensure_certified,
    versions_of,
)
from sam2_core.trust.following import ensure_memory_certified
from sam2_core.types import AutolabelError, ModelStamp

ONNXRUNTIME = "onnxruntime"
# What `auto` takes, best masks first, if it has been exported on this machine.
BY_QUALITY = ("large", "base_plus", "small", "tiny")
BUNDLED = "compact"
TRITON = "triton"


@dataclass(frozen=True)
class ModelChoice:
    """A model that is there, not loaded yet.

    Attributes:
        source: what to load: an exported model's folder, or weights as the torch backend names
            them.
        backend: what will run it, resolved: never "auto".
        precision: fp32 or fp16.
        stamp: what its labels will carry.
        reason: why this model and this backend, for the user.
        close_ups: as in `load_backend`.
        allow_uncertified: label with it whatever its certificate says.

    """

    source: str
    backend: str
    precision: str
    stamp: ModelStamp
    reason: str = field(compare=False)
    close_ups: bool | None = None
    allow_uncertified: bool = False


def choose_model(
    model: str = "auto",
    backend: str = "auto",
    precision: str = "auto",
    *,
    close_ups: bool | None = None,
) -> ModelChoice:
    """Find the model and what runs it, without reading weights into memory.

    Args:
        model: a preset, a folder, a checkpoint, or "auto": the best that is on this machine, else
            the bundled compact one. With `:whole` behind it takes whole frames.
        backend: auto, a family (onnxruntime), or exactly which; see
            `sam2_core.backend_choice.BACKENDS`.
        precision: auto, fp32 or fp16.
        close_ups: take each box in a crop of its own; None: where the model can.

    Raises:
        AutolabelError: there is no such model, or this backend cannot run here.

    """
    from sam2_core.backend_choice import choose_backend, precision_for

    if backend != TRITON and model.endswith(WHOLE_FRAMES):
        return choose_model(model.removesuffix(WHOLE_FRAMES), backend, precision, close_ups=False)
    chosen, reason = choose_backend(asked_for(model, backend))
    if chosen == TRITON:
        return _served_choice(model, precision)
    if model == "auto":
        model, why = best_here(Wanted(precision_for(chosen, precision)), chosen)
        reason = f"{why}; {reason}"
    wanted = Wanted(precision_for(chosen, precision, model, close_ups))
    if chosen == "torch":
        return _torch_choice(model, wanted, reason, close_ups)
    folder = resolve_model(model, wanted).for_close_ups(close_ups)
    stamp = folder.stamp(chosen)
    return ModelChoice(str(folder.path), chosen, wanted.precision, stamp, reason, close_ups)


def _served_choice(model: str, precision: str) -> ModelChoice:
    from sam2_core.backends.triton_backend import find_served, server_urls

    urls = server_urls()
    models = (*BY_QUALITY, BUNDLED) if model == "auto" else (model,)
    name, served = find_served(models, precision, urls)
    reason = f"served by {', '.join(urls)}"
    return ModelChoice(
        name, TRITON, served.stamp.precision, served.stamp, reason, served.close_ups
    )  # fmt: skip


def asked_for(model: str, backend: str) -> str:
    """Return the backend, or the family of them, that is asked for.

    "auto" is ONNX Runtime for what comes as graphs: PyTorch can make nothing of those, and to see
    whether PyTorch works takes seconds.
    """
    if backend != "auto":
        return backend
    name = best_here(Wanted("fp16"), "torch")[0] if model == "auto" else model
    return ONNXRUNTIME if name == BUNDLED or Path(name).expanduser().is_dir() else backend


def _torch_choice(model: str, wanted: Wanted, reason: str, close_ups: bool | None) -> ModelChoice:
    from sam2_core.backends.model_folder import CLOSE_UPS, close_up_size
    from sam2_core.labels_version import LABELS_VERSION

    weights = resolve_weights(model, wanted)
    name = Path(model).name if weights.preset == "*" else weights.preset
    if weights.preset != "*":
        size = close_ups is not False and close_up_size(preset_named(name), wanted.graph)
        name = f"{name}/{CLOSE_UPS if size else wanted.graph}"
    stamp = ModelStamp(name, weights.sha256, "", "torch", wanted.precision, LABELS_VERSION)
    return ModelChoice(model, "torch", wanted.precision, stamp, reason, close_ups)


def best_here(wanted: Wanted, backend: str) -> tuple[str, str]:
    """Return the model that "auto" means on this machine, and why."""
    for name in BY_QUALITY:
        if backend == "torch" and checkpoint_path(preset_named(name)).is_file():
            return name, "the largest model downloaded to this machine"
        if any(not file.parent.name.startswith("random-") for file in wanted.exported(name, "*")):
            return name, "the largest model exported on this machine"
    return BUNDLED, "bundled"


def library_versions(backend: str, *, detects: bool) -> dict[str, str]:
    """Return the versions of this machine's libraries that decide pixels, boxes and masks, by name.

    Args:
        backend: what runs the model; of a server's libraries nothing is known here.
        detects: whether boxes come from a detector, which ONNX Runtime runs.

    """
    from tasks.frames.decoding import decoding_versions

    found = decoding_versions()
    for name in {backend} - {TRITON} | ({ONNXRUNTIME} if detects else set()):
        found = found | versions_of(name)
    return dict(sorted(found.items()))


class Segmenters:
    """The models that a command or a flow run has loaded: each once, for any thread.

    Args:
        certified: load only models that are certified on this machine; one without a certificate
            proves itself when it is loaded. Off for what a person looks at while it is made.

    """

    def __init__(self, *, certified: bool = True) -> None:
        self._lock, self._certified = threading.Lock(), certified
        self._loaded: dict[ModelChoice, Segmenter] = {}
        self._refused: dict[ModelChoice, str] = {}
        self._certificates: dict[ModelChoice, dict[str, Any]] = {}
        self._following: dict[ModelChoice, FollowBackend] = {}

    def load(self, choice: ModelChoice) -> Segmenter:
        """Return the one segmenter of a model; loads it the first time.

        Raises:
            UncertifiedEngineError: it may not label on this machine.
            AutolabelError: as `load_segmenter`.

        """
        with self._lock:
            self.refuse_known(choice)
            if choice not in self._loaded:
                self._loaded[choice] = self._proven(choice)
            return self._loaded[choice]

    def follow_backend(self, choice: ModelChoice) -> FollowBackend:
        """Return what follows objects with a model's memory; loads it the first time.

        Raises:
            UncertifiedEngineError: it may not label on this machine.
            AutolabelError: as `load_follow_backend`.

        """
        with self._lock:
            self.refuse_known(choice)
            if choice not in self._following:
                backend = load_follow_backend(choice.source, choice.backend, choice.precision)
                if self._certified and not choice.allow_uncertified:
                    try:
                        proof = ensure_memory_certified(backend, choice.stamp, choice.source)
                    except UncertifiedEngineError as error:
                        self._refused[choice] = str(error)
                        raise
                    short = self._certificates.get(choice)
                    self._certificates[choice] = {**(short or {}), "memory": proof.short}
                self._following[choice] = backend
            return self._following[choice]

    def refuse_known(self, choice: ModelChoice) -> None:
        """Raise `UncertifiedEngineError` for a model that was refused here before."""
        if choice in self._refused:
            raise UncertifiedEngineError(self._refused[choice])

    def certified_by(self, choice: ModelChoice) -> dict[str, Any] | None:
        """Return, in short, the certificate of a model that is loaded; None where it has none."""
        return self._certificates.get(choice)

    def _proven(self, choice: ModelChoice) -> Segmenter:
        segmenter = load_segmenter(choice)
        if not self._certified:
            return segmenter
        if choice.allow_uncertified:
            allowed = {"verdict": verdict_on(choice), "allow_uncertified": True}
            self._certificates[choice] = allowed
            return segmenter

        try:
            self._certificates[choice] = (
                segmenter.backend.certified() or ensure_certified(segmenter, choice.source).short
            )
        except UncertifiedEngineError as error:
            self._refused[choice] = str(error)
            segmenter.close()
            raise
        return segmenter


def load_segmenter(choice: ModelChoice) -> Segmenter:
    """Load a model.

    Raises:
        AutolabelError: it cannot be loaded, or what lies there now is not what was chosen.

    """
    from sam2_core.load import load_backend

    backend = load_backend(
        choice.source, choice.backend, choice.precision, close_ups=choice.close_ups
    )  # fmt: skip
    _refuse_another(choice, backend.info.stamp)
    return Segmenter(backend)


def _refuse_another(choice: ModelChoice, loaded: ModelStamp) -> None:
    """Refuse a model that was replaced since it was chosen: labels carry the stamp of that one."""
    names = ["checkpoint_sha256", "precision", "code_version"]
    if "/" in choice.stamp.name:  # else only reading the checkpoint tells the preset
        names.insert(0, "name")
    if choice.stamp.engine_sha256:
        names.append("engine_sha256")
    other = [name for name in names if getattr(choice.stamp, name) != getattr(loaded, name)]
    if other:
        raise AutolabelError(
            f"the model {choice.source} is not the one that this run began with (another "
            f"{', '.join(other)}): it was replaced meanwhile. Run again, and the labels get "
            "their own key"
        )


NOT_CHECKED = "not checked"


def is_of_now(certificate: Certificate) -> bool:
    """Whether its engine is what loading the same model for the same backend would give now."""
    engine, source = certificate.engine, certificate.source
    try:
        if not _is_here(source):
            return False
        close_ups = None if engine["close_ups"] else False
        choice = choose_model(source, engine["backend"], engine["precision"], close_ups=close_ups)
        if "memory" in engine:
            sha256 = memory_sha256(choice.source, choice.backend, choice.precision)
            if engine["memory"] != sha256:
                return False
    except (AutolabelError, OSError):
        return False
    return _is_for(certificate, choice)


def verdict_on(choice: ModelChoice) -> str:
    """Return the verdict that a model has on this machine; `NOT_CHECKED` where it has none."""
    found = [
        certificate.verdict for certificate in certificates()
        if "memory" not in certificate.engine and _is_for(certificate, choice)
    ]  # fmt: skip
    return found[0] if found else NOT_CHECKED


def _is_for(certificate: Certificate, choice: ModelChoice) -> bool:
    engine, stamp = certificate.engine, choice.stamp
    if stamp.backend != engine["backend"] or engine["versions"] != versions_of(stamp.backend):
        return False
    known = {name: value for name, value in asdict(stamp).items() if value}
    if "/" not in stamp.name or "memory" in engine:  # only reading the checkpoint tells
        del known["name"]
    return all(engine[name] == value for name, value in known.items())


def _is_here(source: str) -> bool:
    """Whether a model can be looked at without fetching anything."""
    if source in PRESETS and PRESETS[source].checkpoint:
        return checkpoint_path(PRESETS[source]).is_file()
    return bool(source) and Path(source).expanduser().exists()
