"""Reads compressed files as a stream, with bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from typing import BinaryIO, cast

import zstandard

__all__ = ["DAMAGE", "decompressed"]

DAMAGE = (zlib.error, zstandard.ZstdError, lzma.LZMAError, gzip.BadGzipFile, EOFError, ValueError)
"""Errors of the decompressors about damaged data."""

_MAX_WINDOW_BYTES = 1 << 27  # zstd's --long=27, which any decompressor accepts
_MAX_LZMA_BYTES = 256 << 20
_BUFFER_BYTES = 1 << 18
_ZSTD_BYTES = 1 << 13  # decompressed at once, to at most 32,768 times as much


def decompressed(file: BinaryIO) -> BinaryIO:
    """Returns the stream of a file's bytes, which can be read forward; an uncompressed file itself.

    Args:
        file: File at its start. Its first bytes tell gzip, bzip2, zstd and xz apart.
    """
    start = file.read(6)
    file.seek(0)
    if start[:2] == b"\x1f\x8b":
        return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb"))
    if start[:3] == b"BZh":
        return cast("BinaryIO", bz2.BZ2File(file))
    if start[:4] == b"\x28\xb5\x2f\xfd":
        return cast("BinaryIO", _Zstd(file))
    if start == b"\xfd7zXZ\x00":
        return cast("BinaryIO", _Lzma(file))
    return file


class _Zstd(io.RawIOBase):
    """A .zst stream of any number of frames that reports a cut-off frame, which zstandard's reader does not."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        self._frame = self._decompressor.decompressobj()
        self._ready = memoryview(b"")

    def read(self, size: int = -1, /) -> bytes:
        while not self._ready:
            data = self._frame.unused_data or self._file.read(_ZSTD_BYTES)
            if not data and self._frame.eof:
                return b""
            if not data:
                raise EOFError("the compressed data end too early")
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._ready = memoryview(self._frame.decompress(data))
        piece = bytes(self._ready if size < 0 else self._ready[:size])
        self._ready = self._ready[len(piece) :]
        return piece


class _Lzma(io.RawIOBase):
    """An .xz file of any number of streams, with a limit on memory, which `lzma.LZMAFile` does not have."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._decompressor = self._new()

    def read(self, size: int = -1, /) -> bytes:
        while True:
            data = b""
            if self._decompressor.eof:
                if not (data := self._next_stream()):
                    return b""
                self._decompressor = self._new()
            elif self._decompressor.needs_input and not (data := self._file.read(_BUFFER_BYTES)):
                raise EOFError("the compressed data end too early")
            if piece := self._decompressor.decompress(data, max_length=size):
                return piece

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_LZMA_BYTES)

    def _next_stream(self) -> bytes:
        """Returns the first bytes of the next stream; none at the end of the file. Zeros may lie between streams."""
        data = self._decompressor.unused_data.lstrip(b"\0")
        while not data and (more := self._file.read(_BUFFER_BYTES)):
            data = more.lstrip(b"\0")
        return data
