"""Walks the headers of a tar file: ustar, GNU, PAX and V7. No I/O but the object's reader, and nothing is extracted.

The sources are POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format", and the GNU tar manual,
"Basic Tar Format". Where readers of tar files disagree about the same bytes, the file is refused, so that nobody can be
shown other data than another reader sees: two names for one member, sizes of directories, data after the end.

A member costs a few microseconds, because most of its header is never looked at. Only the checksum needs all bytes, and
one half of an Adler-32 checksum, which is fast, is their sum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from concurrent_loader.storage.adopt.protocol import ObjectReader
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.printable import printable

__all__ = ["HEAD_BYTES", "MAX_LONG_NAME_BYTES", "MAX_PAX_BYTES", "TarMember", "walk_members"]

MAX_PAX_BYTES = 1 << 20
"""Upper bound of one PAX header."""

MAX_LONG_NAME_BYTES = 64 << 10
"""Upper bound of one GNU long name."""

HEAD_BYTES = 16
"""Number of bytes that a member's `TarMember.head` has, or fewer for a smaller member."""

_BLOCK = 512
_WINDOW = _BLOCK + HEAD_BYTES
_ZERO_BLOCK = bytes(_BLOCK)
_PIECE = 1 << 20
_ZEROS = bytes(_PIECE)
_BLANKS = zlib.adler32(b" " * 8)  # the field of the checksum counts as eight blanks

_new = tuple.__new__  # a call of TarMember takes twice the time

_NUMBER_ENDS = b"\0 "
_REGULAR = frozenset(b"0\x007")
_LINKS = {ord("1"): "a hard link", ord("2"): "a symbolic link"}
_DEVICES = {ord("3"): "a character device", ord("4"): "a block device", ord("6"): "a FIFO"}
_DIRECTORY, _GNU_DUMP_DIRECTORY, _VOLUME_LABEL = ord("5"), ord("D"), ord("V")
_SPARSE, _CONTINUED = ord("S"), ord("M")
_LONG_NAME, _LONG_LINK = ord("L"), ord("K")
_PAX, _SOLARIS_PAX, _GLOBAL_PAX = ord("x"), ord("X"), ord("g")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class TarMember(NamedTuple):
    """A regular file in a tar file.

    Attributes:
        name: Name, with lone surrogates for bytes that are not UTF-8. It is only a name: nothing is ever stored there.
        start: Position of the first header of the member.
        data_start: Position of the data.
        data_end: One past the last byte of the data.
        end: One past the padding: the position of the next header.
        head: First 16 bytes of the data.
    """

    name: str
    start: int
    data_start: int
    data_end: int
    end: int
    head: bytes


