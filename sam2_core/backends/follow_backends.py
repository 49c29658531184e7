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
from sam2_core.types import FEATURES, FloatArray, ImageArray

if TYPE_CHECKING:
    from sam2_core.architecture import Memory, Sam2
    from sam2_core.backends.torch_compiled import Captured

Result = TypeVar("Result")

CONDITIONING_FRAMES, RECENT_MEMORIES, RECENT_POINTERS = 8, 6, 15
# Objects of one batch are padded to one of these numbers of memories, and to all pointers.
MEMORY_BUCKETS = (1, 2, 4, 7, 10, CONDITIONING_FRAMES + RECENT_MEMORIES)
POINTERS = CONDITIONING_FRAMES + RECENT_POINTERS


def overlaps(one: Sequence[FloatArray], other: Sequence[FloatArray]) -> FloatArray:
    """IoU of N and M masks by their logits (G, G), float32 (N, M); 0 where both are empty."""
    if not len(one) or not len(other):
        return np.zeros((len(one), len(other)), np.float32)
    flat, other_flat = ((np.stack(some) > 0).reshape(len(some), -1) for some in (one, other))
    shared = flat.astype(np.float32) @ other_flat.T.astype(np.float32)
    union = flat.sum(1)[:, None] + other_flat.sum(1) - shared
    return np.asarray(shared / np.maximum(union, 1), np.float32)


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
        """Return the features of an image, uint8 (H, W, 3) of any size, by name; until the next."""
        planes = planes_of([resize_square(image, self.image_size)])
        return dict(zip(FEATURES, self.run("encoder", {"image": planes}), strict=True))

    def together(self, work: Callable[[], Result]) -> Result:
        """Do what runs many graphs, where that is faster."""
        return work()

    def bucket(self, memories: int) -> int:
        """Return the number of memories that an object with so many is padded to."""
        return next(size for size in MEMORY_BUCKETS if size >= memories)

    def recall(
        self,
        embedding: Any,
        memories: Sequence[Sequence[Any]],
        memory_places: Sequence[Sequence[int]],
        pointers: Sequence[Sequence[Any]],
        pointer_ages: Sequence[Sequence[float]],
    ) -> Any:
        """Condition a frame on what is remembered of O objects of one bucket; see `Recall`."""
        size, padded = self.bucket(max(map(len, memories))), []
        places = np.full((len(memories), size), -1, np.int64)
        past = np.zeros((len(memories), POINTERS, self.width), np.float32)
        ages = np.full((len(memories), POINTERS), -1, np.float32)
        for row, some in enumerate(memories):
            padded.append([*some, *[some[0]] * (size - len(some))])
            places[row, : len(some)] = memory_places[row]
            past[row, : len(pointers[row])] = pointers[row]
            ages[row, : len(pointers[row])] = pointer_ages[row]
        inputs = {"embedding": embedding, "memories": self.stacked(padded), "memory_places": places}
        (conditioned,) = self.run(
            "memory_attention", {**inputs, "pointers": past, "pointer_ages": ages}
        )
        return conditioned

    def no_masks(self, objects: int) -> Any:
        """Return the mask prompts of objects that have none."""
        grid = self.image_size // 4
        return np.zeros((objects, 1, grid, grid), np.float32)

    def compared(
        self, masks: Sequence[Any], others: Sequence[Any]
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Compare masks by their logits (G, G), own arrays.

        Returns:
            IoU of N masks and M others, float32 (N, M), 0 where both are empty; and whether there
            is anything on each of the N, bool (N,).

        """
        there = np.array([(one > 0).any() for one in masks], np.bool_)
        return overlaps(masks, others), there

    @abstractmethod
    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a graph on its inputs by name, NumPy's arrays or own ones; own arrays."""

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Put own arrays, or as many lists of them, into one."""
        return np.array(arrays)

    def kept(self, row: Any) -> Any:
        """Copy a row of an own array: a view keeps the whole batch for as long as itself."""
        return row.copy()

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
        from sam2_core.backends.torch_backend import TorchPixels

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
        self._modules = self.together(
            lambda: {name: cast(one, dtype).to(device) for name, one in modules.items()}
        )
        self._pixels = TorchPixels(torch.device(device))
        self._captured: Captured | None = None

    def together(self, work: Callable[[], Result]) -> Result:
        """Run on the thread that a GPU belongs to; memory that runs out is the machine's error."""

        def guarded() -> Result:
            try:
                with self._torch.inference_mode():
                    return work()
            except self._torch.OutOfMemoryError as error:
                from sam2_core.backends.torch_compiled import out_of_memory

                raise out_of_memory(error) from error

        return device_owner().run(guarded) if self._device == "cuda" else guarded()

    def encode(self, image: ImageArray) -> dict[str, Any]:
        """Encode; a GPU resizes the image, and repeats what it recorded the first time."""
        on_gpu = self._device == "cuda"
        given = self._pixels.given(image, self.image_size, cuts=on_gpu)

        def work() -> Any:
            planes = self._pixels.squares([given], self.image_size)
            if not on_gpu:
                return self._modules["encoder"](planes)
            if self._captured is None:
                from sam2_core.backends.torch_compiled import Captured

                inputs, stream = (planes.clone(),), self._torch.cuda.Stream()
                self._captured = Captured(self._modules["encoder"], inputs, stream, None)
            self._captured.inputs[0].copy_(planes)
            self._captured.graph.replay()
            return self._captured.outputs

        return dict(zip(FEATURES, self.together(work), strict=True))

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a module."""
        torch = self._torch

        def work() -> Any:
            tensors = {
                name: None if value is None else torch.as_tensor(value, device=self._device)
                for name, value in inputs.items()
            }
            return self._modules[graph](**tensors)

        outputs = self.together(work)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def bucket(self, memories: int) -> int:
        """Return 0: nothing is padded."""
        return 0

    def recall(self, *remembered: Any) -> Any:
        """Condition without padding."""
        return self.together(lambda: self._modules["memory_attention"].packed(*remembered))

    def no_masks(self, objects: int) -> Any:
        """Return None."""
        return None

    def compared(
        self, masks: Sequence[Any], others: Sequence[Any]
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Compare on the device."""
        torch = self._torch

        def work() -> Any:
            if not masks:
                return np.zeros((0, len(others)), np.float32), np.zeros(0, np.bool_)
            ours = (torch.stack(list(masks)) > 0).flatten(1).float()
            theirs = (torch.stack([*others, masks[0]]) > 0).flatten(1).float()
            shared, own = ours @ theirs.t(), ours.sum(1)
            iou = shared / (own[:, None] + theirs.sum(1) - shared).clamp(min=1)
            found = torch.cat([iou[:, :-1], own[:, None]], 1).cpu().numpy()
            return found[:, :-1], found[:, -1] > 0

        compared: tuple[FloatArray, npt.NDArray[np.bool_]] = self.together(work)
        return compared

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Stack tensors."""
        torch = self._torch
        return self.together(lambda: torch.stack(list(arrays)))

    def kept(self, row: Any) -> Any:
        """Clone it."""
        return self.together(row.clone)

    def to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Copy to the host."""
        copied: npt.NDArray[Any] = self.together(lambda: array.float().cpu().numpy())
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

    def to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Return it."""
        own: npt.NDArray[Any] = array
        return own
