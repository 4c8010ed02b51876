"""Reads the members of a tar archive in one pass, compressed or not, with bounded memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Generator
from typing import Any, BinaryIO, NamedTuple, cast

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.importers.decompress import DAMAGE, decompressed
from concurrent_loader.storage.sizes import format_size

__all__ = ["TarMember", "read_members"]

_MAX_HEADER_BYTES = 1 << 20  # of one member, with the long names and PAX records before it
_MAX_GLOBAL_HEADERS = 1000
_MAX_VALUE_BYTES = 1 << 30
_BUFFER_BYTES = 1 << 18
_FAULTS = (tarfile.TarError, *DAMAGE)
_NoHeader, _EndMarker = tarfile.EmptyHeaderError, tarfile.EOFHeaderError  # type: ignore[attr-defined]


class TarMember(NamedTuple):
    """A regular file of an archive.

    Attributes:
        name: Path in the archive.
        data: Bytes of the file.
    """

    name: str
    data: bytes


class _Info(tarfile.TarInfo):
    """A header that is damaged is an error; tarfile would take it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Info:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error) is _EndMarker:
                raise
            if type(error) is _NoHeader:
                raise FormatError("the archive ends without an end marker: it is cut off") from error
            raise FormatError(f"a header of the archive is damaged: {error}") from error


class _Budget(io.RawIOBase):
    """The uncompressed archive; limits the bytes between two members, so that no header fills the memory."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self.left: int | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Returns exactly the next bytes, fewer at the end only."""
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise FormatError("the headers of a member are too large", expected=format_size(_MAX_HEADER_BYTES))
        pieces = []
        while size > 0 and (piece := self._stream.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_members(file: BinaryIO) -> Generator[TarMember, None, None]:
    """Yields the regular files of an archive in order. Folders, links and devices are left out.

    Args:
        file: Archive as .tar, .tar.gz, .tar.bz2, .tar.zst or .tar.xz, recognized by its first bytes. Read forward only.

    Raises:
        FormatError: The archive is damaged, cut off, or has headers of more than 1 MiB.
    """
    try:
        budget = _Budget(decompressed(file))
        budget.left = _MAX_HEADER_BYTES + _BUFFER_BYTES  # tarfile reads ahead
        with tarfile.open(fileobj=budget, mode="r|", bufsize=_BUFFER_BYTES, tarinfo=_Info) as archive:
            while (member := archive.next()) is not None:
                cast("Any", archive).members = []  # tarfile keeps every header
                if len(archive.pax_headers) > _MAX_GLOBAL_HEADERS:
                    raise FormatError("the archive has too many global headers", expected=_MAX_GLOBAL_HEADERS)
                budget.left = None
                if member.isreg():
                    yield _read_member(archive, member)
                # Before the next header, tarfile skips the data of a member that was not read.
                budget.left = _MAX_HEADER_BYTES + _BUFFER_BYTES + (0 if member.isreg() else member.size)
            budget.left = None
            while rest := cast("Any", archive).fileobj.read(_BUFFER_BYTES):
                if rest.strip(b"\0"):
                    raise FormatError("data follow the end of the archive: separate archives that were joined")
    except FormatError:
        raise
    except _FAULTS as error:
        raise FormatError(f"the archive is damaged or cut off: {error or type(error).__name__}") from error


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> TarMember:
    if member.issparse():
        raise FormatError("the archive has sparse files, which are not supported", got=member.name)
    if member.size > _MAX_VALUE_BYTES:
        raise FormatError(
            "a file of the archive is too large", expected=f"<= {format_size(_MAX_VALUE_BYTES)}",
            got=f"{member.name!r}, {format_size(member.size)}",
        )  # fmt: skip
    file = archive.extractfile(member)
    data = file.read() if file is not None else b""
    if len(data) != member.size:
        raise FormatError("the archive is cut off", expected=member.size, got=len(data))
    return TarMember(member.name, data)
