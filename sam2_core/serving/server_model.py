"""The model that a Triton server runs: images and prompts to masks, by the code of labeling.

Triton loads it in processes of its own, which have the module `triton_python_backend_utils`. Frames
with boxes, as labeling sends them, are segmented in batches. An image that a client opens is kept,
under a bound, in memory that all processes share (files of a memory file system; what was not used
for longest goes first); each process keeps what it has encoded of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import re
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock, Timeout

from sam2_core.cache import cache_folder, only_one
from sam2_core.clicks import TOGETHER, OpenImage
from sam2_core.presets import WHOLE_FRAMES
from sam2_core.redaction import redact
from sam2_core.segmenter import Segmenter
from sam2_core.serving.contract import (
    EXPIRED,
    RequestTensors,
    ServedModel,
    image_id,
    text_tensor,
)
from sam2_core.trust.certify import ensure_certified
from sam2_core.types import AutolabelError, Boxes, ImageArray, Masks

# To write a file takes milliseconds; a process that holds the lock for longer hangs.
_LOCK_S, _LOCK_POLL_S = 20.0, 0.002
# Of a file of NumPy's, before the pixels.
_HEADER_BYTES = 128
_NAME = re.compile(r"[0-9a-f-]{1,100}")


class ImageStore:
    """A bounded folder of images; any process may write, read and evict.

    Args:
        folder: below /dev/shm, usually; made when it is not there, for this user alone.
        most_bytes: of all files together.

    Raises:
        AutolabelError: the folder is another user's.

    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.lstat().st_uid != os.geteuid():
            raise AutolabelError(f"{folder} belongs to another user, who could read and replace it")

    def put(self, name: str, pixels: ImageArray) -> None:
        """Keep an image under an id; what is there already stays.

        Raises:
            AutolabelError: it is more than the whole store may hold, or the process that writes to
                it has stopped.

        """
        if self._touch(name):
            return
        if pixels.nbytes + _HEADER_BYTES > self._most_bytes:
            raise AutolabelError(
                f"{pixels.nbytes / 1e6:.0f} MB are more than the server keeps "
                f"({self._most_bytes / 1e6:.0f} MB): serve with a larger --cache-mb"
            )
        try:
            with FileLock(self._folder / ".lock").acquire(_LOCK_S, _LOCK_POLL_S):
                self._make_room(pixels.nbytes + _HEADER_BYTES)
                with tempfile.NamedTemporaryFile(
                    dir=self._folder, prefix=".", delete=False
                ) as file:
                    np.save(file, pixels)
                Path(file.name).replace(self._path(name))
                self._touch(name)
        except Timeout as error:
            raise AutolabelError(
                f"another process of the server holds {self._folder} for more than {_LOCK_S:g} s: "
                "is it stopped? Start the server anew"
            ) from error

    def get(self, name: str) -> ImageArray | None:
        """Return the image of an id, or None where it is no longer there.

        It is a read-only view of shared memory, and stays whole when the id is evicted meanwhile.
        """
        if not self._touch(name):
            return None
        try:
            pixels: ImageArray = np.load(self._path(name), mmap_mode="r")
        except FileNotFoundError:
            return None
        return pixels

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise AutolabelError(f"{name[:40]!r} is no id of this server")
        return self._folder / name

    def _touch(self, name: str) -> bool:
        """Note that an id is in use; tells whether it is there."""
        now_ns = time.time_ns()  # by itself the system gives many files the same time
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(name), ns=(now_ns, now_ns))
            return True
        return False

    def _make_room(self, needed: int) -> None:
        """Remove what was not used for longest."""
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.name != ".lock":
                    found.append((status.st_mtime_ns, status.st_size, path))
        held = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if held + needed <= self._most_bytes:
                break
            path.unlink(missing_ok=True)
            held -= size


logger = logging.getLogger(__name__)
# How settings name graphs that lie in the repository itself, beside the model, of one version.
IN_REPOSITORY = "{{repository}}/{}/{{version}}/graphs"
# Another folder than the configuration's for what the server's processes share.
STORE_VARIABLE = "AUTOLABEL_TRITON_STORE"
# Images that a process keeps open, with what the model has encoded of them.
_OPEN = 8
Outputs = Mapping[str, np.ndarray[Any, Any]]
Result = TypeVar("Result")


class UnwantedError(AutolabelError):
    """Nobody waits for the answer any more."""


class ExpiredError(AutolabelError):
    """What a request refers to is no longer on this server, or never was."""


