"""Decodes a batch's pictures on the device, and finds those that it cannot: between the pinned slot and the crops.

A decoder that is given many pictures makes all of them or none, and does not say which one it minded. So a refused call
is repeated with each half, down to single pictures: b broken ones of n cost about 2 b log2(n) calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from concurrent_loader.device.backend import Undecodable

__all__ = ["decode_each"]

P = TypeVar("P")
R = TypeVar("R")


def decode_each(decode: Callable[[Sequence[P]], Sequence[R]], items: Sequence[P]) -> list[R | Undecodable]:
    """Decodes what can be decoded.

    Args:
        decode: Makes all of what it is given, or raises `Undecodable`.
        items: In order.

    Returns:
        In the same order, what was made, or why it was not.
    """
    if not items:
        return []
    try:
        return list(decode(items))
    except Undecodable as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return decode_each(decode, items[:middle]) + decode_each(decode, items[middle:])
