"""Reads columns that follow the crop of an image: masks, boxes, keypoints, and rows that belong to boxes.

Decode threads do this on the CPU for every device, so that the numbers are the same everywhere. An image's part is
computed from its header, with the random numbers that the decoder of the image uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import Augment, Crop, Linked, uniforms
from concurrent_loader.augment.geometry import Placement, crop_nearest, move_boxes, move_keypoints
from concurrent_loader.batch.decode_failures import FailedImage, missing_image
from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.decode import parse_header
from concurrent_loader.decode.labels import make_label_decoder
from concurrent_loader.errors import DecodeError
from concurrent_loader.pipeline.slices import Slice
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind

__all__ = ["LinkedColumn", "LinkedReader", "as_tv_images", "link_columns"]


@dataclass(frozen=True, slots=True)
class LinkedColumn:
    """Describes how a column follows the crop of an image.

    Attributes:
        how: Link, as passed to the loader.
        image: Name of the column of the image.
        crop: Crop of the image, as passed to the loader.
        boxes: Name and link of the column of boxes that decides which rows are dropped, or None.
        decode_mask: Decoder of a mask; None for other columns.
        seed: Seed of the loader.
    """

    how: Linked
    image: str
    crop: Crop
    boxes: tuple[str, Linked] | None
    decode_mask: Callable[[bytes | memoryview], npt.NDArray[Any]] | None
    seed: int


def link_columns(
    part: LoadableDataset, decode: Mapping[str, Any], *, seed: int, **decoding: Any
) -> dict[str, LinkedColumn]:
    """Returns the linked columns of a dataset.

    Raises:
        ConfigurationError: A link leads nowhere, to another crop, or does not fit the type of its column.
    """
    links = {}
    for name, how in decode.items():
        if not isinstance(how, Linked) or name not in part.columns:
            continue
        leader = decode.get(how.column)
        boxes = (how.column, leader) if isinstance(leader, Linked) and leader.boxes is not None else None
        image = leader.column if boxes is not None and isinstance(leader, Linked) else how.column
        crop = decode.get(image)
        if not isinstance(crop, Crop) or not {how.column, image} <= set(part.columns):
            raise ConfigurationError(
                f"like({how.column!r}) needs a column of the dataset that decode crops: decode={{{image!r}: crop, …}}",
                column=name, expected=[each for each, other in decode.items() if isinstance(other, Crop)],
                got=how.column,
            )  # fmt: skip
        if how.crop != crop and how.crop != getattr(crop, "crop", None):
            raise ConfigurationError(
                f"like was called on another crop than that of {image!r}", column=name, expected=crop, got=how.crop
            )
        column = part.schema[name]
        _check_type(column, name, how, boxes is not None)
        decode_mask = make_label_decoder(column.base_type, **decoding) if how.is_mask else None
        links[name] = LinkedColumn(how, image, crop, boxes, decode_mask, seed)
    return links


def _check_type(column: Column, name: str, how: Linked, follows_boxes: bool) -> None:
    if how.is_mask:
        if column.kind is not ColumnKind.PAYLOAD:
            raise ConfigurationError("only a column of images can be a mask", column=name, got=column.type)
        if follows_boxes:
            raise ConfigurationError("a mask follows its image, not boxes: write like(image)", column=name)
        return
    if column.optional:
        raise ConfigurationError(
            "boxes, keypoints and rows of boxes that follow an image cannot be null; store an empty array for an image "
            "without any", column=name, got=column.type,
        )  # fmt: skip
    if not follows_boxes and how.boxes is None and not how.keypoints:
        raise ConfigurationError(
            "say what the column holds: like(image, interpolation='nearest') for masks, boxes='xyxy' or keypoints=True",
            column=name, got=column.type,
        )  # fmt: skip
    if how.boxes is not None and follows_boxes:
        raise ConfigurationError("boxes follow an image, not other boxes: write like(image, boxes=…)", column=name)
    if (how.boxes is not None or how.keypoints) and not (column.type == "json" or column.type.endswith("]")):
        raise ConfigurationError("boxes and keypoints must be arrays or JSON lists", column=name, got=column.type)


class LinkedReader:
    """Reads the linked columns of a slice.

    Args:
        links: Linked columns of the dataset.
        part: Slice to read.
        on_error: Policy for masks that cannot be decoded.
        wrap: Whether values become ``torchvision.tv_tensors``, for a transform.
    """

    def __init__(self, links: Mapping[str, LinkedColumn], part: Slice, *, on_error: str, wrap: bool) -> None:
        self._links = links
        self._part = part
        self._on_error = on_error
        self._wrap = wrap
        self._places: dict[str, list[Placement | DecodeError]] = {}
        self._values: dict[str, Any] = {}
        self._kept: dict[str, list[npt.NDArray[np.bool_] | None]] = {}

    def read(self, name: str) -> list[Any]:
        """Returns the values of a column, one per sample of the slice. Numbers are tensors.

        Raises:
            DecodeError: A value does not fit its image, or the header of the image is damaged and ``on_error`` is
                ``"raise"``. The error names the sample.
        """
        link = self._links[name]
        values = self._part.payload(name) if link.how.is_mask else self._raw(name)
        read = self._mask if link.how.is_mask else self._numbers
        found = []
        for at, (value, place) in enumerate(zip(values, self._placements(link), strict=True)):
            try:
                found.append(read(name, link, at, value, place))
            except DecodeError as error:
                error.locate(column=name, **self._part.locate(at))
                if self._on_error == "raise" or not link.how.is_mask:
                    raise error from error.__cause__
                found.append(FailedImage(error.with_traceback(None), link.crop.size))
        return found

    def images(self) -> set[str]:
        """Returns the columns of the images that other columns follow."""
        return {link.image for link in self._links.values()}

    def _placements(self, link: LinkedColumn) -> list[Placement | DecodeError]:
        """Returns the part of each image; an error instead of a part if the header of an image is damaged."""
        if link.image not in self._places:
            crop, part = link.crop, self._part
            rows = np.empty((len(part.samples), 0))
            if crop.num_draws:
                rows = uniforms(link.seed, part.epoch, part.samples, crop.num_draws)
            found: list[Placement | DecodeError] = []
            for at, (data, row) in enumerate(zip(part.payload(link.image), rows.tolist(), strict=True)):
                try:
                    if data is None:
                        raise missing_image()
                    found.append(_placement(data, crop, row))
                except DecodeError as error:
                    error.locate(column=link.image, **part.locate(at))
                    if self._on_error == "raise":
                        raise error from error.__cause__
                    found.append(error.with_traceback(None))
            self._places[link.image] = found
        return self._places[link.image]

    def _mask(
        self, name: str, link: LinkedColumn, at: int, data: bytes | memoryview | None, place: Placement | DecodeError
    ) -> Any:
        if isinstance(place, DecodeError):  # the sample is left out because of its image
            return FailedImage(place, link.crop.size)
        if data is None:
            raise missing_image()
        assert link.decode_mask is not None
        labels = link.decode_mask(data)
        if labels.shape[-2:] != (place.height, place.width):
            raise DecodeError(
                f"the mask does not have the size of {link.image!r}", expected=(place.height, place.width),
                got=labels.shape[-2:],
            )  # fmt: skip
        mask = torch.from_numpy(crop_nearest(labels, place))
        return _tv_tensors().Mask(mask) if self._wrap else mask

    def _numbers(self, name: str, link: LinkedColumn, at: int, value: Any, place: Placement | DecodeError) -> Any:
        how = link.how
        if how.boxes is not None:
            moved, kept = self._move_boxes(how, value, place)
            self._kept.setdefault(name, [None] * len(self._part.samples))[at] = kept
            if not self._wrap or moved.dim() != 2 or not isinstance(place, Placement):
                return moved
            return _wrapped_boxes(moved, how, place.size)
        rows = None if link.boxes is None else self._kept_rows(link.boxes, at)
        if not how.keypoints:
            return _rows(value, rows)
        points = _numbers_of(value)
        if points.size and points.shape[-1] not in (2, 3) and points.shape[-1] % 3 == 0:
            points = points.reshape(*points.shape[:-1], -1, 3)  # COCO's x, y, v, x, y, v, …
        if points.size and (points.ndim < 2 or points.shape[-1] not in (2, 3)):
            raise DecodeError("keypoints must be (…, K, 2) or (…, K, 3)", got=points.shape)
        pairs = how.flip_pairs
        if points.size and any(max(pair) >= points.shape[-2] or min(pair) < 0 for pair in pairs):
            raise DecodeError("flip_pairs names a keypoint that does not exist", expected=points.shape, got=pairs)
        points = _rows(points, rows)
        if points.size and isinstance(place, Placement):
            points = move_keypoints(points, place, pairs)
        found = torch.from_numpy(points.astype(_dtype_of(value)))
        if not self._wrap or not points.size or points.shape[-1] != 2 or not isinstance(place, Placement):
            return found
        return _tv_tensors().KeyPoints(found, canvas_size=place.size)

    def _kept_rows(self, boxes: tuple[str, Linked], at: int) -> npt.NDArray[np.bool_] | None:
        name, how = boxes
        known = self._kept.setdefault(name, [None] * len(self._part.samples))
        if known[at] is None:
            try:
                known[at] = self._move_boxes(how, self._raw(name)[at], self._places[self._links[name].image][at])[1]
            except DecodeError as error:
                error.locate(column=name)
                raise
        return known[at]

    def _raw(self, name: str) -> Any:
        """Returns the stored values of a column, read once per slice."""
        if name not in self._values:
            self._values[name] = self._part.values(name)
        return self._values[name]

    def _move_boxes(
        self, how: Linked, value: Any, place: Placement | DecodeError
    ) -> tuple[torch.Tensor, npt.NDArray[np.bool_]]:
        assert how.boxes is not None
        boxes = _numbers_of(value)
        is_single = boxes.shape == (4,)
        boxes = boxes.reshape(1, 4) if is_single else boxes.reshape(0, 4) if not boxes.size else boxes
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all():
            raise DecodeError("boxes must be (N, 4) finite numbers", expected=how.boxes, got=boxes.shape)
        if not isinstance(place, Placement):
            return torch.zeros((0, 4)), np.zeros(len(boxes), np.bool_)
        moved, kept = move_boxes(boxes, place, how.boxes, how.min_visible)
        moved = moved[0] if is_single else moved[kept]
        return torch.from_numpy(moved.astype(_dtype_of(value))), kept


def _placement(data: bytes | memoryview, crop: Crop, draws: list[float]) -> Placement:
    height, width = parse_header(data).upright
    box = crop.box(height, width, draws)
    across, down = crop.flips(draws) if isinstance(crop, Augment) else (False, False)
    return Placement(height, width, replace(box, flip=not box.flip) if across else box, down, crop.size)


def _numbers_of(value: Any) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise DecodeError("the value is not an array of numbers", got=type(value).__name__) from error


def _dtype_of(value: Any) -> npt.DTypeLike:
    """Returns the dtype of moved numbers: that of the column if it is floating-point, else float32."""
    return value.dtype if isinstance(value, np.ndarray) and value.dtype.kind == "f" else np.float32


def _rows(value: Any, kept: npt.NDArray[np.bool_] | None) -> Any:
    """Returns the rows of a value whose boxes are kept."""
    if kept is None:
        return value
    if not isinstance(value, np.ndarray | list) or np.ndim(value) == 0 or len(value) != len(kept):
        raise DecodeError(
            "the value does not have one row per box", expected=len(kept),
            got=np.shape(value) if isinstance(value, np.ndarray) else type(value).__name__,
        )  # fmt: skip
    return (
        value[kept] if isinstance(value, np.ndarray) else [each for each, keep in zip(value, kept, strict=True) if keep]
    )


def _wrapped_boxes(boxes: torch.Tensor, how: Linked, size: tuple[int, int]) -> torch.Tensor:
    form = str(how.boxes).upper()
    return _tv_tensors().BoundingBoxes(boxes, format=form, canvas_size=size)  # type: ignore[no-any-return]


def as_tv_images(images: list[Any]) -> list[Any]:
    """Returns decoded images as ``tv_tensors.Image``, so that transforms of torchvision find them."""
    return [_tv_tensors().Image(each) if isinstance(each, torch.Tensor) else each for each in images]


def _tv_tensors() -> Any:
    # Imported late: torchvision takes a second, and only transforms get its types.
    from torchvision import tv_tensors

    return tv_tensors
