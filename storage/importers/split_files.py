"""Divides a list of files into runs of bounded size. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["split_by_bytes"]


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


File = TypeVar("File", bound=_Sized)


def split_by_bytes(files: Sequence[File], max_bytes: int) -> list[list[File]]:
    """Returns runs of consecutive files, at least one; a run exceeds ``max_bytes`` only if it is a single file."""
    runs: list[list[File]] = [[]]
    num_bytes = 0
    for file in files:
        if runs[-1] and num_bytes + file.size > max_bytes:
            runs.append([])
            num_bytes = 0
        runs[-1].append(file)
        num_bytes += file.size
    return runs
