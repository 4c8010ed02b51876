"""Turns values of a dataset into names of files, and refuses values that would leave the destination. No I/O."""

from __future__ import annotations

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.images import IMAGE_SUFFIXES, find_format

__all__ = ["check_folder_name", "check_sample_key", "image_suffix", "without_image_suffix"]

_MAX_NAME_BYTES = 200  # leaves room for a suffix: a local file name has at most 255 bytes
_MAX_KEY_BYTES = 800  # leaves room for a prefix: an S3 key has at most 1024 bytes


def image_suffix(data: bytes) -> str:
    """Returns the file name ending of an image, by its first bytes: ``".jpg"``, ``".png"``.

    Raises:
        SchemaError: The format is unknown or has no files of its own.
    """
    found = find_format(data)
    if found is None or not found.suffixes:
        raise SchemaError("the value is not an image file of a known format", got=bytes(data[:12]))
    return found.suffixes[0]


def without_image_suffix(key: str) -> str:
    """Returns a key without the ending of an image file, which the export adds again."""
    stem, dot, _ = key.rpartition(".")
    return stem if dot and key[len(stem) :].lower() in IMAGE_SUFFIXES else key


def check_sample_key(key: object, *, column: str) -> str:
    """Returns the value of a key column if it can be the name of a file: a relative path without dots in front.

    Raises:
        SchemaError: The value is not a text, or is not such a path.
    """
    if not isinstance(key, str):
        raise SchemaError("a key column must be of type str", column=column, got=type(key).__name__)
    problem = None
    if len(key.encode(errors="replace")) > _MAX_KEY_BYTES:
        problem = f"at most {_MAX_KEY_BYTES} bytes"
    else:
        problems = (_segment_problem(segment) for segment in key.split("/"))
        problem = next((each for each in problems if each is not None), None)
    if problem is not None:
        raise SchemaError(
            "a key cannot be the name of a file; number the samples instead (leave --key-column out)",
            column=column, expected=problem, got=key[:80],
        )  # fmt: skip
    return key


def check_folder_name(name: str, *, column: str) -> str:
    """Returns a class name if it can be the name of a folder.

    Raises:
        SchemaError: It cannot.
    """
    problem = "no '/'" if "/" in name else _segment_problem(name)
    if problem is not None:
        raise SchemaError(
            "a class name cannot be the name of a folder; choose another format", column=column, expected=problem,
            got=name[:80],
        )  # fmt: skip
    return name


def _segment_problem(segment: str) -> str | None:
    """Returns what a part of a path must have, if this one lacks it."""
    if not segment or segment.startswith("."):
        return "non-empty parts that do not begin with a dot"
    if not segment.isprintable() or "\\" in segment:
        return "printable characters, and no backslash"
    if len(segment.encode()) > _MAX_NAME_BYTES:
        return f"parts of at most {_MAX_NAME_BYTES} bytes"
    return None