class _Extension:
    """What the headers before a member's own header state about it."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.name: str | None = None
        self.size: int | None = None
        self.kinds: set[int] = set()


def walk_members(reader: ObjectReader) -> Iterator[TarMember]:
    """Yields the regular files of a tar file in their order; directories and volume labels are left out.

    The file ends with two blocks of zeros or at the end of the object. After the zeros there may only be more zeros.

    Args:
        reader: Bytes of the object. Only headers are read, and 16 bytes of each member.

    Raises:
        FormatError: The file is damaged or hostile, is compressed, or has a link, a device or a sparse file. The error
            has the position of the header, and its message the name of the member.

    Example:
        >>> import io, tarfile
        >>> from concurrent_loader.storage.adopt.formats.tar_headers import walk_members
        >>> from concurrent_loader.storage.adopt.protocol import BytesReader
        >>> tarfile.open(fileobj=(file := io.BytesIO()), mode="w").addfile(tarfile.TarInfo("a.txt"))
        >>> [member.name for member in walk_members(BytesReader(file.getvalue()))]
        ['a.txt']
    """
    object_size = reader.size
    position = 0
    extension: _Extension | None = None
    while position < object_size:
        window = bytes(reader.read(position, min(position + _WINDOW, object_size)))
        if len(window) < _BLOCK:
            _check_uncompressed(reader, position, window)
            raise _error(reader, position, "the tar file ends within a header")
        if window[0] == 0 and window[:_BLOCK] == _ZERO_BLOCK:
            if extension is not None:
                raise _error(reader, position, "a header that extends the next one is the last of the tar file")
            _check_zeros(reader, position + _BLOCK)
            return
        try:  # nearly all headers consist of ASCII characters, and have digits in the usual places
            rest = window[156:_BLOCK]
            total = zlib.adler32(rest, zlib.adler32(window[:148], _BLANKS)) & 0xFFFF
            is_usual = int(window[148:154], 8) + 1 == total and rest.isascii() and window[:148].isascii()
            size = int(window[124:135], 8)
        except ValueError:
            is_usual = False
        if not is_usual or window[135] not in _NUMBER_ENDS or not window[124:135].isdigit():
            _check_sum(reader, position, window)
            size = _number(reader, position, window, 124, 136)
        kind = window[156]
        data_start = position + _BLOCK
        if kind in _REGULAR and extension is None:
            name = _name(window)
            start = position
        elif kind in (_PAX, _SOLARIS_PAX, _GLOBAL_PAX, _LONG_NAME, _LONG_LINK):
            _check_size(reader, position, _name(window), data_start, size)
            position = data_start + _padded(size)
            if kind == _GLOBAL_PAX:
                _check_global(reader, data_start, size)
            else:
                extension = extension or _Extension(data_start - _BLOCK)
                _extend(extension, kind, reader, data_start, size)
            continue
        else:
            start = position if extension is None else extension.start
            name = _name(window)
            if extension is not None:
                name = name if extension.name is None else extension.name
                size = size if extension.size is None else extension.size
                extension = None
            if kind not in _REGULAR:
                _check_other(reader, position, name, kind, size)
                if kind == _GNU_DUMP_DIRECTORY:
                    _check_size(reader, position, name, data_start, size)
                    position = data_start + _padded(size)
                else:
                    position = data_start
                continue
        data_end = data_start + size
        end = data_start + (size + 511 & -512)
        if end > object_size:
            _check_size(reader, position, name, data_start, size)
            raise _error(reader, position, "the tar file ends within the padding of a member", name=name)
        if kind == 0 and name.endswith("/"):  # V7 has no other mark of a directory
            _check_other(reader, position, name, _DIRECTORY, size)
        else:
            head = window[512 : 512 + size] if size < HEAD_BYTES else window[512:]
            yield _new(TarMember, (name, start, data_start, data_end, end, head))
        position = end
    if extension is not None:
        raise _error(reader, position, "a header that extends the next one is the last of the tar file")
    if not object_size:
        raise _error(reader, 0, "the object is empty, and not a tar file")


# -- fields of a header ------------------------------------------------------------------------------------------------


def _name(window: bytes) -> str:
    end = window.find(0, 0, 100)
    raw = window[: 100 if end < 0 else end]
    # GNU tar and V7 have no prefix: in old GNU headers there are times at its place.
    if window[345] and window[257:263] == b"ustar\0":
        raw = window[345:500].partition(b"\0")[0] + b"/" + raw
    return raw.decode("utf-8", "surrogateescape")


def _check_sum(reader: ObjectReader, position: int, window: bytes) -> None:
    """Checks the sum of a header's bytes, which a few old programs add up as signed numbers."""
    _check_uncompressed(reader, position, window)
    rest = window[:148] + window[156:_BLOCK]
    stated = _number(reader, position, window, 148, 156)
    total = 256 + sum(rest)
    if stated in (total, total - 256 * sum(byte > 127 for byte in rest)):
        return
    raise _error(
        reader, position, "the checksum of a tar header does not match: the object is damaged, or is not a tar file",
        expected=stated, got=total,
    )  # fmt: skip


def _check_uncompressed(reader: ObjectReader, position: int, window: bytes) -> None:
    compression = next((name for magic, name in _COMPRESSED.items() if window.startswith(magic)), None)
    if position == 0 and compression is not None:
        raise _error(
            reader, 0,
            f"the tar file is compressed with {compression}, and cannot be read in place; "
            "convert it with `concurrent-loader ingest tar`",
        )  # fmt: skip


def _number(reader: ObjectReader, position: int, window: bytes, start: int, end: int) -> int:
    """Returns the number in a field: octal digits, or base 256 if the first bit is set (GNU, star)."""
    field = window[start:end]
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise _error(reader, position, "a number in a tar header is invalid", got=field)
    return int(digits, 8)


def _padded(size: int) -> int:
    return (size + _BLOCK - 1) // _BLOCK * _BLOCK


# -- other headers -----------------------------------------------------------------------------------------------------


