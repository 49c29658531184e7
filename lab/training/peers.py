"""Several processes, a device each, that train one model together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

AGREE_EVERY = 10


@dataclass(frozen=True)
class Peers:
    """The process among those that train the same model.

    Attributes:
        rank: 0 is the one that writes and tells.
        count: how many there are.
        device: this one's.

    """

    rank: int
    count: int
    device: torch.device

    def mean_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor on the device by its mean over all processes."""
        if self.count > 1:
            dist.all_reduce(tensor)
            tensor /= self.count
        return tensor

    def agree(self, value: float) -> float:
        """Return what the first process says; all must call it equally often."""
        if self.count == 1:
            return value
        said = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(said, 0)
        return float(said)


def choose_device(name: str, index: int = 0) -> torch.device:
    """Return the device to train on, the one of that index where there are several."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    from sam2_core.types import AutolabelError

    if not torch.cuda.is_available():
        raise AutolabelError("the configuration asks for cuda, and there is no CUDA device")
    if index >= torch.cuda.device_count():
        raise AutolabelError(
            f"the configuration asks for device {index}; there are {torch.cuda.device_count()}"
        )
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def run_on(devices: tuple[int, ...], name: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work(peers, *arguments)` in a process a device, in this one where there is one device.

    Returns:
        What it returned, with one device; else None.

    Raises:
        ProcessRaisedException: when one of several failed; the others are ended.

    """
    if len(devices) == 1:
        return work(Peers(0, 1, choose_device(name, devices[0])), *arguments)
    torch.multiprocessing.spawn(
        _enter, args=(devices, name, _free_port(), (work, arguments)), nprocs=len(devices)
    )
    return None


def _enter(
    rank: int, devices: tuple[int, ...], name: str, port: int,
    call: tuple[Callable[..., Any], tuple[Any, ...]],
) -> None:  # fmt: skip
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = choose_device(name, devices[rank])
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=len(devices))
    try:
        work, arguments = call
        work(Peers(rank, len(devices), device), *arguments)
    finally:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
