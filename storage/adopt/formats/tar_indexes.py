"""Reads how many samples a tar file has from the indexes of other programs beside it.

Energon (megatron-energon 7) writes ``name.tar.idx`` beside a tar file: the position of each sample and of the end, as
little-endian u64. ``.nv-meta/.info.json`` has the number of samples of each tar file. DALI's ``wds2idx`` writes
``name.idx``, a text whose first line is the version and the number of samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from concurrent_loader.storage.adopt.protocol import SmallObjects
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.listing import ObjectEntry

__all__ = ["expected_samples"]

_INFO = ".nv-meta/.info.json"
_MAX_INFO_BYTES = 64 << 20
_POSITION_BYTES = 8
_MAX_DALI_BYTES = 8 << 20
_MAX_DALI_FILES = 16
_DALI_LINE = re.compile(rb"v1\.[0-9]{1,3} ([0-9]{1,18})\r?\n")


class _Info(msgspec.Struct):
    shard_counts: dict[str, int] = {}


def expected_samples(
    tars: Sequence[ObjectEntry], entries: Sequence[ObjectEntry], small: SmallObjects
) -> dict[str, Mapping[str, Any]]:
    """Returns the number of samples that indexes state, and the key of the index, by the key of the tar file.

    Args:
        tars: Tar files.
        entries: All objects of the source.
        small: Access to small objects.

    Raises:
        FormatError: An index is damaged, or two contradict each other.
    """
    sizes = {entry.key: entry.size for entry in entries if entry.key.endswith(".idx")}
    counts = _energon_counts(small) if any(entry.key == _INFO for entry in entries) else {}
    expected: dict[str, Mapping[str, Any]] = {
        tar.key: {"num_samples": counts[tar.key], "index": _INFO} for tar in tars if tar.key in counts
    }
    num_read = 0
    for tar in tars:
        energon, dali = f"{tar.key}.idx", f"{tar.key.removesuffix('.tar')}.idx"
        if energon in sizes:
            found: int | None = _energon_count(energon, sizes[energon])
            index = energon
        elif dali in sizes and num_read < _MAX_DALI_FILES and sizes[dali] <= _MAX_DALI_BYTES:
            num_read += 1
            found = _dali_count(small.get(dali, max_bytes=_MAX_DALI_BYTES) or b"")
            index = dali
        else:
            continue
        if found is None:
            continue  # another program's file of that name
        before = expected.setdefault(tar.key, {"num_samples": found, "index": index})
        if before["num_samples"] != found:
            raise FormatError(
                f"the indexes {before['index']} and {index} of a tar file contradict each other; create them again, "
                "or remove them",
                key=tar.key, expected=before["num_samples"], got=found,
            )  # fmt: skip
    return expected


def _energon_counts(small: SmallObjects) -> dict[str, int]:
    data = small.get(_INFO, max_bytes=_MAX_INFO_BYTES)
    try:
        return msgspec.json.decode(data or b"{}", type=_Info).shard_counts
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError("an index of Energon is damaged; create it again, or remove it", key=_INFO) from error


def _energon_count(key: str, size: int) -> int:
    count, rest = divmod(size, _POSITION_BYTES)
    if rest or not count:
        raise FormatError(
            "an index of Energon is damaged; create it again, or remove it", key=key,
            expected="8 bytes per sample and 8 more", got=f"{size} bytes",
        )  # fmt: skip
    return count - 1


def _dali_count(data: bytes) -> int | None:
    match = _DALI_LINE.match(data)
    return None if match is None else int(match[1])
