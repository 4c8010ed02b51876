"""Opens audio and video with PyAV, whose wheels bring FFmpeg's libraries; no FFmpeg has to be installed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.images.header import Buffer
from concurrent_loader.storage.media.formats import find_media_format

__all__ = ["load_av", "open_media"]


def load_av() -> Any:
    """Returns the module ``av``.

    Raises:
        ConfigurationError: PyAV is not installed; the error says how to install it.
    """
    try:
        return import_module("av")
    except ImportError as error:
        raise ConfigurationError(
            "audio and video need PyAV, which brings FFmpeg's libraries: run `pip install av`, or install "
            "concurrent-loader with its extra: `pip install '.[media]'` in the clone", got=str(error),
        ) from error  # fmt: skip


@contextmanager
def open_media(data: Buffer) -> Iterator[Any]:
    """Opens a file in memory with the reader of its format, and closes it at the end of the block.

    Raises:
        FormatError: The format is unknown, or FFmpeg failed in the block; its error is the cause.
        ConfigurationError: PyAV is not installed.
    """
    av = load_av()
    media_format = find_media_format(data)
    if media_format is None:
        raise FormatError("the format of the audio or video is unknown", got=bytes(memoryview(data)[:12]))
    try:
        with av.open(io.BytesIO(data), format=media_format.demuxer, metadata_errors="replace") as container:
            yield container
    except av.FFmpegError as error:
        # Its text names the file, which is an object in memory here, and may have an address of memory.
        raise FormatError(f"damaged {media_format.name} data", got=error.strerror) from error
