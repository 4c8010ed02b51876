"""Reads how many samples a tar file has, and where its members are, from the indexes of other programs beside it.

Energon (megatron-energon 7) writes ``name.tar.idx`` beside a tar file: the position of each sample and of the end, as
little-endian u64. ``.nv-meta/.info.json`` has the number of samples of each tar file. DALI's ``wds2idx`` writes
``name.idx``, a text whose first line is the version and the number of samples. Each further line is a sample: for each
member its extension, the position of its data, its size and, since version 1.2, its name.

A scan of headers alone asks an index where the headers are, to fetch many at the same time. It reads all headers
nevertheless, and compares them with the index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from concurrent_loader.storage.adopt.formats.tar_headers import TarMember
from concurrent_loader.storage.adopt.protocol import ObjectReader, SmallObjects
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.listing import ObjectEntry

__all__ = ["TarPlaces", "expected_samples", "read_places"]

_INFO = ".nv-meta/.info.json"
_MAX_INFO_BYTES = 64 << 20
_POSITION_BYTES = 8
_MAX_DALI_BYTES = 8 << 20
_MAX_DALI_FILES = 16
_MAX_INDEX_BYTES = 64 << 20
_BLOCK = 512
_AGAIN = "create it again, or remove it"
_DALI_LINE = re.compile(rb"v1\.([0-9]{1,3}) ([0-9]{1,18})\r?\n")
_DALI_MEMBER = re.compile(rb"(\S+) ([0-9]{1,18}) ([0-9]{1,18})(?: |$)")
_DALI_NAMED_MEMBER = re.compile(rb"(\S+) ([0-9]{1,18}) ([0-9]{1,18}) .+?\.\1(?: |$)")


class _Info(msgspec.Struct):
    shard_counts: dict[str, int] = {}


def expected_samples(
    tars: Sequence[ObjectEntry], entries: Sequence[ObjectEntry], small: SmallObjects
) -> dict[str, dict[str, Any]]:
    """Returns what indexes state about each tar file, by its key.

    These are the number of samples, the key of the index, and ``read_index``, which returns the bytes of the index
    ``places`` beside the tar file.

    Args:
        tars: Tar files.
        entries: All objects of the source.
        small: Access to small objects.

    Raises:
        FormatError: An index is damaged, or two contradict each other.
    """
    sizes = {entry.key: entry.size for entry in entries if entry.key.endswith(".idx")}
    counts = _energon_counts(small) if any(entry.key == _INFO for entry in entries) else {}
    expected: dict[str, dict[str, Any]] = {
        tar.key: {"num_samples": counts[tar.key], "index": _INFO} for tar in tars if tar.key in counts
    }
    num_read = 0
    for tar in tars:
        found: int | None = None
        energon, dali = f"{tar.key}.idx", f"{tar.key.removesuffix('.tar')}.idx"
        if energon in sizes:
            found = _energon_count(energon, sizes[energon])
            index = energon
        elif dali in sizes:
            index = dali
            if num_read < _MAX_DALI_FILES and sizes[dali] <= _MAX_DALI_BYTES:
                num_read += 1
                found = _dali_count(small.get(dali, max_bytes=_MAX_DALI_BYTES) or b"")
                if found is None:
                    continue  # another program's file of that name
        else:
            continue
        if sizes[index] <= _MAX_INDEX_BYTES:
            read = partial(small.get, index, max_bytes=_MAX_INDEX_BYTES)
            expected.setdefault(tar.key, {"index": index}).update(read_index=read, places=index)
        if found is None:
            continue
        before = expected.setdefault(tar.key, {"index": index})
        if before.setdefault("num_samples", found) != found:
            raise FormatError(
                f"the indexes {before['index']} and {index} of a tar file contradict each other; create them again, "
                "or remove them",
                key=tar.key, expected=before["num_samples"], got=found,
            )  # fmt: skip
    return expected


class TarPlaces:
    """The places of members that an index states.

    Args:
        index: Key of the index.
        sizes: Size of each member by the position of its data; or None by the position of its first header.
    """

    def __init__(self, index: str, sizes: Mapping[int, int | None]) -> None:
        self._index = index
        self._sizes = sizes
        has_sizes = None not in sizes.values()
        self._place: Callable[[TarMember], int] = attrgetter("data_start" if has_sizes else "start")
        self.headers = sorted(position - _BLOCK * has_sizes for position in sizes)

    def checked(self, members: Iterator[TarMember], reader: ObjectReader) -> Iterator[TarMember]:
        """Yields the members of a tar file, and compares them with the index.

        Raises:
            FormatError: A member has another size than the index states, or the tar file lacks a member.
        """
        left = dict(self._sizes)
        for member in members:
            size = left.pop(self._place(member), None)
            if size not in (None, member.data_end - member.data_start):
                raise FormatError(
                    f"the index {self._index} states another size of a member than the tar file; {_AGAIN}",
                    key=reader.name, start=member.start, expected=size, got=member.data_end - member.data_start,
                )  # fmt: skip
            yield member
        if left:
            raise FormatError(
                f"the index {self._index} names members that the tar file does not have there; {_AGAIN}",
                key=reader.name, start=min(left), got=f"{len(left)} members",
            )  # fmt: skip


def read_places(info: Mapping[str, Any]) -> TarPlaces | None:
    """Returns the places of members that an index beside a tar file states; None without a usable index.

    Args:
        info: What `expected_samples` returned for the tar file.
    """
    data = info["read_index"]() if "read_index" in info else None
    if not data:
        return None
    sizes: dict[int, int | None] | None
    if info["places"].endswith(".tar.idx"):
        sizes = dict.fromkeys(np.frombuffer(data[: len(data) // 8 * 8 - 8], "<u8").tolist())
    else:
        sizes = _dali_sizes(data)
    return TarPlaces(info["places"], sizes) if sizes else None


def _dali_sizes(data: bytes) -> dict[int, int | None] | None:
    head = _DALI_LINE.match(data)
    if head is None:
        return None
    member = _DALI_MEMBER if int(head[1]) < 2 else _DALI_NAMED_MEMBER
    sizes: dict[int, int | None] = {}
    for line in data[head.end() :].splitlines():
        at = 0
        while at < len(line):
            found = member.match(line, at)
            if found is None:
                return None  # a name that this format cannot hold
            sizes[int(found[2])] = int(found[3])
            at = found.end()
    return sizes


def _energon_counts(small: SmallObjects) -> dict[str, int]:
    data = small.get(_INFO, max_bytes=_MAX_INFO_BYTES)
    try:
        return msgspec.json.decode(data or b"{}", type=_Info).shard_counts
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"an index of Energon is damaged; {_AGAIN}", key=_INFO) from error


def _energon_count(key: str, size: int) -> int:
    count, rest = divmod(size, _POSITION_BYTES)
    if rest or not count:
        raise FormatError(
            f"an index of Energon is damaged; {_AGAIN}", key=key,
            expected="8 bytes per sample and 8 more", got=f"{size} bytes",
        )  # fmt: skip
    return count - 1


def _dali_count(data: bytes) -> int | None:
    match = _DALI_LINE.match(data)
    return None if match is None else int(match[2])
