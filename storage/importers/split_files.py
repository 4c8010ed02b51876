"""Divides a list of files into runs of bounded size. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

__all__ = ["split_by_bytes"]


File = TypeVar("File")


def split_by_bytes(
    files: Sequence[File], max_bytes: int, size_of: Callable[[File], int] = attrgetter("size")
) -> list[list[File]]:
    """Returns runs of consecutive files, at least one; a run exceeds ``max_bytes`` only if it is a single file."""
    runs: list[list[File]] = [[]]
    num_bytes = 0
    for file in files:
        size = size_of(file)
        if runs[-1] and num_bytes + size > max_bytes:
            runs.append([])
            num_bytes = 0
        runs[-1].append(file)
        num_bytes += size
    return runs
