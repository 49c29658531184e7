"""What the server's Python models have in common: their settings, requests and answers.

Triton loads these in processes of its own, which have the module `triton_python_backend_utils`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sam2_core.redaction import redact
from sam2_core.serving.contract import EXPIRED, WHOLE_FRAMES
from sam2_core.serving.given import Given
from sam2_core.serving.store import SharedStore
from sam2_core.types import AutolabelError

logger = logging.getLogger(__name__)
# How settings name graphs that lie in the repository itself: beside the encoder, of one version.
IN_REPOSITORY = "{{repository}}/{}/{{version}}/graphs"
# Another folder than the configuration's for what the server's processes share.
STORE_VARIABLE = "AUTOLABEL_TRITON_STORE"
Outputs = Mapping[str, np.ndarray[Any, Any]]
Result = TypeVar("Result")


class UnwantedError(AutolabelError):
    """Nobody waits for the answer any more."""


class ExpiredError(AutolabelError):
    """What a request refers to is no longer on this server, or never was."""


@dataclass(frozen=True)
class ModelSettings:
    """What the parameters of a model's config.pbtxt say.

    Attributes:
        source: as `load_backend` takes it; `:whole` behind it means whole frames.
        served_as: the model's name on the server.
        backend, precision: as `load_backend` takes them.
        threads: CPU threads; 0 for every core.
        store: folder of what the server's processes share.
        embedding_bytes, image_bytes: how much of it features and open images may take.
        loading_s: how long loading may take; then the process says where it is, and ends.

    """

    source: str = ""
    served_as: str = ""
    backend: str = "auto"
    precision: str = "auto"
    threads: int = 0
    store: str = "/dev/shm/autolabel-triton"  # noqa: S108 - made for this user alone
    embedding_bytes: int = 1 << 30
    image_bytes: int = 1 << 28
    loading_s: int = 600

    def parameters(self) -> dict[str, str]:
        """Return them as parameters of config.pbtxt."""
        return {name: str(value) for name, value in asdict(self).items()}

    @staticmethod
    def of(config: Mapping[str, Any], args: Mapping[str, str]) -> ModelSettings:
        """Read them from a model's configuration, and what Triton says of its place."""
        given = {name: one["string_value"] for name, one in config["parameters"].items()}
        values: dict[str, Any] = {
            one.name: int(given[one.name]) if one.type == "int" else given[one.name]
            for one in fields(ModelSettings)
            if one.name in given
        }
        settings = ModelSettings(**values)
        here = str(Path(args["model_repository"]).parent)
        source = settings.source.replace("{repository}", here)
        return replace(
            settings, source=source.replace("{version}", args["model_version"]),
            store=os.environ.get(STORE_VARIABLE, settings.store),
        )  # fmt: skip

    def embeddings(self) -> SharedStore:
        """Return where features lie."""
        return SharedStore(Path(self.store) / "embeddings", self.embedding_bytes)

    def images(self) -> SharedStore:
        """Return where open images lie."""
        return SharedStore(Path(self.store) / "images", self.image_bytes)

    @property
    def path(self) -> str:
        """What is loaded, without what is said of how."""
        return self.source.removesuffix(WHOLE_FRAMES)

    def load(self) -> Any:
        """Load the model on this machine."""
        from sam2_core.load import load_backend

        return load_backend(
            self.path, self.backend, self.precision,
            threads=self.threads or None,
            close_ups=False if self.source.endswith(WHOLE_FRAMES) else None,
        )  # fmt: skip