@dataclass(frozen=True)
class ModelSettings:
    """The parameters in a model's config.pbtxt.

    Attributes:
        source: as `load_backend` takes it; `:whole` behind it means whole frames.
        served_as: the model's name on the server.
        backend, precision: as `load_backend` takes them.
        threads: CPU threads; 0 for every core.
        store: folder of what the server's processes share.
        image_bytes: how much of it open images may take.
        loading_s: how long loading may take; then the process says where it is, and ends.

    """

    source: str = ""
    served_as: str = ""
    backend: str = "auto"
    precision: str = "auto"
    threads: int = 0
    store: str = "/dev/shm/autolabel-triton"  # noqa: S108 - made for this user alone
    image_bytes: int = 1 << 30
    loading_s: int = 600

    @staticmethod
    def of(args: Mapping[str, str]) -> ModelSettings:
        """Read them from what Triton says of a model and its place."""
        parameters = json.loads(args["model_config"])["parameters"]
        given = {name: parameter["string_value"] for name, parameter in parameters.items()}
        values: dict[str, Any] = {
            setting.name: int(given[setting.name]) if setting.type == "int" else given[setting.name]
            for setting in fields(ModelSettings)
            if setting.name in given
        }
        if STORE_VARIABLE in os.environ:
            values["store"] = os.environ[STORE_VARIABLE]
        source = values.get("source", "").replace("{version}", args["model_version"])
        here = str(Path(args["model_repository"]).parent)
        return ModelSettings(**values | {"source": source.replace("{repository}", here)})

    @property
    def path(self) -> str:
        """The model without `:whole`."""
        return self.source.removesuffix(WHOLE_FRAMES)

    def load(self) -> Segmenter:
        """Load the model on this machine."""
        from sam2_core.load import load_backend

        backend = load_backend(
            self.path, self.backend, self.precision,
            threads=self.threads or None,
            close_ups=False if self.source.endswith(WHOLE_FRAMES) else None,
        )  # fmt: skip
        return Segmenter(backend)


# A request for the boxes of a frame that no client keeps open, its image and its boxes.
_Frame = tuple["Asked", ImageArray, Boxes]


class ServerModel:
    """A model of Triton's Python backend."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model."""
        if args.get("model_instance_kind") == "GPU":  # each instance is a process of its own
            os.environ["CUDA_VISIBLE_DEVICES"] = args["model_instance_device_id"]
        self.settings, self.version = ModelSettings.of(args), args["model_version"]
        # Triton waits for a model for ever. This watches from outside of Python: whatever it is
        # that does not come back, the server's log says where, and the load has failed.
        faulthandler.dump_traceback_later(self.settings.loading_s, exit=True, file=2)
        try:
            self.prepare()
        finally:
            faulthandler.cancel_dump_traceback_later()

    def prepare(self) -> None:
        """Load the model, use it once, and hold it against PyTorch as labeling here does."""
        self._segmenter = segmenter = self.settings.load()
        self._images = ImageStore(Path(self.settings.store), self.settings.image_bytes)
        self._open: OrderedDict[str, OpenImage] = OrderedDict()
        segmenter.probe()
        served = ServedModel(**vars(segmenter.backend.info), version=self.version)
        try:
            with only_one(cache_folder() / "certificates" / ".server.lock"):
                proof = ensure_certified(segmenter, self.settings.path)
        except AutolabelError as error:  # for labeling to refuse; interactive use goes on
            logger.warning("%s", error)
            served = replace(served, uncertified=str(error))
        else:
            served = replace(served, certificate=proof.short)
        self._info = text_tensor(served.to_json())

    def finalize(self) -> None:
        """Stop the threads."""
        self._segmenter.close()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch of Triton's; whatever is wrong with a request is its own answer."""
        asked = [Asked(request) for request in requests]
        frames = [request.attempt(partial(self._answer, request)) for request in asked]
        self._segment([frame for frame in frames if frame is not None])
        return [request.response for request in asked]

    def _answer(self, asked: Asked) -> _Frame | None:
        """Answer a request, or return its frame, to be segmented with others."""
        asked.refuse_unwanted()
        if asked.wanted == {"info"}:
            asked.answer({"info": self._info})
            return None
        image, name = asked.tensors.image(), asked.tensors.image_id()
        if image is None:
            if not name:
                raise ValueError("the request has no image: give image, jpeg, or image_id")
            self._opened(name)  # else this is said, whatever the prompts are
        prompts = None
        if not asked.wanted <= {"image_id", "size_hw"}:
            prompts = asked.tensors.point_prompts(self._segmenter.image_size // 4)
        if image is not None:
            boxes = None if prompts is None else prompts.boxes_alone()
            if boxes is not None and "image_id" not in asked.wanted:
                scores = np.ones(len(boxes), np.float32)
                return asked, image, Boxes(boxes, scores, ("object",) * len(boxes))
            name = image_id(image)
            self._images.put(name, image)
        opened = self._opened(name)
        size_hw = np.array(opened.size_hw, np.int32)
        outputs: Outputs = {"image_id": text_tensor(name), "size_hw": size_hw}
        if prompts is not None:
            masks = []
            for start in range(0, len(prompts), TOGETHER):
                asked.refuse_unwanted()
                masks.append(opened.segment(prompts.chosen(slice(start, start + TOGETHER))))
            outputs = {**outputs, **_mask_tensors(Masks.joined(masks), asked.wanted)}
        asked.answer(outputs)
        return None

    def _opened(self, name: str) -> OpenImage:
        """Return an image that was sent before, open."""
        pixels = self._images.get(name)
        if pixels is None:
            self._open.pop(name, None)
            raise ExpiredError(
                f"the image {name[:80]} is not, or no longer, on this server: send it again"
            )
        if name not in self._open:
            self._open[name] = OpenImage(self._segmenter.backend, pixels)
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name]

    def _segment(self, frames: Sequence[_Frame]) -> None:
        """Segment frames together; where that fails, one by one to know which fail."""
        try:
            found = self._segmenter.segment(
                [image for _, image, _ in frames], [boxes for *_, boxes in frames]
            )
        except Exception as error:  # noqa: BLE001 - an answer, too
            if len(frames) == 1:
                frames[0][0].refuse(error)
                return
            for frame in frames:
                self._segment([frame])
            return
        for (asked, image, _), masks in zip(frames, found, strict=True):
            outputs = _mask_tensors(masks, asked.wanted)
            outputs |= {"size_hw": np.array(image.shape[:2], np.int32), "info": self._info}
            asked.answer(outputs)


