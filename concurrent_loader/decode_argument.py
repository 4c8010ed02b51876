"""Checks the argument ``decode`` of a loader, and warns of masks and boxes that do not follow the crop of an image."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from concurrent_loader.augment import Crop
from concurrent_loader.source import LoadableDataset
from storage.errors import ConfigurationError

__all__ = ["check_decode", "warn_of_companions"]

_FORM = "decode={column: how}, with how = 'rgb', 'gray', 'unchanged', RandomResizedCrop(224) or a function of the bytes"
_MASK = re.compile(r"masks?|seg|segmentations?|(label|seg|semantic|instance|panoptic)_?(map|mask)s?|depth|trimap")
_PLACES = re.compile(r"b?box(es)?|bounding_box(es)?|keypoints?|landmarks?|polygons?")


def check_decode(decode: object) -> None:
    """Checks the form of the argument.

    Raises:
        ConfigurationError: Names the right form.
    """
    if not isinstance(decode, Mapping):
        raise ConfigurationError("decode must map columns to ways of decoding", expected=_FORM, got=decode)
    for name, how in decode.items():
        kind = how if isinstance(how, type) else type(how)
        if kind.__module__.startswith("torchvision."):
            raise ConfigurationError(
                "decode takes no transform of torchvision, which needs decoded images: pass it as transform= (one "
                "sample), or use the crops and Augment of concurrent_loader, see docs/augmentation.md",
                column=str(name), expected=_FORM, got=kind.__name__,
            )  # fmt: skip
        if isinstance(how, type):
            raise ConfigurationError(
                f"decode needs an object, not the class: write {how.__name__}(…)", column=str(name), expected=_FORM,
                got=how.__name__,
            )  # fmt: skip
        if not (isinstance(how, str | Crop) or callable(how)):
            raise ConfigurationError("this is no way of decoding", column=str(name), expected=_FORM, got=how)


def warn_of_companions(dataset: LoadableDataset, decode: Mapping[str, Any]) -> None:
    """Warns, by name, of masks and boxes that a crop of an image interpolates or leaves where they were.

    A mask is a column with a name such as ``mask``, ``seg`` or ``depth``; boxes are called ``box``, ``bboxes``,
    ``keypoints`` and the like.
    """
    cropped = [name for name, how in decode.items() if isinstance(how, Crop)]
    columns = dict.fromkeys(name for part in dataset.parts for name in part.columns)
    blurred = [name for name in cropped if _has(name, _MASK)]
    images = [name for name in cropped if name not in blurred]
    left = [name for name in columns if name not in cropped and (_has(name, _MASK) or _has(name, _PLACES))]
    if blurred:
        warnings.warn(
            f"decode crops the column {', '.join(map(repr, blurred))}, which looks like a mask: a crop interpolates "
            "between its values. Decode it by 'unchanged', and crop image and mask together in transform=",
            stacklevel=3,
        )
    if images and left:
        warnings.warn(
            f"decode crops {', '.join(map(repr, images))}, but {', '.join(map(repr, left))} of the same samples do not "
            "follow the crop. Decode whole images and move both in transform=, or leave the columns out by "
            "dataset.select_columns",
            stacklevel=3,
        )


def _has(name: str, words: re.Pattern[str]) -> bool:
    """Returns whether a name, or a part of it between underscores, is one of some words."""
    lower = re.sub(r"[\s.-]", "_", name.lower())
    return words.fullmatch(lower) is not None or any(words.fullmatch(part) for part in lower.split("_"))
