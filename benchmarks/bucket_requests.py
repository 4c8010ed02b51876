"""How often, and for how much, a bucket was asked: counts to add up, scale and price."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from concurrent_loader.storage.testing.faults.http_proxy import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What a bucket was asked."""

    gets: int = 0  # of objects and ranges of them
    heads: int = 0  # of objects
    lists: int = 0  # pages of a listing
    bytes: int = 0  # of the bodies of GETs

    @classmethod
    def on_the_wire(cls, exchanges: Iterable[Exchange]) -> Self:
        """Counts what went through a proxy."""
        gets = heads = lists = num_bytes = 0
        for one in exchanges:
            method, query = one.request.method, one.request.query
            if method == "HEAD":
                heads += 1
            elif method == "GET" and "list-type=" in query:
                lists += 1
            elif method == "GET":
                gets += 1
                num_bytes += one.num_bytes
            else:
                raise ValueError(f"{method} {one.request.path}?{query} does not read")
        return cls(gets=gets, heads=heads, lists=lists, bytes=num_bytes)

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            gets=self.gets + other.gets,
            heads=self.heads + other.heads,
            lists=self.lists + other.lists,
            bytes=self.bytes + other.bytes,
        )

    def times(self, factor: float) -> Requests:
        """So many times as much, rounded up."""
        return Requests(
            gets=math.ceil(self.gets * factor),
            heads=math.ceil(self.heads * factor),
            lists=math.ceil(self.lists * factor),
            bytes=math.ceil(self.bytes * factor),
        )