class PythonModel:
    """A model of Triton's Python backend; `answer_all` is its own."""

    settings: ModelSettings
    version: str

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load what the model needs."""
        if args.get("model_instance_kind") == "GPU":  # each instance is a process of its own
            os.environ["CUDA_VISIBLE_DEVICES"] = args["model_instance_device_id"]
        self.settings = ModelSettings.of(json.loads(args["model_config"]), args)
        self.version = args["model_version"]
        # Triton waits for a model for ever. This watches from outside of Python: whatever it is
        # that does not come back, the server's log says where, and the load has failed.
        faulthandler.dump_traceback_later(self.settings.loading_s, exit=True, file=2)
        try:
            self.prepare()
        finally:
            faulthandler.cancel_dump_traceback_later()

    def prepare(self) -> None:
        """Load the model; called once."""

    def answer_all(self, requests: Sequence[Asked]) -> None:
        """Answer every request, with `answer` or `refuse`."""
        raise NotImplementedError

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch of Triton's; whatever is wrong with one is its own answer."""
        asked = [Asked(one) for one in requests]
        self.together([one for one in asked if not one.drop_if_cancelled()], self.answer_all)
        return [one.response() for one in asked]

    @staticmethod
    def together(requests: Sequence[Asked], work: Callable[[Sequence[Asked]], None]) -> None:
        """Answer requests at once; where that fails, each that has no answer is told why."""
        try:
            work(requests)
        except Exception as error:  # noqa: BLE001 - the server lives on
            for one in requests:
                one.refuse(error)


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the data of one of Triton's tensors, where it lies.

    Through DLPack: the backend's own way to NumPy was built for NumPy 1 and gives wrong strides.
    """
    return np.from_dlpack(tensor)


def tensor_of(name: str, array: np.ndarray[Any, Any]) -> Any:
    """Return an array as one of Triton's tensors; as `array_of`."""
    import triton_python_backend_utils as triton

    # What is exported must be writeable.
    lent = _Lent(np.require(array, requirements=["C", "W"]))
    tensor = triton.Tensor.from_dlpack(name, lent)
    lent.taken()
    return tensor


# Lives as long as the capsules that have this name.
_TAKEN = b"used_dltensor"


class _Lent:
    """An array on its way through DLPack.

    The backend marks what it has taken with a name that NumPy does not know, and NumPy then prints
    an error for each.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self._capsule: Any = None

    def __dlpack__(self, stream: Any = None) -> Any:
        del stream
        self._capsule = self._array.__dlpack__()
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def taken(self) -> None:
        """Mark the capsule as NumPy wants it."""
        rename = ctypes.pythonapi.PyCapsule_SetName
        rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
        rename(self._capsule, _TAKEN)


class Asked:
    """One request of a batch, and its answer."""

    def __init__(self, request: Any) -> None:
        import triton_python_backend_utils as triton

        self._triton, self._request = triton, request
        self._response: Any = None
        self.given = Given(self._tensor)
        # Microseconds that its client waits at most; 0: it does not say.
        self._until = time.monotonic() + timeout / 1e6 if (timeout := request.timeout()) else None
        self.wanted: frozenset[str] = frozenset(request.requested_output_names())

    def _tensor(self, name: str) -> np.ndarray[Any, Any] | None:
        found = self._triton.get_input_tensor_by_name(self._request, name)
        return None if found is None else array_of(found)

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer."""
        return self._response is not None

    def is_unwanted(self) -> bool:
        """Tell whether nobody waits for the answer any more."""
        late = self._until is not None and time.monotonic() > self._until
        return late or bool(self._request.is_cancelled())

    def drop_if_cancelled(self) -> bool:
        """Give up a request that nobody waits for any more; tells whether it was so."""
        if self.is_unwanted():
            self._refuse("cancelled by its client", self._triton.TritonError.CANCELLED)
            return True
        return False

    def answer(self, outputs: Outputs) -> None:
        """Answer with tensors, of which those are sent that were asked for."""
        tensors = [
            tensor_of(name, array[None]) for name, array in outputs.items() if name in self.wanted
        ]
        self._response = self._triton.InferenceResponse(tensors)

    def refuse(self, error: Exception) -> None:
        """Answer that it cannot be done, and why; an answer that is there stays."""
        if self.is_answered:
            return
        codes = self._triton.TritonError
        if isinstance(error, UnwantedError):
            self._refuse(str(error), codes.CANCELLED)
        elif isinstance(error, ExpiredError):
            self._refuse(f"{EXPIRED}{error}", codes.NOT_FOUND)
        elif isinstance(error, AutolabelError | ValueError):
            self._refuse(redact(str(error)), codes.INVALID_ARG)
        else:
            logger.exception("a request failed")
            self._refuse(redact(f"{type(error).__name__}: {error}"), codes.INTERNAL)

    def _refuse(self, text: str, code: Any) -> None:
        error = self._triton.TritonError(text, code)
        self._response = self._triton.InferenceResponse([], error)

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """Return what a function returns; None where it fails, which is this request's answer."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - an answer, too
            self.refuse(error)
            return None

    def each(self, work: Callable[[], Outputs]) -> None:
        """Answer with what a function returns, or with why it did not."""
        self.attempt(lambda: self.answer(work()))

    def response(self) -> Any:
        """Return the answer."""
        if not self.is_answered:
            self.refuse(RuntimeError("the model has not answered"))
        return self._response
