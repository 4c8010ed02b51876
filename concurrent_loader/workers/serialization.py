"""Serialization of batches between processes: a pickle in an unnamed file, and large tensors in files of their own.

A worker packs and the consumer unpacks; only descriptors are sent. A tensor that was collated in shared memory is not
copied. Other large tensors and arrays are copied once, as one block. Encoded samples and other Python values are
written once and read once. Only pickles of the loader's own workers are read, never data from a bucket.
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

from concurrent_loader.batch.shared_memory import LARGE_BYTES, SharedBlocks, map_file, new_file

__all__ = ["MAX_FILES", "PackedBatch", "pack", "read_metadata", "unpack"]

MAX_FILES = 17  # per batch: the pickle and 16 large blocks; further blocks are copied into the pickle

_METADATA_SIZE = struct.Struct("<Q")
_PLAIN = frozenset(torch.from_numpy(np.empty(0, dtype)).dtype for dtype in "?bhilBHILefdFD") | {torch.bfloat16}


class PackedBatch:
    """Descriptors of a packed object. They are closed after sending, or with this object."""

    def __init__(self) -> None:
        self.files: list[int] = []

    def append_metadata(self, metadata: Any) -> None:
        """Appends a small object, which replaces earlier metadata; see `read_metadata`."""
        pickled = pickle.dumps(metadata)
        os.lseek(self.files[0], 0, os.SEEK_END)
        os.write(self.files[0], pickled + _METADATA_SIZE.pack(len(pickled)))

    def close(self) -> None:
        """Closes the descriptors. Idempotent."""
        while self.files:
            os.close(self.files.pop())

    def __del__(self) -> None:
        self.close()


def pack(thing: Any, blocks: SharedBlocks | None = None) -> PackedBatch:
    """Packs an object that can be pickled. Tensors are packed by content, on the CPU, and keep their strides.

    Args:
        thing: Object to unpack in the other process.
        blocks: Shared memory in which some of its tensors may have been collated.

    Raises:
        OSError: Memory or descriptors ran out.
        Exception: The object cannot be pickled.
    """
    packed = PackedBatch()
    try:
        packed.files.append(new_file())
        with open(packed.files[0], "wb", closefd=False) as file:
            _Pickler(file, packed, blocks or SharedBlocks()).dump(thing)
        packed.append_metadata(None)
    except BaseException:
        packed.close()
        raise
    return packed


def unpack(files: Sequence[int]) -> Any:
    """Unpacks an object. The caller keeps the descriptors.

    Each large tensor or array has memory of its own, so a reference to one does not keep the others alive.
    """
    buffers = [map_file(fd).numpy() for fd in files[1:]]
    with mmap.mmap(files[0], 0, access=mmap.ACCESS_READ) as packed, memoryview(packed) as view:
        return pickle.loads(view, buffers=buffers)  # noqa: S301 -- of a worker of this process


def read_metadata(files: Sequence[int]) -> Any:
    """Returns the object that `PackedBatch.append_metadata` appended last."""
    end = os.fstat(files[0]).st_size - _METADATA_SIZE.size
    (num_bytes,) = _METADATA_SIZE.unpack(os.pread(files[0], _METADATA_SIZE.size, end))
    return pickle.loads(os.pread(files[0], num_bytes, end - num_bytes))  # noqa: S301 -- of a worker of this process


class _Pickler(pickle.Pickler):
    """Writes large buffers to files of their own, beside the pickle."""

    def __init__(self, file: io.BufferedWriter, packed: PackedBatch, blocks: SharedBlocks) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep_in_pickle)
        self._parcel = packed
        self._blocks = blocks

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is torch.Tensor and _is_plain(thing):
            return _reduced(thing)
        if isinstance(thing, torch.Tensor) and thing.layout is torch.jagged and _is_simple(thing):
            return torch.nested.nested_tensor_from_jagged, _jagged_parts(thing)
        if isinstance(thing, memoryview):
            return memoryview, (thing.tobytes(),)
        return NotImplemented

    def _keep_in_pickle(self, buffer: pickle.PickleBuffer) -> bool:
        """Writes a large buffer to a file of its own; returns True for a buffer that stays in the pickle."""
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


def _jagged_parts(nested: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the values and offsets of a jagged tensor."""
    return nested.values(), nested.offsets()


def _is_simple(nested: Any) -> bool:
    """Returns whether a jagged tensor is made of plain values, ragged in its second dimension, without holes."""
    values, offsets = _jagged_parts(nested)
    is_second = nested.dim() == values.dim() + 1 and isinstance(nested.shape[1], torch.SymInt)
    return is_second and nested.lengths() is None and _is_plain(values) and _is_plain(offsets)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is plain numbers. torch pickles any other tensor."""
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
    """Returns whether the elements are contiguous in some order of dimensions, without overlap."""
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
