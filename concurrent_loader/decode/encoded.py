"""Encoded bytes as the tensor that torch's image decoders want, without a copy and without a warning."""

from __future__ import annotations

import numpy as np
import torch

from concurrent_loader.decode.header import Buffer

__all__ = ["as_tensor"]


class _Lent:
    """Memory of a buffer, declared writable to numpy; keeps the buffer alive."""

    def __init__(self, data: Buffer) -> None:
        self.owner = np.frombuffer(data, dtype=np.uint8)
        interface = self.owner.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def as_tensor(data: Buffer) -> torch.Tensor:
    """Returns the bytes of a buffer as a (n,) uint8 tensor that shares its memory. Only read from it.

    torch has no read-only tensors and warns of read-only memory, once, through a process-wide filter. Decoders never
    write to their input, so the memory is declared writable; a mapped file would answer a write with a signal.
    """
    if memoryview(data).nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.asarray(_Lent(data)))
