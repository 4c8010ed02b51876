"""Guesses from a column's name what it holds beside images: masks, depth, boxes or keypoints."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["ColumnContent", "guess_content"]

ColumnContent = Literal["mask", "depth", "boxes", "keypoints"]

_WORDS: dict[ColumnContent, str] = {
    "mask": r"masks?|seg|segmentations?|(?:label|seg|semantic|instance|panoptic)_?(?:map|mask)s?|trimap",
    "depth": r"depth",
    "boxes": r"b?box(?:es)?|bounding_box(?:es)?",
    "keypoints": r"keypoints?|landmarks?|polygons?",
}
_PATTERNS = {content: re.compile(rf"(?:.*_)?(?:{words})(?:_.*)?") for content, words in _WORDS.items()}


def guess_content(name: str) -> ColumnContent | None:
    """Returns what a column holds, by the words of its name; None if no word is known.

    Example:
        >>> from concurrent_loader.storage.images.column_names import guess_content
        >>> guess_content("gt.BBoxes"), guess_content("label_map"), guess_content("label")
        ('boxes', 'mask', None)
    """
    lower = re.sub(r"[\s.-]", "_", name.lower())
    return next((content for content, pattern in _PATTERNS.items() if pattern.fullmatch(lower)), None)
