"""Parses a JSON file of COCO. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["CocoAnnotation", "CocoCategory", "CocoFile", "CocoImage", "parse_coco"]


class CocoImage(msgspec.Struct, gc=False):
    """An image: its id and file name."""

    id: int
    file_name: str


class CocoCategory(msgspec.Struct, gc=False):
    """A class of objects."""

    id: int
    name: str


class CocoAnnotation(msgspec.Struct, gc=False):
    """An object, or a caption. Masks stay JSON text, because they are most of a file.

    Attributes:
        image_id: Id of the image.
        id: Id of the annotation.
        category_id: Id of the category; -1 for a caption.
        bbox: x, y, width and height in pixels.
        iscrowd: 1 if the mask is an RLE of a group of objects.
        segmentation: JSON text of polygons or of an RLE; empty if there is none.
        keypoints: JSON text of the keypoints; empty if there are none.
        caption: Text of a caption.
    """

    image_id: int
    id: int = -1
    category_id: int = -1
    bbox: tuple[float, float, float, float] | None = None
    iscrowd: int = 0
    segmentation: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    keypoints: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    caption: str | None = None

    @property
    def has_keypoints(self) -> bool:
        """Whether the annotation has keypoints."""
        return bool(memoryview(self.keypoints).nbytes)

    @property
    def is_object(self) -> bool:
        """Whether the annotation is an object."""
        return self.caption is None

    def parsed_mask(self) -> Any:
        """Returns the polygons or the RLE, or None."""
        return _parsed(self.segmentation)

    def parsed_keypoints(self) -> Any:
        """Returns the keypoints, or None."""
        return _parsed(self.keypoints)


class CocoFile(msgspec.Struct, gc=False):
    """The parts of a file that are imported."""

    images: list[CocoImage] = msgspec.field(default_factory=list)
    annotations: list[CocoAnnotation] = msgspec.field(default_factory=list)
    categories: list[CocoCategory] = msgspec.field(default_factory=list)


def _parsed(raw: msgspec.Raw) -> Any:
    try:
        return None if not memoryview(raw).nbytes else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"a mask is not JSON: {error}") from error


def parse_coco(data: Buffer, *, url: str) -> CocoFile:
    """Parses a file.

    Raises:
        FormatError: The file is not JSON, or not in COCO's format; the message names the place.
    """
    try:
        parsed = msgspec.json.decode(data, type=CocoFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the file is not in COCO's format: {error}", url=url) from error
    if not parsed.images:
        raise FormatError("the file is not in COCO's format: it has no images", url=url)
    for note in parsed.annotations:
        if note.is_object and note.bbox is None:
            raise FormatError(
                "an annotation has neither a box nor a caption; panoptic files are not supported", url=url, got=note.id
            )
    return parsed
