"""The folders of a dataset, and which objects in them something still needs.

This is the one list of what a dataset may hold. A new kind of object is added here, so that garbage collection and
copies know it. Objects in other folders are not the dataset's, and are never touched.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.tags import TAGS
from concurrent_loader.storage.shards.writing.records import UNFINISHED_FOLDER, record_references
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["COLLECTED", "COPYING", "DATA", "FOLDERS", "MANIFESTS", "RECORDS", "manifest_references", "run_of"]

MANIFESTS = "manifests/"
"""Snapshots."""

DATA = ("shards/", "columns/", "tails/")
"""Objects that belong to the dataset only while a manifest or a record of a running job names them."""

COPYING = "copying/"
"""Records of copies: each is a JSON list of the keys that the copy needs."""


def _copy_references(data: Buffer) -> set[str]:
    """Returns the keys in the record of a copy; none for a damaged record, which the copy writes again."""
    try:
        return msgspec.json.decode(data, type=set[str])
    except msgspec.MsgspecError:
        return set()


RECORDS: dict[str, Callable[[Buffer], set[str]]] = {
    f"{UNFINISHED_FOLDER}/": record_references,
    COPYING: _copy_references,
}
"""Folders of the records of jobs that have not committed yet, and the function that returns the keys of data objects
that a record names. The path below the folder begins with the name of the job. A job whose newest record is older than
the grace period was abandoned: its records are deleted, and protect nothing."""

COLLECTED = "collected/"
"""Manifests of snapshots that were deleted less than a grace period ago. They protect their objects, because a reader
may still use them."""

FOLDERS = (MANIFESTS, *DATA, *RECORDS, TAGS, COLLECTED)
"""All folders of a dataset."""


def manifest_references(manifest: Manifest) -> set[str]:
    """Returns the keys of all objects of the dataset that a snapshot needs."""
    return set(manifest.referenced_keys())


def run_of(key: str) -> str | None:
    """Returns the folder of the job that a record belongs to, or None if the key is not that of a record."""
    for folder in RECORDS:
        if key.startswith(folder):
            return folder + key[len(folder) :].partition("/")[0] + "/"
    return None
