"""The folders of a dataset, and which objects in them something still needs.

This is the one list of what a dataset may hold. A new kind of object is added here, so that garbage collection and
copies know it. Objects in other folders are not the dataset's, and are never touched.
"""

from __future__ import annotations

import re

from concurrent_loader.storage.shards.manifest.tombstones import COLLECTED, PURGED
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["COLLECTED", "COPYING", "DATA", "FOLDERS", "RECORDS", "data_digest", "named_digests", "named_keys", "run_of"]

DATA = ("shards/", "columns/", "tails/")
"""Objects that belong to the dataset only while a manifest or the record of a running job names their digest."""

COPYING = "copying/"
"""Records of copies: each is a JSON list of the keys that the copy needs."""

RECORDS = ("unfinished/", COPYING)
"""Folders of the records of jobs that have not committed yet. The path below begins with the name of the job. A job
whose newest record is older than the grace period was abandoned: its records are deleted, and protect nothing."""

FOLDERS = ("manifests/", *DATA, *RECORDS, "tags/", PURGED, COLLECTED)
"""All folders of a dataset. Manifests in ``collected/`` protect their objects, because a reader may still use them."""

_DATA_KEY = re.compile(rf"(?:{'|'.join(DATA)})([0-9a-f]{{32}})\.[a-z]+")
_NAMED_KEY = re.compile(rf'(?<=")(?:{"|".join(DATA)})[0-9a-f]{{32}}\.[a-z]+(?=")'.encode())
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


def data_digest(key: str) -> str | None:
    """Returns the digest in the key of a data object; None for any other key."""
    match = _DATA_KEY.fullmatch(key)
    return None if match is None else match[1]


def named_digests(data: Buffer) -> set[str]:
    """Returns every digest in the text of a manifest or record, so all that it refers to, whatever its fields mean.

    Manifests get new fields, and records are other modules' business. An object must not be deleted because this one
    was not told of a field. A digest that is named for another reason protects an object too many, at worst.
    """
    return {digest.decode() for digest in _DIGEST.findall(data)}


def named_keys(data: Buffer) -> set[str]:
    """Returns every key of a data object in the text of a manifest."""
    return {key.decode() for key in _NAMED_KEY.findall(data)}


def run_of(key: str) -> str | None:
    """Returns the folder of the job that a record belongs to, or None if the key is not that of a record."""
    for folder in RECORDS:
        if key.startswith(folder):
            return folder + key[len(folder) :].partition("/")[0] + "/"
    return None
