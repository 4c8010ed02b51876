"""Checks the loader's ``decode`` argument, and warns about masks and boxes that do not follow an image's crop."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from concurrent_loader.augment import Crop
from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["check_decode", "warn_of_companions"]

_FORM = "decode={column: how}, with how = 'rgb', 'gray', 'unchanged', RandomResizedCrop(224) or a function of the bytes"
_MASK = re.compile(r"masks?|seg|segmentations?|(label|seg|semantic|instance|panoptic)_?(map|mask)s?|depth|trimap")
_PLACES = re.compile(r"b?box(es)?|bounding_box(es)?|keypoints?|landmarks?|polygons?")


def check_decode(decode: object) -> None:
    """Checks the form of the ``decode`` argument.

    Raises:
        ConfigurationError: The argument has another form; the error shows the right one.
    """
    if not isinstance(decode, Mapping):
        raise ConfigurationError("decode must map columns to ways of decoding", expected=_FORM, got=decode)
    for name, how in decode.items():
        kind = how if isinstance(how, type) else type(how)
        if kind.__module__.startswith("torchvision."):
            raise ConfigurationError(
                "decode does not take torchvision transforms, because they need decoded images: pass it as transform= "
                "(one sample), or use the crops and Augment of concurrent_loader, see docs/how-to/augmentation.md",
                column=str(name), expected=_FORM, got=kind.__name__,
            )  # fmt: skip
        if isinstance(how, type):
            raise ConfigurationError(
                f"decode needs an object, not the class: write {how.__name__}(…)", column=str(name), expected=_FORM,
                got=how.__name__,
            )  # fmt: skip
        if not (isinstance(how, str | Crop) or callable(how)):
            raise ConfigurationError(
                "decode has an invalid value for a column", column=str(name), expected=_FORM, got=how
            )


def warn_of_companions(dataset: LoadableDataset, decode: Mapping[str, Any]) -> None:
    """Warns if an image's crop interpolates a mask, or leaves masks and boxes where they were.

    Masks are recognized by column names such as ``mask``, ``seg`` or ``depth``, boxes by names such as ``box``,
    ``bboxes`` or ``keypoints``.
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
    """Returns whether a name, or a part of it between underscores, matches a pattern."""
    lower = re.sub(r"[\s.-]", "_", name.lower())
    return words.fullmatch(lower) is not None or any(words.fullmatch(part) for part in lower.split("_"))
