"""The graphs that a follower runs, and those on ONNX Runtime; `torch_follow` has PyTorch's."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sam2_core.backends.model_folder import MEMORY_OUTPUTS
from sam2_core.backends.onnxruntime_backend import open_session, run_session
from sam2_core.preprocess import planes_of, resize_square
from sam2_core.presets import Preset
from sam2_core.types import FEATURES, FloatArray, ImageArray

Result = TypeVar("Result")

CONDITIONING_FRAMES, RECENT_MEMORIES, RECENT_POINTERS = 8, 6, 15


def overlaps(masks: Sequence[FloatArray], other: Sequence[FloatArray]) -> FloatArray:
    """IoU of N and M masks by their logits (G, G), float32 (N, M); 0 where both are empty."""
    if not len(masks) or not len(other):
        return np.zeros((len(masks), len(other)), np.float32)
    flat, other_flat = ((np.stack(some) > 0).reshape(len(some), -1) for some in (masks, other))
    shared = flat.astype(np.float32) @ other_flat.T.astype(np.float32)
    union = flat.sum(1)[:, None] + other_flat.sum(1) - shared
    return np.asarray(shared / np.maximum(union, 1), np.float32)


class RememberedMask(NamedTuple):
    """What the memory of an object at a frame is made of, a backend's own arrays.

    Attributes:
        embedding: (1, E*E, w) of the frame's encoder.
        logits: float32 (G, G).
        object_score: above 0 where the object is present.
        prompted: the mask is of a prompt.

    """

    embedding: Any
    logits: Any
    object_score: float
    prompted: bool


class FollowBackend(ABC):
    """Graphs of `architecture.memory_graphs` by their file names, and the encoder's features.

    Features, conditioned maps and memories are the backend's own arrays, on its device.

    Attributes:
        image_size: S, side of the model's square.
        width: channels of a pointer.
        objects_at_once: in one batch; four at 1024 pixels with all memories take about 1 GB.
        unequal: whether objects of one batch may have unequal numbers of memories and pointers.
        device: "cpu", or the GPU's name.
        memory_sha256: of the checkpoint or the graphs; "" where it is not needed.

    """

    image_size: int
    width: int
    device = "cpu"
    memory_sha256 = ""
    objects_at_once = 4
    unequal = False

    def encode(self, image: ImageArray) -> dict[str, Any]:
        """Return the features of an image, uint8 (H, W, 3) of any size, by name; until the next."""
        planes = planes_of([resize_square(image, self.image_size)])
        return dict(zip(FEATURES, self.run("encoder", {"image": planes}), strict=True))

    def together(self, work: Callable[[], Result]) -> Result:
        """Do what runs many graphs, where that is faster."""
        return work()

    def recall(
        self,
        embedding: Any,
        memories: Sequence[Sequence[Any]],
        memory_places: Sequence[Sequence[int]],
        pointers: Sequence[Sequence[Any]],
        pointer_ages: Sequence[Sequence[float]],
    ) -> Any:
        """Condition a frame on what is remembered of O objects; see `Recall`."""
        inputs = {
            "embedding": embedding, "memories": self.stacked(memories),
            "memory_places": np.array(memory_places, np.int64),
            "pointers": np.array(pointers, np.float32),
            "pointer_ages": np.array(pointer_ages, np.float32),
        }  # fmt: skip
        (conditioned,) = self.run("memory_attention", inputs)
        return conditioned

    def remember(self, masks: Sequence[RememberedMask]) -> Sequence[Any]:
        """Encode masks, of a frame at a time: memories (E*E, w / 4), own arrays."""
        made: dict[int, Any] = {}
        frames = {id(mask.embedding): mask.embedding for mask in masks}
        for embedding in frames.values():
            rows = [row for row, mask in enumerate(masks) if mask.embedding is embedding]
            (memories,) = self._encoded(embedding, [masks[row] for row in rows])
            made |= dict(zip(rows, memories, strict=True))
        return [made[row] for row in range(len(masks))]

    def _encoded(self, embeddings: Any, masks: Sequence[RememberedMask]) -> Sequence[Any]:
        """Run the memory's encoder, with an embedding of them all or one for each."""
        _, logits, scores, prompted = zip(*masks, strict=True)
        return self.run(
            "memory_encoder",
            {
                "embedding": embeddings, "logits": self.stacked(logits),
                "object_score": np.array(scores, np.float32), "prompted": np.array(prompted),
            },
        )  # fmt: skip

    def no_masks(self, objects: int) -> Any:
        """Return the mask prompts of objects that have none."""
        grid = self.image_size // 4
        return np.zeros((objects, 1, grid, grid), np.float32)

    def compared(self, masks: Any, others: Sequence[Any]) -> Any:
        """Compare masks by their logits, an own array (N, G, G), with M other ones (G, G).

        Returns:
            Float32 (N, M + 1), an own array: IoU, 0 where both are empty, and last the cells of
            each of the N.

        """
        return np.column_stack([overlaps(masks, others), (masks > 0).sum((1, 2), np.float32)])

    @abstractmethod
    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a graph on its inputs by name, NumPy's arrays or own ones; own arrays."""

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Put own arrays, or as many lists of them, into one."""
        return np.array(arrays)

    def kept(self, row: Any) -> Any:
        """Copy a row of an own array: a view keeps the whole batch for as long as itself."""
        return row.copy()

    def fetched(self, arrays: Sequence[Any]) -> Sequence[FloatArray]:
        """Return own arrays as NumPy's, in float32, all of them at once."""
        return arrays


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
        self.sessions = {
            name: open_session(folder / f"{name}.onnx", threads, ["CPUExecutionProvider"])
            for name in self._outputs
        }

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a session."""
        return run_session(self.sessions[graph], self._outputs[graph], dict(inputs))
