"""Numbers the classes of a label column so that numbers of an existing dataset stay. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["known_classes", "merged_classes"]


def known_classes(onto: Manifest | None, column: str) -> list[str]:
    """Returns the class names of a column of the dataset to append to, in the order of their numbers."""
    classes = onto.metadata.get("classes") if onto is not None else None
    names = classes.get(column) if isinstance(classes, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []
    return list(names)


def merged_classes(onto: Manifest | None, column: str, names: Iterable[str]) -> tuple[list[str], list[int]]:
    """Returns the dataset's classes with new ones after them, and the new number of each class of the source."""
    names = list(names)
    known = known_classes(onto, column)
    if not known:
        return names, list(range(len(names)))  # names may repeat, as in WordNet
    merged = known + [name for name in dict.fromkeys(names) if name not in known]
    numbers = {name: number for number, name in reversed(list(enumerate(merged)))}
    if merged[: len(names)] == names:
        return merged, list(range(len(names)))
    return merged, [numbers[name] for name in names]
