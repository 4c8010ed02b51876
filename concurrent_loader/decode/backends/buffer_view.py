"""Wraps encoded bytes in the tensor that torch's image decoders take, without a copy and without a warning."""

from __future__ import annotations

import numpy as np
import torch

from concurrent_loader.storage.images import Buffer

__all__ = ["as_tensor"]


class _WritableView:
    """Declares the memory of a buffer writable to numpy, and keeps the buffer alive."""

    def __init__(self, data: Buffer) -> None:
        self.owner = np.frombuffer(data, dtype=np.uint8)
        interface = self.owner.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def as_tensor(data: Buffer) -> torch.Tensor:
    """Returns the bytes of a buffer as a (n,) uint8 tensor that shares its memory and must not be written.

    torch has no read-only tensors, and warns once about read-only memory, through a process-wide filter. Decoders never
    write to their input, so the memory is declared writable. A write to a mapped file would end the process.
    """
    if memoryview(data).nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.asarray(_WritableView(data)))
