"""One raw object as a listing saw it: what the cache needs to know of an object that is no shard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import xxhash

__all__ = ["ObjectEntry"]


@dataclass(frozen=True)
class ObjectEntry:
    """An object as it was when it was listed.

    Attributes:
        url: Of the store.
        key: Below that URL.
        size: In bytes.
        etag: None where the store has nothing of the kind.
    """

    url: str
    key: str
    size: int
    etag: str | None

    @cached_property
    def digest(self) -> str:
        """32 hex digits that name the object as it was; another object under the same key has another name."""
        facts = "\0".join((self.url, self.key, self.etag or "", str(self.size)))
        return xxhash.xxh3_128_hexdigest(facts.encode(errors="surrogatepass"))