def _mask_tensors(masks: Masks, wanted: frozenset[str]) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = {
        "rle": text_tensor(b"".join(masks.rle)),
        "rle_bytes": np.array([len(rle) for rle in masks.rle], np.int32),
        "reasons": text_tensor(json.dumps(masks.reasons)),
        "predicted_iou": masks.predicted_iou, "stability": masks.stability,
        "object_score": masks.object_score, "area_px": masks.area_px,
    }  # fmt: skip
    if "mask_bits" in wanted:
        whole = [masks.to_array(row).reshape(-1) for row in range(len(masks))]
        found["mask_bits"] = np.packbits(np.array(whole), axis=1)
    return found


def tensor_of(name: str, array: np.ndarray[Any, Any]) -> Any:
    """Return an array as one of Triton's tensors, through DLPack, as `Asked` reads them."""
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
        self.response: Any = None
        self.tensors = RequestTensors(self._tensor)
        # Microseconds that its client waits at most; 0: it does not say.
        self._until = time.monotonic() + timeout / 1e6 if (timeout := request.timeout()) else None
        self.wanted: frozenset[str] = frozenset(request.requested_output_names())

    def _tensor(self, name: str) -> np.ndarray[Any, Any] | None:
        found = self._triton.get_input_tensor_by_name(self._request, name)
        # Through DLPack: the backend's own way to NumPy was built for NumPy 1 and gives wrong
        # strides.
        return None if found is None else np.from_dlpack(found)

    def refuse_unwanted(self) -> None:
        """Raise `UnwantedError` where the client no longer waits for the answer."""
        late = self._until is not None and time.monotonic() > self._until
        if late or self._request.is_cancelled():
            raise UnwantedError("cancelled by its client, or its deadline has passed")

    def answer(self, outputs: Outputs) -> None:
        """Answer with tensors, of which those are sent that were asked for."""
        tensors = [
            tensor_of(name, array[None]) for name, array in outputs.items() if name in self.wanted
        ]
        self.response = self._triton.InferenceResponse(tensors)

    def refuse(self, error: Exception) -> None:
        """Answer that it cannot be done, and why."""
        codes = self._triton.TritonError
        text, code = redact(str(error)), codes.INVALID_ARG
        if isinstance(error, UnwantedError):
            code = codes.CANCELLED
        elif isinstance(error, ExpiredError):
            text, code = f"{EXPIRED}{error}", codes.NOT_FOUND
        elif not isinstance(error, AutolabelError | ValueError):
            logger.error("a request failed", exc_info=error)
            text, code = redact(f"{type(error).__name__}: {error}"), codes.INTERNAL
        self.response = self._triton.InferenceResponse([], codes(text, code))

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """Return what a function returns; None where it fails, which is this request's answer."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - an answer, too
            self.refuse(error)
            return None
