"""Lists the audio and video formats: how each is recognized, and FFmpeg's name of what reads it.

Column types, importers and decoders follow from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from concurrent_loader.storage.images.header import Buffer

__all__ = ["MEDIA_COLUMNS", "MEDIA_FORMATS", "MediaFormat", "MediaType", "find_media_format"]

MediaType = Literal["wav", "flac", "mp3", "opus", "audio", "mp4", "webm", "video"]

_MAGIC_BYTES = 36


@dataclass(frozen=True, slots=True)
class MediaFormat:
    """Describes one format of audio or video files.

    Attributes:
        name: Name of the format, and of the column type that holds only this format.
        kind: ``"audio"`` or ``"video"``.
        suffixes: File name endings in lower case, without the dot.
        demuxer: FFmpeg's name of the reader. Naming it keeps FFmpeg from guessing: a playlist that calls itself a
            video would make FFmpeg open other files and URLs.
        start: The fewest bytes that are recognized as the format.
        matches: Function of the first 36 bytes that recognizes the format.

    Example:
        >>> from concurrent_loader.storage.media import MEDIA_FORMATS
        >>> MEDIA_FORMATS["opus"].demuxer
        'ogg'
    """

    name: str
    kind: Literal["audio", "video"]
    suffixes: tuple[str, ...]
    demuxer: str
    start: bytes
    matches: Callable[[bytes], bool]


def _is_mp3(start: bytes) -> bool:
    if start[:3] == b"ID3":
        return True
    # A frame of MPEG audio, layer III, of a version that is not reserved.
    return len(start) > 2 and start[0] == 0xFF and start[1] & 0xE6 == 0xE2 and start[1] & 0x18 != 0x08


MEDIA_FORMATS: dict[str, MediaFormat] = {
    row.name: row
    for row in (
        MediaFormat(
            "wav", "audio", ("wav",), "wav", b"RIFF\0\0\0\0WAVE",
            lambda start: start[:4] == b"RIFF" and start[8:12] == b"WAVE",
        ),
        MediaFormat("flac", "audio", ("flac",), "flac", b"fLaC", lambda start: start[:4] == b"fLaC"),
        MediaFormat("mp3", "audio", ("mp3",), "mp3", b"ID3", _is_mp3),
        MediaFormat(
            "opus", "audio", ("opus", "ogg"), "ogg", b"OggS" + bytes(24) + b"OpusHead",
            lambda start: start[:4] == b"OggS" and start[28:36] == b"OpusHead",
        ),
        MediaFormat("mp4", "video", ("mp4", "m4v"), "mp4", b"\0\0\0\0ftyp", lambda start: start[4:8] == b"ftyp"),
        MediaFormat(
            "webm", "video", ("webm",), "matroska", b"\x1a\x45\xdf\xa3",
            lambda start: start[:4] == b"\x1a\x45\xdf\xa3",
        ),
    )
}  # fmt: skip

MEDIA_COLUMNS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in MEDIA_FORMATS},
    **{kind: tuple(row.name for row in MEDIA_FORMATS.values() if row.kind == kind) for kind in ("audio", "video")},
}
"""Column type → names of the formats that its values may have."""


def find_media_format(data: Buffer) -> MediaFormat | None:
    """Recognizes the format of an audio or video file by its first 36 bytes; returns None for an unknown format."""
    start = bytes(memoryview(data).cast("B")[:_MAGIC_BYTES])
    return next((row for row in MEDIA_FORMATS.values() if row.matches(start)), None)
