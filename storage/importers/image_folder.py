"""Imports a folder of images, with one sub-folder per class; each file becomes a sample (image, label, path)."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import xxhash

from concurrent_loader.storage.errors import ConfigurationError, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers.class_names import known_classes
from concurrent_loader.storage.importers.fetch_in_order import fetch_in_order
from concurrent_loader.storage.importers.image_check import check_verification, image_fault
from concurrent_loader.storage.importers.lossless_encoding import LOSSLESS_EXTENSIONS, check_encoding, to_lossless
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.source_files import is_hidden, version_of
from concurrent_loader.storage.importers.split_files import split_by_bytes
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.scan_objects import scan_objects
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.sizes import Size, parse_size
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["ImageFolder", "extension_of"]

_JPEG = frozenset({"jpg", "jpeg"})
_IMAGES = _JPEG | {"png", "webp"}


class _File(msgspec.Struct, frozen=True, gc=False):  # 250 bytes each, of which a folder may have millions
    key: str
    size: int
    version: str | None  # ETag or time, which changes with the bytes


class _Visitor:
    """Receives the entries of the listing, and leaves out hidden ones."""

    def __init__(self) -> None:
        self.files: list[_File] = []
        self.problems: list[StorageError] = []

    def add(self, meta: ObjectMeta) -> None:
        if not is_hidden(meta.key):
            self.files.append(_File(meta.key, meta.size, version_of(meta)))

    def refuse(self, error: StorageError) -> None:
        if not is_hidden(error.key or ""):
            self.problems.append(error)


class ImageFolder:
    """Imports ``root/class/…/name.jpg``.

    Files must end in jpg, jpeg, png or webp, in any case. Other files, and paths with a name that starts with a dot,
    are ignored. Classes are the folders directly below the root that hold an image, sorted by the bytes of their names;
    label i is the i-th class. Appending keeps the dataset's class numbers and adds new classes after them.

    Args:
        store: Store of the root folder; `close` closes it.
        classes: Whether the first folders are classes. If false, images may lie at any depth, and there is no ``label``
            column.
        shuffle_seed: Seed of the sample order, which sorts by a hash of the path, so that neighbours in a shard belong
            to different classes (a loader's window shuffle depends on this). None sorts by path.
        image_type: ``"jpeg"``, or ``"image"`` for a mix of JPEG, PNG and WebP. By default ``"jpeg"`` if all names say
            so.
        encode: ``"lossless"`` or ``"lossless-pack"`` to store PNG, lossless WebP, TIFF and BMP as lossless images
            (`concurrent_loader.storage.importers.lossless_encoding.to_lossless`); JPEG and lossy WebP are then errors.
        verify: Check of each file: ``"decode"`` decodes it, ``"header"`` reads its header, ``"none"`` only its first
            bytes.
        in_flight: Upper bound of files fetched at once.
        bytes_in_flight: Upper bound of the bytes of fetched files that are not yet written; a single larger file is
            fetched alone.

    Example:
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> from concurrent_loader.storage.importers.ingest import ingest
        >>> report = ingest(ImageFolder(open_store("images")), "from-images")
        >>> report.manifest.metadata["classes"]
        {'label': ['cat', 'dog']}
    """

    _FORMAT: ClassVar[str] = "image-folder"
    _COLUMN: ClassVar[str] = "image"

    def __init__(
        self,
        store: Store,
        *,
        classes: bool = True,
        shuffle_seed: int | None = 0,
        image_type: str | None = None,
        encode: str | None = None,
        verify: str = "decode",
        in_flight: int = 32,
        bytes_in_flight: Size = "256MiB",
    ) -> None:
        if not isinstance(store, Store):
            raise ConfigurationError("store must be a store, such as open_store(url) returns", got=type(store).__name__)
        if image_type not in (None, "jpeg", "image"):
            raise ConfigurationError("image_type must be 'jpeg' or 'image'", got=image_type)
        if encode is not None and image_type is not None:
            raise ConfigurationError(
                "encode determines the image type; pass only one of them", got=(encode, image_type)
            )
        if shuffle_seed is not None and not 0 <= shuffle_seed < 2**64:
            raise ConfigurationError("shuffle_seed must be a 64-bit integer of at least 0", got=shuffle_seed)
        self._store = store
        self._with_classes = classes
        self._shuffle_seed = shuffle_seed
        self._image_type = image_type
        self._encode = check_encoding(encode)
        self._extensions = _IMAGES if encode is None else LOSSLESS_EXTENSIONS | _JPEG  # a JPEG is reported, not ignored
        self._verify = check_verification(verify)
        self._in_flight = in_flight
        self._max_bytes = parse_size(bytes_in_flight, name="bytes_in_flight")
        self._engine = self._new_engine()
        self._num_threads = os.cpu_count() or 1
        self._files: list[_File] = []
        self._problems: list[ImportProblem] = []
        self._labels: dict[str, int] = {}
        self._column = Column(self._COLUMN, self._COLUMN)

    @property
    def url(self) -> str:
        """URL of the root folder."""
        return self._store.url

    async def scan(self, onto: Manifest | None = None) -> ImportScan:
        """Lists the files and numbers the classes.

        Raises:
            NotFound: There is no image.
            ConfigurationError: An image is not in a class folder.
        """
        seen = await scan_objects(self._engine, "", _Visitor)
        found, problems = seen.files, seen.problems
        self._files = [file for file in found if self._is_wanted(file.key)]
        self._problems = [
            ImportProblem(name=problem.key or "", reason=problem.what) for problem in problems if self._counts(problem)
        ]
        if not self._files and not self._problems:
            raise self._nothing_found([file.key for file in found])
        self._column = Column(self._COLUMN, self._choose_type(onto))
        columns = self._choose_columns(onto)
        metadata: dict[str, Any] = {}
        if self._with_classes:
            names = self._number_classes(onto)
            metadata["classes"] = {"label": names}
        if self._shuffle_seed is not None:
            self._files.sort(key=self._place)
        return ImportScan(
            columns=columns,
            num_samples=len(self._files) + len(self._problems),
            num_bytes=sum(file.size for file in self._files),
            num_ignored=len(found) + len(problems) - len(self._files) - len(self._problems),
            metadata=metadata,
            identity=self._identity(),
        )

    async def read(self) -> AsyncGenerator[ImportedSample | ImportProblem, None]:
        """Yields the entries that cannot be listed, then every file in order; fetches ahead in a bounded window.

        Cancellation: Closing the generator cancels the running fetches and waits for them.
        """
        for problem in self._problems:
            yield problem
        items = fetch_in_order(
            self._engine, self._files, self._sample_of, in_flight=self._in_flight, max_bytes=self._max_bytes,
            num_threads=self._num_threads,
        )  # fmt: skip
        async with aclosing(items):
            async for item in items:
                yield item

    async def close(self) -> None:
        """Closes the store."""
        await self._store.close()

    def split(self, max_bytes: int) -> list[ImageFolder]:
        """Divides a scanned folder into importers of consecutive samples, which can be pickled and need no scan.

        Args:
            max_bytes: Upper bound of the files of an importer, in bytes; a single file may exceed it.
        """
        parts: list[ImageFolder] = []
        for files in split_by_bytes(self._files, max_bytes):
            part = copy.copy(self)
            part._files = files
            part._problems = [] if parts else self._problems
            names = {file.key.partition("/")[0] for file in files}
            part._labels = {name: number for name, number in self._labels.items() if name in names}
            part._num_threads = 1  # parts are read in many processes
            parts.append(part)
        return parts

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_engine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._engine = self._new_engine()

    def __deepcopy__(self, memo: dict[int, Any]) -> ImageFolder:
        """Returns an importer with a store of its own; the files are constant."""
        other = copy.copy(self)
        other._store = copy.deepcopy(self._store, memo)
        other._engine = other._new_engine()
        return other

    def _new_engine(self) -> FetchEngine:
        return FetchEngine(self._store, in_flight=self._in_flight, bytes_in_flight=self._max_bytes)

    # -- scanning ------------------------------------------------------------------------------------------------------

    def _is_wanted(self, key: str) -> bool:
        return "." in key.rpartition("/")[2] and extension_of(key) in self._extensions

    def _counts(self, problem: StorageError) -> bool:
        """Returns whether an unlistable entry may be a file to import or a folder of them, judging by its name."""
        key = problem.key or ""
        return isinstance(problem, NotFound) or key.endswith("/") or self._is_wanted(key)

    def _nothing_found(self, keys: list[str]) -> NotFound:
        endings = ", ".join(sorted(self._extensions))
        if not keys:
            path = Path(self.url.removeprefix("file://")) if self.url.startswith("file://") else None
            if path is None:
                why = "the folder is empty, or does not exist"
            elif path.exists():
                why = "the folder is empty" if path.is_dir() else "this is a file; a folder is expected"
            else:
                why = "there is no such folder"
            return NotFound(f"nothing to import: {why}", url=self.url)
        if any(key.startswith("manifests/") and key.endswith(".clm") for key in keys):
            return NotFound("nothing to import: this is a dataset of shards already", url=self.url)
        others = Counter(extension_of(key) for key in keys if "." in key.rpartition("/")[2])
        seen = ", ".join(printable(name) for name, _ in others.most_common(5)) or "none"
        return NotFound(
            f"nothing to import: none of {len(keys)} files ends in {endings}; their endings: {seen}", url=self.url
        )

    def _identity(self) -> str | None:
        if any(file.version is None for file in self._files):
            return None  # without ETags and times a change could go unnoticed
        how = (self.url, self._with_classes, self._shuffle_seed, self._image_type, self._encode, self._verify)
        hashed = xxhash.xxh3_128(repr(how).encode())
        for file in self._files:
            hashed.update(repr((file.key, file.size, file.version)).encode())
        return f"{self._FORMAT}:{hashed.hexdigest()}"

    def _choose_type(self, onto: Manifest | None) -> str:
        if self._encode is not None:
            return "image/lossless"
        if self._image_type is not None:
            return self._image_type
        if onto is not None and onto.schema.get("image") in ("jpeg", "image"):
            return onto.schema["image"]
        return "jpeg" if all(extension_of(file.key) in _JPEG for file in self._files) else "image"

    def _choose_columns(self, onto: Manifest | None) -> dict[str, str]:
        labels = {"label": "int64"} if self._with_classes else {}
        return {self._COLUMN: self._column.type, **labels, "path": "str"}

    def _number_classes(self, onto: Manifest | None) -> list[str]:
        strays = [file.key for file in self._files if "/" not in file.key]
        if strays:
            number = "all images lie" if len(strays) == len(self._files) else f"{len(strays)} of {len(self._files)} lie"
            raise ConfigurationError(
                f"{number} directly in the folder and not in a class folder (CLASS/name.jpg): move them, or import "
                "them without labels (--no-classes; in Python classes=False)",
                url=self.url,
                key=strays[0],
            )
        names = known_classes(onto, "label")
        here = {file.key.partition("/")[0] for file in self._files}
        names += sorted(here.difference(names), key=lambda name: name.encode(errors="surrogatepass"))
        self._labels = {name: number for number, name in enumerate(names)}
        return names

    def _place(self, file: _File) -> int:
        """Returns the place in the shuffled order. Stores list in order of the keys, which decides between equals."""
        return xxhash.xxh3_64_intdigest(file.key.encode(errors="surrogatepass"), self._shuffle_seed or 0)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _sample_of(self, file: _File, data: bytes) -> ImportedSample | ImportProblem:
        values = self._values(data)
        if isinstance(values, str):
            return ImportProblem(name=file.key, reason=values)
        values["path"] = file.key
        if self._with_classes:
            values["label"] = self._labels[file.key.partition("/")[0]]
        encoded_from = {} if self._encode is None else {"image": file.size}
        return ImportedSample(name=file.key, values=values, num_bytes=file.size, encoded_from=encoded_from)

    def _values(self, data: bytes) -> dict[str, object] | str:
        """Returns the values to store; or, as text, the reason why the file was rejected."""
        if self._encode is not None:
            made = to_lossless(data, encoding=self._encode, verify=self._verify == "decode")
            return made if isinstance(made, str) else {"image": made}
        return image_fault(data, column=self._column, verify=self._verify) or {"image": data}


def extension_of(key: str) -> str:
    """Returns the ending of a file's name in lower case, without the dot."""
    return key.rpartition("/")[2].rpartition(".")[2].lower()
