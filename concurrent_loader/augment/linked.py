"""Links a column of masks, boxes or keypoints to the crop of an image: the same part, the same flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from concurrent_loader.augment.crop_protocol import Crop
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["BoxFormat", "Linkable", "Linked"]

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
_BOX_FORMATS = ("xyxy", "xywh", "cxcywh")


@dataclass(frozen=True)
class Linked:
    """Describes a column that follows the crop of another one. Made by the method ``like`` of a crop.

    Attributes:
        crop: Crop of the image.
        column: Column of the image; or of boxes, whose dropped rows are dropped here, too.
        interpolation: ``"nearest"`` for a column of masks; None otherwise.
        boxes: Format of a column of boxes; None otherwise.
        min_visible: Smallest share of a box's area within the crop with which the box is kept, 0 to 1.
        keypoints: Whether the column holds keypoints.
        flip_pairs: Pairs of keypoints that are exchanged when the image is mirrored left to right.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import CenterCrop
        >>> CenterCrop(32).like("image", boxes="xywh").boxes
        'xywh'
    """

    crop: Crop
    column: str
    interpolation: Literal["nearest"] | None = None
    boxes: BoxFormat | None = None
    min_visible: float = 0.0
    keypoints: bool = False
    flip_pairs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise ConfigurationError("like takes the name of a column", got=self.column)
        if self.interpolation not in (None, "nearest"):
            raise ConfigurationError(
                "interpolation must be 'nearest'; decode a second image by the crop itself, which shows the same part",
                got=self.interpolation,
            )
        if self.boxes not in (None, *_BOX_FORMATS):
            raise ConfigurationError("boxes must be a format", expected=_BOX_FORMATS, got=self.boxes)
        if sum((self.interpolation is not None, self.boxes is not None, self.keypoints)) > 1:
            raise ConfigurationError("like takes one of interpolation, boxes and keypoints", got=self)
        if not 0 <= self.min_visible <= 1:
            raise ConfigurationError("min_visible must be a share from 0 to 1", got=self.min_visible)
        if self.min_visible and self.boxes is None:
            raise ConfigurationError("min_visible is for boxes; name their format: like(column, boxes='xyxy', …)")
        if self.flip_pairs and not self.keypoints:
            raise ConfigurationError("flip_pairs is for keypoints: like(column, keypoints=True, …)")

    @property
    def is_mask(self) -> bool:
        """Whether the column holds masks."""
        return self.interpolation is not None


class Linkable:
    """Gives a crop the method `like`."""

    def like(
        self: Crop,
        column: str,
        *,
        interpolation: Literal["nearest"] | None = None,
        boxes: BoxFormat | None = None,
        min_visible: float = 0.0,
        keypoints: bool = False,
        flip_pairs: Sequence[tuple[int, int]] = (),
    ) -> Linked:
        """Returns how to decode a column of masks, boxes or keypoints that belongs to an image with this crop.

        Without ``interpolation``, ``boxes`` and ``keypoints``, the column has one row per box of ``column``, such as
        class numbers. The rows of dropped boxes are dropped. See docs/how-to/masks_and_boxes.md.

        Args:
            column: Column of the image, which is decoded by this crop; or a column of boxes.
            interpolation: ``"nearest"`` for masks, which keeps the labels exact.
            boxes: Format of boxes, (N, 4) in pixels of the upright image: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``.
            min_visible: Smallest share of a box's area that must lie within the crop, 0 to 1. Other boxes are dropped.
                Default 0.0, which drops only boxes outside of the crop.
            keypoints: Whether the column holds keypoints, (…, K, 2) or with visibility (…, K, 3).
            flip_pairs: Pairs of keypoint numbers, such as left and right eye, to exchange when the image is mirrored.

        Raises:
            ConfigurationError: An argument is invalid.

        Example:
            >>> from concurrent_loader import RandomResizedCrop
            >>> crop = RandomResizedCrop(224)
            >>> decode = {"image": crop, "mask": crop.like("image", interpolation="nearest")}
        """
        pairs = tuple((int(one), int(other)) for one, other in flip_pairs)
        return Linked(self, column, interpolation, boxes, min_visible, keypoints, pairs)
