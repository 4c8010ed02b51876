"""Which keys of a bucket are samples of an `ObjectDataset`, and their labels."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.images import COLUMN_FORMATS, FORMATS, IMAGE_SUFFIXES
from concurrent_loader.storage.listing import Listing
from concurrent_loader.storage.media import MEDIA_COLUMNS, MEDIA_FORMATS
from concurrent_loader.storage.shards.manifest.snapshots import is_manifest_key

__all__ = ["KeyFilter", "folder_labels", "suffixes_of"]


class KeyFilter:
    """Selects the keys that are samples, and counts manifests of shards among all keys.

    Args:
        suffixes: Endings in lower case, one of which a key must have; None for any.
        pattern: Pattern that a key must match; None for any.
    """

    def __init__(self, suffixes: Sequence[str] | None, pattern: str | None) -> None:
        self._suffixes = None if suffixes is None else tuple(suffixes)
        self._pattern = pattern
        self._matches = None if pattern is None else re.compile(fnmatch.translate(pattern)).match
        self.num_manifests = 0

    def __call__(self, key: str) -> bool:
        self.num_manifests += is_manifest_key(key)
        if self._suffixes is not None and not key.lower().endswith(self._suffixes):
            return False
        if self._matches is not None and not self._matches(key):
            return False
        return not key.startswith(".") and "/." not in key

    def __str__(self) -> str:
        ends = "" if self._suffixes is None else f"whose key ends with {', '.join(self._suffixes)} (see suffixes=)"
        matches = "" if self._pattern is None else f"whose key matches {self._pattern!r}"
        return " and ".join(filter(None, (ends, matches))) or "at all"


def folder_labels(listing: Listing, url: str) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Derives classes and labels from the first folders of all keys.

    Returns:
        Class names, and (n,) int64 labels.
    """
    found: dict[str, int] = {}
    numbers = np.empty(len(listing), np.int64)
    for at, key in enumerate(listing.keys.tolist()):
        folder, slash, _ = key.partition("/")
        if not slash:
            raise ConfigurationError(
                "an object is not in a class folder; move it, or leave labels out", url=url, key=key
            )
        numbers[at] = found.setdefault(folder, len(found))
    names = tuple(sorted(found, key=lambda name: name.encode()))
    rank = np.empty(len(names), np.int64)
    for place, name in enumerate(names):
        rank[found[name]] = place
    return names, rank[numbers]


def suffixes_of(column_type: str) -> Sequence[str]:
    """Returns the usual endings of a column type's files, with the dot."""
    images = [suffix for name in COLUMN_FORMATS.get(column_type, ()) for suffix in FORMATS[name].suffixes]
    media = [f".{suffix}" for name in MEDIA_COLUMNS.get(column_type, ()) for suffix in MEDIA_FORMATS[name].suffixes]
    return images or media or IMAGE_SUFFIXES
