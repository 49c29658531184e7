"""The graphs that a follower runs, in PyTorch and on ONNX Runtime."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from sam2_core.backends.device_owner import device_owner
from sam2_core.backends.onnxruntime_backend import open_session, run_session
from sam2_core.export import MEMORY_OUTPUTS
from sam2_core.preprocess import planes_of, resize_square
from sam2_core.presets import Preset
from sam2_core.types import FEATURES, ImageArray

if TYPE_CHECKING:
    from sam2_core.architecture import Memory, Sam2

Result = TypeVar("Result")


class FollowBackend(ABC):
    """Graphs of `architecture.memory_graphs` by their file names, and the encoder's features.

    Features, conditioned maps and memories are the backend's own arrays, on its device.

    Attributes:
        image_size: S, side of the model's square.
        width: channels of a pointer.
        objects_at_once: in one batch; four at 1024 pixels with all memories take about 1 GB.
        device: "cpu", or the GPU's name.
        memory_sha256: of the checkpoint or the graphs; "" where nobody asked.

    """

    image_size: int
    width: int
    device = "cpu"
    memory_sha256 = ""
    objects_at_once = 4

    def encode(self, image: ImageArray) -> dict[str, Any]:
        """Return the features of an image, uint8 (H, W, 3) of any size, by name."""
        planes = planes_of([resize_square(image, self.image_size)])
        return dict(zip(FEATURES, self.run("encoder", {"image": planes}), strict=True))

    @abstractmethod
    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a graph on its inputs by name, NumPy's arrays or own ones; own arrays."""

    @abstractmethod
    def stacked(self, memories: Sequence[Sequence[Any]]) -> Any:
        """Put memories of O objects, M of each, into one array (O, M, E*E, w / 4)."""

    @abstractmethod
    def rows(self, array: Any) -> list[Any]:
        """Copy the rows of an own array: a view would keep the whole batch for as long as a row."""

    @abstractmethod
    def to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Return an own array as NumPy's; logits and scores in float32."""


class TorchFollowBackend(FollowBackend):
    """PyTorch modules.

    Args:
        model: the image path, in float32; unchanged.
        memory: its memory, in float32; unchanged.
        device: "cpu" or "cuda".
        precision: "fp32" or "fp16" (float32 where fidelity needs it).

    """

    def __init__(
        self, model: Sam2, memory: Memory, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        import torch

        from sam2_core.architecture import cast
        from sam2_core.architecture.lean_encoder import LeanEncoder
        from sam2_core.architecture.memory_graphs import (
            MaskPrompt,
            MemoryDecoder,
            Recall,
            Remember,
        )

        self._torch, self._device = torch, device
        self.image_size, self.width = model.preset.image_size, model.preset.width
        if device == "cuda":
            self.objects_at_once, self.device = 16, torch.cuda.get_device_name()
        dtype = torch.float16 if precision == "fp16" else torch.float32
        modules: dict[str, Any] = {
            "encoder": LeanEncoder(model, fused=True),
            "memory_attention": Recall(model, memory, fused=True),
            "memory_decoder": MemoryDecoder(model, memory),
            "memory_mask": MaskPrompt(model, memory),
            "memory_encoder": Remember(model, memory),
        }
        # Copies: they share modules with the model, which a cast would change for others, too.
        modules = {name: copy.deepcopy(module).eval() for name, module in modules.items()}
        self._modules = self._on_device(
            lambda: {name: cast(one, dtype).to(device) for name, one in modules.items()}
        )

    def _on_device(self, work: Callable[[], Result]) -> Result:
        """Run on the thread that a GPU belongs to; memory that runs out is the machine's error."""

        def guarded() -> Result:
            try:
                with self._torch.inference_mode():
                    return work()
            except self._torch.OutOfMemoryError as error:
                from sam2_core.backends.torch_compiled import out_of_memory

                raise out_of_memory(error) from error

        return device_owner().run(guarded) if self._device == "cuda" else guarded()

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a module."""
        torch = self._torch

        def work() -> Any:
            tensors = {
                name: torch.as_tensor(value, device=self._device) for name, value in inputs.items()
            }
            return self._modules[graph](**tensors)

        outputs = self._on_device(work)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def stacked(self, memories: Sequence[Sequence[Any]]) -> Any:
        """Stack tensors."""
        torch = self._torch
        return self._on_device(lambda: torch.stack([torch.stack(list(one)) for one in memories]))

    def rows(self, array: Any) -> list[Any]:
        """Clone each."""
        return self._on_device(lambda: [row.clone() for row in array])

    def to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Copy to the host."""
        copied: npt.NDArray[Any] = self._on_device(lambda: array.float().cpu().numpy())
        return copied


class OnnxFollowBackend(FollowBackend):
    """Exported graphs on ONNX Runtime's CPU provider.

    Args:
        folder: with `encoder.onnx` of a restructured export and what `export_memory` wrote.
        preset: dimensions of the model.
        threads: cores to use; all that the process may use when None.

    """

    def __init__(self, folder: Path, preset: Preset, threads: int | None = None) -> None:
        self.image_size, self.width = preset.image_size, preset.width
        self._outputs = {"encoder": FEATURES, **MEMORY_OUTPUTS}
        self._sessions = {
            name: open_session(folder / f"{name}.onnx", threads, ["CPUExecutionProvider"])
            for name in self._outputs
        }

    def metadata(self) -> dict[str, dict[str, str]]:
        """Return what each graph says of itself."""
        return {
            name: session.get_modelmeta().custom_metadata_map
            for name, session in self._sessions.items()
        }

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a session."""
        return run_session(self._sessions[graph], self._outputs[graph], dict(inputs))

    def stacked(self, memories: Sequence[Sequence[Any]]) -> Any:
        """Stack arrays."""
        return np.array(memories)

    def rows(self, array: Any) -> list[Any]:
        """Copy each."""
        return [row.copy() for row in array]

    def to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Return it."""
        own: npt.NDArray[Any] = array
        return own
