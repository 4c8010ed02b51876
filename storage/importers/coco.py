"""Imports a dataset in COCO's format: one JSON file of annotations, and a folder of images."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.images import IMAGE_SUFFIXES
from concurrent_loader.storage.importers.class_names import merged_classes
from concurrent_loader.storage.importers.coco_file import CocoAnnotation, CocoFile, parse_coco
from concurrent_loader.storage.importers.column_types import choose_columns
from concurrent_loader.storage.importers.fetch_in_order import fetch_in_order
from concurrent_loader.storage.importers.image_check import check_verification, image_fault
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.source_files import SourceFiles
from concurrent_loader.storage.importers.split_files import split_by_bytes
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.sizes import format_size
from concurrent_loader.storage.stores.backends.open_store import takes_no_options
from concurrent_loader.storage.stores.objects import ObjectMeta

__all__ = ["CocoDataset"]

_MAX_JSON_BYTES = 8 << 30
_IN_FLIGHT = 32
_BYTES_IN_FLIGHT = 256 << 20
_OBJECT_COLUMNS = {"boxes": "float32[...]", "labels": "int64[...]", "iscrowd": "bool[...]", "masks": "json"}


@dataclass(frozen=True, slots=True)
class _Image:
    key: str
    size: int
    image_id: int


class CocoDataset:
    """Imports images with COCO's annotations, in the order of the JSON file.

    ============  ================  =============================================================================
    column        type              value
    ============  ================  =============================================================================
    image         jpeg, png, image  bytes of the file
    image_id      int64             ``id`` of the image
    file_name     str               ``file_name`` of the image
    boxes         float32[...]      (n, 4): x0, y0, x1, y1 in pixels; with ``boxes="xywh"`` COCO's x, y, width, height
    labels        int64[...]        (n,): class numbers from 0, in the order of category ids
    iscrowd       bool[...]         (n,)
    masks         json              n polygons or RLEs as in the file; null where there is none
    keypoints     json              n lists of numbers as in the file, if there are any
    captions      json              list of texts, if there are any
    ============  ================  =============================================================================

    The manifest keeps class names (``classes``) and category ids by name (``coco``). The JSON file is held in memory
    with about the same again for its objects; images are fetched ahead in at most 256 MiB.

    Args:
        source: URL or path of the JSON file, such as ``instances_train2017.json``.
        images: URL or path of the folder of images.
        captions: URL or path of another JSON file of the same images, such as ``captions_train2017.json``.
        boxes: ``"xyxy"`` (default) or ``"xywh"``.
        verify: Check of each image, as for `ImageFolder`.
        columns: Types of columns by name, in place of the ones above.
        drop: Names of columns to leave out.
        client: Client library of the source's stores, as for `open_store`.
        storage_options: Options of the source's stores, as for `open_store`. If some files are in a bucket and others
            on the local drive, they are those of the bucket.

    Example:
        >>> import json, pathlib
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import CocoDataset
        >>> notes = [{"id": 1, "image_id": 5, "category_id": 3, "bbox": [1, 2, 10, 20]}]
        >>> document = {"images": [{"id": 5, "file_name": "cat/0.jpg"}], "annotations": notes,
        ...             "categories": [{"id": 3, "name": "cat"}]}
        >>> _ = pathlib.Path("coco.json").write_text(json.dumps(document))
        >>> ingest(CocoDataset("coco.json", images="images"), "from-coco").manifest.metadata["classes"]
        {'labels': ['cat']}
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        images: str | os.PathLike[str] | None = None,
        captions: str | os.PathLike[str] | None = None,
        boxes: str = "xyxy",
        verify: str = "decode",
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if images is None:
            raise ConfigurationError(
                "COCO's images are in a folder beside the JSON file: pass images (--images FOLDER)"
            )
        if boxes not in ("xyxy", "xywh"):
            raise ConfigurationError("boxes must be 'xyxy' or 'xywh'", got=boxes)
        self._boxes = boxes
        self._verify = check_verification(verify)
        self._types = {name: Column(name, type_).type for name, type_ in dict(columns or {}).items()}
        self._drop = tuple(drop)
        places = [place for place in (source, images, captions) if place is not None]
        is_mixed = len({takes_no_options(place) for place in places}) > 1

        def files(place: str | os.PathLike[str], suffixes: tuple[str, ...], what: str) -> SourceFiles:
            if is_mixed and takes_no_options(place):
                return SourceFiles(place, suffixes=suffixes, what=what)
            return SourceFiles(place, suffixes=suffixes, what=what, client=client, storage_options=storage_options)

        self._json = files(source, (".json",), "a JSON file")
        self._captions = None if captions is None else files(captions, (".json",), "a JSON file")
        self._images = files(images, IMAGE_SUFFIXES, "an image")
        self._file = CocoFile()
        self._by_image: dict[int, list[CocoAnnotation]] = {}
        self._captions_by_image: dict[int, list[str]] = {}
        self._numbers: dict[int, int] = {}
        self._columns: dict[str, Column] = {}
        self._items: list[_Image | ImportProblem] = []
        self._num_threads: int | None = None

    @property
    def url(self) -> str:
        """URL of the JSON file."""
        return self._json.url

    async def scan(self, onto: Manifest | None = None) -> ImportScan:
        """Parses the annotations, and lists the images.

        Args:
            onto: Snapshot to append to, whose class numbers are kept; None for a new dataset.

        Raises:
            FormatError: A JSON file is invalid.
        """
        await self._images.find_here()
        self._file = await self._load(self._json)
        others = [] if self._captions is None else (await self._load(self._captions)).annotations
        for note in self._file.annotations:
            if note.is_object:
                self._by_image.setdefault(note.image_id, []).append(note)
        for note in (*self._file.annotations, *others):
            if isinstance(note.caption, str):
                self._captions_by_image.setdefault(note.image_id, []).append(note.caption)
        columns = choose_columns(self._all_columns(), columns=self._types, drop=self._drop, onto=onto, url=self.url)
        self._columns = {name: Column(name, type_) for name, type_ in columns.items()}
        self._items = list(self._wanted())
        return ImportScan(
            columns=columns,
            num_samples=len(self._items),
            num_bytes=sum(file.size for file in self._images.files),
            num_ignored=self._images.num_ignored + max(0, len(self._images.files) - len(self._file.images)),
            metadata=self._metadata(onto),
            identity=self._identity(),
            derived=frozenset(columns) - frozenset(self._types),
        )

    async def read(self) -> AsyncGenerator[ImportedSample | ImportProblem, None]:
        """Yields the images of the JSON file in order, then its annotations without an image.

        Cancellation: Closing the generator cancels the running fetches and waits for them.
        """
        items = fetch_in_order(
            self._images.engine, self._items, self._sample, in_flight=_IN_FLIGHT, max_bytes=_BYTES_IN_FLIGHT,
            num_threads=self._num_threads,
        )  # fmt: skip
        async with aclosing(items):
            async for item in items:
                yield item

    async def close(self) -> None:
        """Closes the stores."""
        for files in (self._json, self._captions, self._images):
            if files is not None:
                await files.close()

    def split(self, max_bytes: int) -> list[CocoDataset]:
        """Divides a scanned dataset into importers of consecutive images with their annotations, which need no scan.

        Args:
            max_bytes: Upper bound of the images of an importer, in bytes; a single image may exceed it.
        """
        parts = []
        for items in split_by_bytes(self._items, max_bytes, _num_bytes):
            part = copy.copy(self)
            part._items = items
            part._num_threads = 1  # parts are read in many processes
            part._file, part._captions = CocoFile(), None
            part._json, part._images = self._json.only([]), self._images.only([])
            ids = [item.image_id for item in items if isinstance(item, _Image)]
            part._by_image = {each: self._by_image[each] for each in ids if each in self._by_image}
            texts = self._captions_by_image
            part._captions_by_image = {each: texts[each] for each in ids if each in texts}
            parts.append(part)
        return parts

    def __deepcopy__(self, memo: dict[int, Any]) -> CocoDataset:
        """Returns an importer with stores of its own; the annotations are constant."""
        other = copy.copy(self)
        files = (self._json, self._captions, self._images)
        other._json, other._captions, other._images = copy.deepcopy(files, memo)
        return other

    # -- scanning ------------------------------------------------------------------------------------------------------

    async def _load(self, files: SourceFiles) -> CocoFile:
        await files.find_here()
        if len(files.files) != 1:
            raise ConfigurationError("the source must be one JSON file", url=files.url, got=f"{len(files.files)} files")

        def accept(meta: ObjectMeta) -> None:
            if meta.size > _MAX_JSON_BYTES:
                raise FormatError(
                    "the JSON file is too large", url=files.url, expected=f"<= {format_size(_MAX_JSON_BYTES)}",
                    got=format_size(meta.size),
                )  # fmt: skip

        result = await files.engine.fetch_object(files.files[0].key, accept=accept)
        return await asyncio.to_thread(parse_coco, result.data, url=files.url)

    def _all_columns(self) -> dict[str, str]:
        types = {file.key.lower().rpartition(".")[2] for file in self._images.files}
        image = "jpeg" if types <= {"jpg", "jpeg"} else "png" if types == {"png"} else "image"
        columns = {"image": image, "image_id": "int64", "file_name": "str"}
        if self._by_image or self._file.categories:
            columns |= _OBJECT_COLUMNS
        if any(note.has_keypoints for note in self._file.annotations):
            columns["keypoints"] = "json"
        if self._captions_by_image:
            columns["captions"] = "json"
        return columns

    def _metadata(self, onto: Manifest | None) -> dict[str, Any]:
        categories = sorted(self._file.categories, key=lambda each: each.id)
        if "labels" not in self._columns or not categories:
            return {}
        classes, numbers = merged_classes(onto, "labels", (each.name for each in categories))
        self._numbers = {each.id: number for each, number in zip(categories, numbers, strict=True)}
        before = onto.metadata.get("coco") if onto is not None else None
        if isinstance(before, dict) and before.get("boxes", self._boxes) != self._boxes:
            raise ConfigurationError(
                "the dataset has boxes of another form (--boxes)", got=self._boxes, expected=before["boxes"]
            )
        ids = dict(before.get("category_ids") or {}) if isinstance(before, dict) else {}
        ids |= {each.name: each.id for each in categories}
        return {"classes": {"labels": classes}, "coco": {"boxes": self._boxes, "category_ids": ids}}

    def _identity(self) -> str | None:
        options = (self._boxes, self._verify, self._types, self._drop)
        parts = [files.identity("coco", *options) for files in (self._json, self._captions, self._images) if files]
        return None if None in parts else "+".join(part or "" for part in parts)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _wanted(self) -> Iterator[_Image | ImportProblem]:
        files = {file.key: file for file in self._images.files}
        ids: set[int] = set()
        for image in self._file.images:
            file = files.get(image.file_name)
            if image.id in ids:
                yield ImportProblem(name=image.file_name, reason=f"two images have the id {image.id}")
            elif file is None:
                yield ImportProblem(name=image.file_name, reason=f"the image is missing in {self._images.url}")
            else:
                yield _Image(file.key, file.size, image.id)
            ids.add(image.id)
        for image_id, notes in self._by_image.items():
            if image_id not in ids:
                reason = f"{len(notes)} annotations are of the image {image_id}, which the file does not have"
                yield ImportProblem(name=f"annotation {notes[0].id}", reason=reason)

    def _sample(self, image: _Image, data: bytes) -> ImportedSample | ImportProblem:
        name = image.key
        if "image" in self._columns and (
            fault := image_fault(data, column=self._columns["image"], verify=self._verify)
        ):
            return ImportProblem(name=name, reason=fault)
        notes = self._by_image.get(image.image_id, [])
        unknown = [note.category_id for note in notes if note.category_id not in self._numbers]
        if unknown and "labels" in self._columns:
            return ImportProblem(name=name, reason=f"an annotation has the unknown category {unknown[0]}")
        if len({note.id for note in notes}) < len(notes):
            return ImportProblem(name=name, reason="two annotations of the image have the same id")
        boxes = np.array([note.bbox for note in notes], np.float64).reshape(-1, 4)
        if self._boxes == "xyxy":
            boxes[:, 2:] += boxes[:, :2]
        with np.errstate(over="ignore"):
            narrow = boxes.astype(np.float32)
        if not np.isfinite(narrow).all():
            return ImportProblem(name=name, reason="a box is too large for float32")
        try:
            masks = [note.parsed_mask() for note in notes] if "masks" in self._columns else []
            keypoints = [note.parsed_keypoints() for note in notes] if "keypoints" in self._columns else []
        except FormatError as error:
            return ImportProblem(name=name, reason=str(error))
        values: dict[str, object] = {
            "image": data,
            "image_id": image.image_id,
            "file_name": image.key,
            "boxes": narrow,
            "labels": np.array([self._numbers.get(note.category_id, -1) for note in notes], np.int64),
            "iscrowd": np.array([note.iscrowd != 0 for note in notes], np.bool_),
            "masks": masks,
            "keypoints": keypoints,
            "captions": self._captions_by_image.get(image.image_id, []),
        }
        values = {column: values[column] for column in self._columns}
        return ImportedSample(name=name, values=values, num_bytes=image.size)


def _num_bytes(item: _Image | ImportProblem) -> int:
    return item.size if isinstance(item, _Image) else 0