def _extend(extension: _Extension, kind: int, reader: ObjectReader, start: int, size: int) -> None:
    """Notes what an extending header states about the next member."""
    position = start - _BLOCK
    kind = _PAX if kind == _SOLARIS_PAX else kind
    if kind in extension.kinds:
        raise _error(reader, position, "a member has two extending headers of one kind", got=chr(kind))
    extension.kinds.add(kind)
    if kind == _PAX:
        records = _pax_records(reader, start, size)
        path, number = records.get(b"path"), records.get(b"size")
        if number is not None:
            if not number.isdigit() or len(number) > 19:
                raise _error(reader, position, "the size in a PAX header is invalid", got=number[:40])
            extension.size = int(number)
    else:
        if size > MAX_LONG_NAME_BYTES:
            raise _error(
                reader, position, "a long name is too long", expected=f"<= {MAX_LONG_NAME_BYTES} bytes", got=size
            )
        path = bytes(reader.read(start, start + size)).partition(b"\0")[0] if kind == _LONG_NAME else None
    if path is not None:
        if extension.name is not None:
            raise _error(reader, position, "a member has two names", got=(extension.name[:80], path[:80]))
        if not path or b"\0" in path:
            raise _error(reader, position, "a name is empty or has a zero byte", got=path[:80])
        # With hdrcharset=BINARY a path is in no known encoding, and bytes that are not UTF-8 are kept in either case.
        extension.name = path.decode("utf-8", "surrogateescape")


def _check_global(reader: ObjectReader, start: int, size: int) -> None:
    """Checks a header about all members that follow; it may hold comments and times, but no names and sizes."""
    records = _pax_records(reader, start, size)
    for keyword in (b"path", b"size"):
        if keyword in records:
            raise _error(
                reader, start - _BLOCK, "a global PAX header gives all members the same name or size", got=keyword
            )


def _pax_records(reader: ObjectReader, start: int, size: int) -> dict[bytes, bytes]:
    """Returns the records of a PAX header: lines of length, blank, keyword, ``=``, value."""
    at = start - _BLOCK
    if size > MAX_PAX_BYTES:
        raise _error(reader, at, "a PAX header is too long", expected=f"<= {MAX_PAX_BYTES} bytes", got=size)
    data = bytes(reader.read(start, start + size))
    records: dict[bytes, bytes] = {}
    position = 0
    while position < size:
        blank = data.find(b" ", position, position + 8)
        digits = data[position:blank] if blank > 0 else b""
        end = position + int(digits) if digits.isdigit() else 0
        keyword, equals, value = data[blank + 1 : end - 1].partition(b"=") if end > blank + 1 else (b"", b"", b"")
        if not keyword or not equals or end > size or data[end - 1] != ord("\n"):
            raise _error(reader, at, "a record of a PAX header is invalid", got=data[position : position + 40])
        if keyword.startswith(b"GNU.sparse.") or keyword == b"SCHILY.realsize":
            raise _error(reader, at, _SPARSE_ADVICE, got=keyword[:40])
        records[keyword] = value
        position = end
    return records


_SPARSE_ADVICE = "a member is a sparse file, whose bytes are not in one piece; write the tar file without --sparse"


def _check_other(reader: ObjectReader, position: int, name: str, kind: int, size: int) -> None:
    """Refuses members that are neither files nor directories."""
    if kind in (_DIRECTORY, _VOLUME_LABEL):
        if size:
            raise _error(reader, position, "a directory states a size, which readers interpret differently", name=name)
        return
    if kind == _GNU_DUMP_DIRECTORY:
        return
    if kind in _LINKS:
        what = f"{_LINKS[kind]} has no data of its own; write the tar file with --dereference and --hard-dereference"
    elif kind in _DEVICES:
        what = f"{_DEVICES[kind]} has no data; leave it out of the tar file"
    elif kind == _SPARSE:
        what = _SPARSE_ADVICE
    elif kind == _CONTINUED:
        what = "a member began in another volume; write the tar file without --multi-volume"
    else:
        what = f"the type of a member is unknown: {chr(kind)!r}"
    raise _error(reader, position, what, name=name)


def _check_size(reader: ObjectReader, position: int, name: str, data_start: int, size: int) -> None:
    if data_start + size > reader.size:
        raise _error(
            reader, position, "a member ends after the end of the tar file, which is cut off or damaged", name=name,
            expected=f"<= {reader.size - data_start} bytes", got=size,
        )  # fmt: skip


def _check_zeros(reader: ObjectReader, position: int) -> None:
    """Checks that nothing but zeros follows the end: a reader that stops there would lose it silently."""
    while position < reader.size:
        end = min(position + _PIECE, reader.size)
        piece = bytes(reader.read(position, end))
        if piece != _ZEROS[: end - position]:
            raise _error(
                reader, end - len(piece.lstrip(b"\0")),
                "data follows the end of the tar file, as if several were joined; split it, "
                "or join tar files with `tar --concatenate`",
            )  # fmt: skip
        position = end


def _error(
    reader: ObjectReader,
    position: int,
    what: str,
    *,
    name: str | None = None,
    expected: object = None,
    got: object = None,
) -> FormatError:
    if name is not None:
        what = f"member '{printable(name[:200])}': {what}"
    return FormatError(what, key=reader.name, start=position, expected=expected, got=got)
