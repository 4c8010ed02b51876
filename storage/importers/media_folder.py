"""Imports folders of audio or video files; the folders directly below the root are classes, if all files lie in one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import xxhash

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.importers.column_types import choose_columns
from concurrent_loader.storage.importers.image_folder import ImageFolder, extension_of
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem
from concurrent_loader.storage.media import (
    CLIP_INDEX_SUFFIX,
    MEDIA_COLUMNS,
    MEDIA_FORMATS,
    clip_index,
    find_media_format,
    open_media,
)
from concurrent_loader.storage.media.wav import parse_wav
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.stores.backends.open_store import open_store

__all__ = ["AudioFolder", "VideoFolder"]


class AudioFolder(ImageFolder):
    """Imports wav, flac, mp3, opus and ogg files (Opus) as columns ``audio``, ``label`` and ``path``.

    There is a ``label`` if every file lies in a folder below the root: label i is the i-th of these folders, as for
    `ImageFolder`. The first samples of each file are decoded as a check.

    Args:
        source: URL or path of the root folder.
        columns: Types of columns by name, such as ``{"audio": "audio"}``. Default: the one format of all files, or
            ``audio`` if there are several.
        drop: Names of columns to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> import pathlib, wave
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import AudioFolder
        >>> pathlib.Path("sounds").mkdir()
        >>> with wave.open("sounds/silence.wav", "wb") as writer:
        ...     writer.setparams((1, 2, 8000, 0, "NONE", ""))
        ...     writer.writeframes(bytes(16000))
        >>> ingest(AudioFolder("sounds"), "from-sounds").manifest.schema
        {'audio': 'wav', 'path': 'str'}
    """

    _FORMAT = "audio-folder"
    _COLUMN = "audio"

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._types = {name: Column(name, type_).type for name, type_ in dict(columns or {}).items()}
        self._drop = tuple(drop)
        self._names: tuple[str, ...] = ()
        super().__init__(open_store(os.fspath(source), client=client, **dict(storage_options or {})))
        formats = [MEDIA_FORMATS[name] for name in MEDIA_COLUMNS[self._COLUMN]]
        self._formats = {suffix: each.name for each in formats for suffix in each.suffixes}
        self._extensions = frozenset(self._formats)

    def _choose_type(self, onto: Manifest | None) -> str:
        if onto is not None and self._COLUMN in onto.schema:
            return onto.schema[self._COLUMN]
        found = {self._formats[extension_of(file.key)] for file in self._files}
        return found.pop() if len(found) == 1 else self._COLUMN

    def _choose_columns(self, onto: Manifest | None) -> dict[str, str]:
        self._with_classes = "label" not in self._drop and all("/" in file.key for file in self._files)
        derived = {self._column.name: self._column.type, **self._companions()}
        derived |= {"label": "int64"} if self._with_classes else {}
        derived["path"] = "str"
        drop = [name for name in self._drop if name != "label"]
        chosen = choose_columns(derived, columns=self._types, drop=drop, onto=onto, url=self.url)
        self._column = Column(self._COLUMN, chosen.get(self._COLUMN, self._column.type))
        self._names = tuple(chosen)
        return chosen

    def _companions(self) -> dict[str, str]:
        return {}

    def _values(self, data: bytes) -> dict[str, object] | str:
        try:
            self._column.encode(data)
            return {self._COLUMN: data, **self._check(data)}
        except SchemaError as error:
            return f"not a {self._column.type} ({error.got})"
        except FormatError as error:
            return str(error)

    def _check(self, data: bytes) -> dict[str, object]:
        """Decodes the start of a file, and returns further columns.

        Raises:
            FormatError: The file is damaged, or has no audio.
        """
        found = find_media_format(data)
        if found is not None and found.name == "wav" and parse_wav(data) is not None:
            return {}
        with open_media(data) as container:
            if not container.streams.audio or next(container.decode(audio=0), None) is None:
                raise FormatError("the file has no audio")
        return {}

    def _sample_of(self, file: Any, data: bytes) -> ImportedSample | ImportProblem:
        made = super()._sample_of(file, data)
        if isinstance(made, ImportProblem):
            return made
        return replace(made, values={name: made.values[name] for name in self._names})

    def _identity(self) -> str | None:
        found = super()._identity()
        if found is None:
            return None
        return f"{self._FORMAT}:{xxhash.xxh3_128_hexdigest(repr((found, self._column.type, self._names)).encode())}"


class VideoFolder(AudioFolder):
    """Imports mp4, m4v and webm files as columns ``video``, ``label`` and ``path``, like `AudioFolder`.

    A hidden column ``video.clip_index`` says where the groups of pictures of each video are, so that `Clips` fetches
    only what a clip needs. The first frame of each file is decoded as a check.

    Args:
        source: URL or path of the root folder.
        columns: Types of columns by name, such as ``{"video": "video"}``. Default: the one format of all files, or
            ``video`` if there are both.
        drop: Names of columns to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> from concurrent_loader.storage.importers import VideoFolder
        >>> VideoFolder("images").url.startswith("file://")
        True
    """

    _FORMAT = "video-folder"
    _COLUMN = "video"

    def _companions(self) -> dict[str, str]:
        return {self._COLUMN + CLIP_INDEX_SUFFIX: "json"}

    def _check(self, data: bytes) -> dict[str, object]:
        return {self._COLUMN + CLIP_INDEX_SUFFIX: clip_index(data)}
