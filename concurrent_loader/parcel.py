"""How a batch changes processes: pickled into a file without a name, its large tensors and arrays in files beside it.

A worker packs, the consumer unpacks; in between only descriptors travel. A tensor that collate has put together in
shared memory is not copied at all; other large tensors and arrays are copied once, as one piece; encoded samples and
other values of Python are written once and read once. What is unpacked is a worker's, which runs the user's own code:
nothing here ever sees a pickle from a bucket.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from concurrent_loader.shared_memory import LARGE_BYTES, SharedBlocks, map_file, new_file

__all__ = ["MAX_FILES", "Parcel", "pack", "read_note", "unpack"]

MAX_FILES = 17  # a parcel's; the pickle itself and 16 large pieces, further ones are copied into the pickle

_NOTE = struct.Struct("<Q")
_PLAIN = frozenset(torch.from_numpy(np.empty(0, dtype)).dtype for dtype in "?bhilBHILefdFD") | {torch.bfloat16}


class Parcel:
    """Descriptors of a packed thing; closed when they have been sent, or with the object."""

    def __init__(self) -> None:
        self.files: list[int] = []

    def add_note(self, note: Any) -> None:
        """Adds something small to what is packed, instead of the note before; see `read_note`."""
        packed = pickle.dumps(note)
        os.lseek(self.files[0], 0, os.SEEK_END)
        os.write(self.files[0], packed + _NOTE.pack(len(packed)))

    def close(self) -> None:
        """Closes the descriptors. Idempotent."""
        while self.files:
            os.close(self.files.pop())

    def __del__(self) -> None:
        self.close()


def pack(thing: Any, blocks: SharedBlocks | None = None) -> Parcel:
    """Packs anything that can be pickled; tensors are packed by content, on the CPU, and keep their strides.

    Args:
        thing: What is to be unpacked in the other process.
        blocks: Where some of its tensors may have been put together.

    Raises:
        OSError: No memory or no descriptors are left.
        Exception: It cannot be pickled.
    """
    parcel = Parcel()
    try:
        parcel.files.append(new_file())
        with open(parcel.files[0], "wb", closefd=False) as file:
            _Pickler(file, parcel, blocks or SharedBlocks()).dump(thing)
        parcel.add_note(None)
    except BaseException:
        parcel.close()
        raise
    return parcel


def unpack(files: Sequence[int]) -> Any:
    """Unpacks what was packed; the descriptors stay the caller's.

    Large tensors and arrays lie in memory of their own, one by one, so keeping one of them keeps no other.
    """
    buffers = [map_file(fd).numpy() for fd in files[1:]]
    with mmap.mmap(files[0], 0, access=mmap.ACCESS_READ) as packed, memoryview(packed) as view:
        return pickle.loads(view, buffers=buffers)  # noqa: S301 -- of a worker of this process


def read_note(files: Sequence[int]) -> Any:
    """Returns what `Parcel.add_note` has added last."""
    end = os.fstat(files[0]).st_size - _NOTE.size
    (num_bytes,) = _NOTE.unpack(os.pread(files[0], _NOTE.size, end))
    return pickle.loads(os.pread(files[0], num_bytes, end - num_bytes))  # noqa: S301 -- of a worker of this process


class _Pickler(pickle.Pickler):
    """Puts large buffers beside the pickle."""

    def __init__(self, file: io.BufferedWriter, parcel: Parcel, blocks: SharedBlocks) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._stays)
        self._parcel = parcel
        self._blocks = blocks

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is torch.Tensor and _is_plain(thing):
            return _reduced(thing)
        if isinstance(thing, memoryview):
            return memoryview, (thing.tobytes(),)
        return NotImplemented

    def _stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Puts a buffer into a file of its own, or says that it stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES or len(self._parcel.files) >= MAX_FILES:
            return True
        content = np.frombuffer(raw, dtype=np.uint8)
        fd = self._blocks.take(content.__array_interface__["data"][0], raw.nbytes)
        if fd is not None:
            self._parcel.files.append(fd)
            return False
        self._parcel.files.append(new_file(raw.nbytes))
        map_file(self._parcel.files[-1]).numpy()[:] = content
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its numbers and nothing else; what is not, torch pickles in its own way."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in _PLAIN
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    if not tensor.numel():
        return _empty, (tensor.dtype, tuple(tensor.shape))
    if not _is_dense(tensor):
        tensor = tensor.contiguous()
    content = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    buffer = pickle.PickleBuffer(content.data)
    return _rebuilt, (buffer, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie side by side in whatever order of dimensions, each once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _rebuilt(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=dtype).as_strided(shape, strides)
