"""What a follower runs, in PyTorch. Importing this needs torch."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from sam2_core.architecture import Memory, Sam2, cast
from sam2_core.architecture.lean_encoder import LeanEncoder
from sam2_core.architecture.memory_fused import Unrefined
from sam2_core.architecture.memory_graphs import (
    MaskPrompt,
    MemoryDecoder,
    Recall,
    Remember,
)
from sam2_core.backends.device_owner import DEVICE_OWNER
from sam2_core.backends.follow_backends import FollowBackend, RememberedMask
from sam2_core.backends.torch_backend import TorchPixels
from sam2_core.backends.torch_compiled import Bucket, Graphs, Tensors, out_of_memory
from sam2_core.batching import bucket_for
from sam2_core.cache import cache_folder
from sam2_core.types import FEATURES, FloatArray, ImageArray

OBJECT_BUCKETS = (2, *range(4, 33, 4))
FINE = ("high_res_s0", "high_res_s1")
TRACKED_POINTS, BOX_POINTS = 2, 3  # of an object's prompt, padding included
# Inputs of what a GPU records, in order.
RECORDED = {
    "encoder": ("image",),
    "memory_decoder": (
        "conditioned", "conditioned_index", "high_res_s0", "high_res_s1", "points", "labels",
        "ambiguous",
    ),
    "memory_encoder": ("embedding", "logits", "object_score", "prompted"),
}  # fmt: skip

Result = TypeVar("Result")


class TorchFollowBackend(FollowBackend):
    """PyTorch modules.

    Args:
        model: the image path, in float32; unchanged.
        memory: its memory, in float32; unchanged.
        device: "cpu" or "cuda".
        precision: "fp32" or "fp16" (float32 where fidelity needs it).

    """

    unequal = True

    def __init__(
        self, model: Sam2, memory: Memory, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        self._device = device
        self._graphs: Graphs | None = None
        self.image_size, self.width = model.preset.image_size, model.preset.width
        if device == "cuda":
            self.objects_at_once, self.device = OBJECT_BUCKETS[-1], torch.cuda.get_device_name()
        dtype = torch.float16 if precision == "fp16" else torch.float32
        modules: dict[str, Any] = {
            "encoder": LeanEncoder(model, fused=True),
            "memory_attention": Recall(model, memory, fused=True),
            "memory_decoder": MemoryDecoder(model, memory),
            "memory_mask": MaskPrompt(model, memory),
            "memory_encoder": Remember(model, memory, fused=device == "cuda"),
        }
        # Copies: they share modules with the model, which a cast would change for others, too.
        modules = {name: copy.deepcopy(module).eval() for name, module in modules.items()}
        self._modules = self.together(
            lambda: {name: cast(module, dtype).to(device) for name, module in modules.items()}
        )
        self._pixels = TorchPixels(torch.device(device))
        if device == "cuda":
            about = {"preset": repr(model.preset), "precision": precision}
            folder = cache_folder() / "torch"
            self._graphs = self.together(
                lambda: Graphs(torch.device(device), folder, about, torch.cuda.Stream())
            )

    def together(self, work: Callable[[], Result]) -> Result:
        """Run on the thread that a GPU belongs to; memory that runs out is the machine's error."""

        def guarded() -> Result:
            try:
                with torch.no_grad():  # as the image path is compiled
                    return work()
            except torch.OutOfMemoryError as error:
                if self._graphs:
                    self._graphs.release()
                raise out_of_memory(error) from error

        return DEVICE_OWNER.run(guarded) if self._device == "cuda" else guarded()

    def encode(self, image: ImageArray) -> dict[str, Any]:
        """Encode; a GPU resizes the image, and repeats what it recorded the first time."""
        graphs = self._graphs
        given = self._pixels.given(image, self.image_size, cuts=graphs is not None)

        def work() -> Any:
            planes = self._pixels.squares([given], self.image_size)
            if graphs is None:
                return self._modules["encoder"](planes)
            bucket = Bucket(("encoder", 1, 0), self._modules["encoder"], lambda: (planes.clone(),))
            return self._repeated(bucket, {"image": planes})

        return dict(zip(FEATURES, self.together(work), strict=True))

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run a module; a GPU repeats what it recorded for so many objects and such prompts."""

        def work() -> Any:
            bucket = self._bucket(graph, inputs) if self._graphs else None
            if self._graphs and bucket:
                count = len(inputs["object_score" if graph == "memory_encoder" else "points"])
                made = self._repeated(bucket, inputs)
                return tuple(output[:count].clone() for output in made)
            tensors = {
                name: None if value is None else torch.as_tensor(value, device=self._device)
                for name, value in inputs.items()
            }
            return self._modules[graph](**tensors)

        outputs = self.together(work)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _bucket(self, graph: str, inputs: Mapping[str, Any]) -> Bucket | None:
        """Return what is recorded for at least so many objects, None where nothing is."""
        if graph == "memory_encoder":
            points, objects = 0, len(inputs["object_score"])
        elif graph == "memory_decoder" and inputs["mask_input"] is None:
            points, objects = inputs["points"].shape[1], len(inputs["points"])
            one_map = len(inputs["conditioned"]) == 1
            if points != TRACKED_POINTS and not (points == BOX_POINTS and one_map):
                return None
        else:
            return None
        objects = bucket_for(objects, OBJECT_BUCKETS)
        maps = objects if points == TRACKED_POINTS else 1

        def examples() -> Tensors:
            """Return the frame's fine features, which are always there, and room for objects'."""
            given = {name: torch.as_tensor(inputs[name]) for name in RECORDED[graph]}
            rows = {"conditioned": maps}
            return tuple(
                tensor if name in FINE
                else torch.zeros(
                    rows.get(name, objects), *tensor.shape[1:],
                    dtype=tensor.dtype, device=self._device,
                )
                for name, tensor in given.items()
            )  # fmt: skip

        module = self._modules[graph]
        if points:
            module = Unrefined(module)
        return Bucket((graph, points, objects), module, examples, any_rows=True)

    def _repeated(self, bucket: Bucket, inputs: Mapping[str, Any]) -> Tensors:
        """Replay what was recorded; rows behind those given are whatever they were."""
        assert self._graphs  # noqa: S101 - for the type checker
        recorded = self._graphs.made(bucket)
        for target, name in zip(recorded.inputs, RECORDED[bucket.key[0]], strict=True):
            value = torch.as_tensor(inputs[name])
            if target.data_ptr() != value.data_ptr():
                target[: len(value)].copy_(value, non_blocking=True)
        recorded.graph.replay()
        return recorded.outputs

    def remember(self, masks: Sequence[RememberedMask]) -> Sequence[Any]:
        """Encode masks of several frames at once, each with its frame's embedding."""

        def work() -> Sequence[Any]:
            embeddings = torch.cat([mask.embedding for mask in masks])
            (memories,) = self._encoded(embeddings, masks)
            return [memory.clone() for memory in memories]  # some are kept longer than the others

        return self.together(work)

    def recall(self, *remembered: Any) -> Any:
        """Condition on as much as each object has."""
        return self.together(lambda: self._modules["memory_attention"].packed(*remembered))

    def no_masks(self, objects: int) -> Any:
        """Return None."""
        return None

    def compared(self, masks: Any, others: Sequence[Any]) -> Any:
        """Compare on the device."""

        def work() -> Any:
            ours = (masks > 0).flatten(1).float()
            own = ours.sum(1, keepdim=True)
            if not others:
                return own
            theirs = (torch.stack(list(others)) > 0).flatten(1).float()
            shared = ours @ theirs.t()
            union = own + theirs.sum(1) - shared
            return torch.cat([shared / union.clamp(min=1), own], 1)

        return self.together(work)

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Stack tensors."""
        return self.together(lambda: torch.stack(list(arrays)))

    def kept(self, row: Any) -> Any:
        """Clone it."""
        return self.together(row.clone)

    def fetched(self, arrays: Sequence[Any]) -> Sequence[FloatArray]:
        """Copy to the host, in one piece."""

        def work() -> Any:
            sizes = [array.numel() for array in arrays]
            flat = torch.cat([array.float().flatten() for array in arrays]).cpu().split(sizes)
            return [
                part.view(array.shape).numpy() for part, array in zip(flat, arrays, strict=True)
            ]

        return self.together(work)
