"""Recognizes audio and video files, and finds the bytes of a video that a clip needs."""

from concurrent_loader.storage.media.clip_index import (
    CLIP_INDEX_SUFFIX,
    ClipIndex,
    EncodedClip,
    clip_index,
    is_hidden_column,
)
from concurrent_loader.storage.media.formats import (
    MEDIA_COLUMNS,
    MEDIA_FORMATS,
    MediaFormat,
    MediaType,
    find_media_format,
)
from concurrent_loader.storage.media.pyav import load_av, open_media

__all__ = [
    "CLIP_INDEX_SUFFIX",
    "MEDIA_COLUMNS",
    "MEDIA_FORMATS",
    "ClipIndex",
    "EncodedClip",
    "MediaFormat",
    "MediaType",
    "clip_index",
    "find_media_format",
    "is_hidden_column",
    "load_av",
    "open_media",
]
