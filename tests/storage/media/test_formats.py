from __future__ import annotations

from typing import Any

import pytest

from concurrent_loader.storage import Column, SchemaError
from concurrent_loader.storage.media import MEDIA_COLUMNS, find_media_format

AUDIO = ("wav", "flac", "mp3", "opus")


def test_every_format_is_recognized_by_its_first_bytes(media: Any) -> None:
    files = {kind: media.audio_file(kind) for kind in AUDIO} | {
        kind: media.video_file(kind) for kind in ("mp4", "webm")
    }
    for kind, data in files.items():
        assert find_media_format(data).name == kind  # type: ignore[union-attr]
        accepted = {type_ for type_ in MEDIA_COLUMNS if _accepts(type_, data)}
        assert accepted == {kind, "audio" if kind in AUDIO else "video"}


def _accepts(column_type: str, data: bytes) -> bool:
    try:
        return Column("x", column_type).encode(data) == data
    except SchemaError:
        return False


@pytest.mark.parametrize(
    "start",
    [b"", b"RIFF\0\0\0\0WEBP", b"OggS" + bytes(24) + b"\x01vorbis", b"\xff\xd8\xff\xe0", b"\xff\xea", b"#EXTM3U",
     bytes(40)],
    ids=["empty", "webp", "vorbis", "jpeg", "reserved mpeg version", "playlist", "zeros"],
)  # fmt: skip
def test_other_files_are_no_media(start: bytes) -> None:
    assert find_media_format(start) is None


def test_mpeg_audio_is_mp3_with_and_without_tags() -> None:
    for start in (b"ID3\x04\0", b"\xff\xfb\x90\x64", b"\xff\xf3\x90\x64"):
        found = find_media_format(start)
        assert found is not None
        assert found.name == "mp3"
    assert find_media_format(b"\xff\xfd\x90") is None  # layer II
