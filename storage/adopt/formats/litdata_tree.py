"""Names the leaves of LitData's items: the tree of dicts, lists and tuples in the index is a spec of PyTorch's pytree.

The spec is JSON: ``[1, {"type": "builtins.dict", "context": "[\\"image\\"]", "children_spec": [...]}]``. A leaf has the
type null. The context of a dict is the list of its keys, once more as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from concurrent_loader.storage.adopt.formats.foreign_values import IMPORT_INSTEAD, decode_index
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.schema import MAX_COLUMNS

__all__ = ["leaf_names"]

_MAX_DEPTH = 16
_SEQUENCES = frozenset({"builtins.list", "builtins.tuple", "collections.namedtuple", "collections.deque"})
_DICTS = frozenset({"builtins.dict", "collections.OrderedDict", "collections.defaultdict"})


class _Node(msgspec.Struct):
    type: str | None
    context: Any
    children_spec: list[_Node]


def leaf_names(spec: str, *, key: str) -> list[str]:
    """Returns the names of all leaves in their order: keys and positions, joined by dots; ``value`` for a bare leaf.

    Raises:
        FormatError: The spec is invalid, too deep or too large, or has a type without names.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.litdata_tree import leaf_names
        >>> leaf = '{"type": null, "context": null, "children_spec": []}'
        >>> root = f'{{"type": "builtins.tuple", "context": "null", "children_spec": [{leaf}, {leaf}]}}'
        >>> leaf_names(f"[1, {root}]", key="index.json")
        ['0', '1']
    """
    protocol, root = decode_index(spec.encode(errors="replace"), tuple[int, _Node], key=key)
    if protocol != 1:
        raise FormatError("the index has an unknown version of its tree of columns", key=key, expected=1, got=protocol)
    if root.type is None:
        return ["value"]
    names: list[str] = []
    _collect(root, "", 0, names, key)
    return names


def _collect(node: _Node, prefix: str, depth: int, names: list[str], key: str) -> None:
    if depth > _MAX_DEPTH or len(names) > MAX_COLUMNS:
        raise FormatError(
            f"the tree of columns is too deep or too large: {IMPORT_INSTEAD}", key=key,
            expected=f"depth <= {_MAX_DEPTH}, leaves <= {MAX_COLUMNS}",
        )  # fmt: skip
    if node.type is None:
        names.append(prefix[:-1])
        return
    for name, child in zip(_child_names(node, key), node.children_spec, strict=True):
        _collect(child, f"{prefix}{name}.", depth + 1, names, key)


def _child_names(node: _Node, key: str) -> list[str]:
    if node.type in _SEQUENCES:
        return [str(place) for place in range(len(node.children_spec))]
    if node.type not in _DICTS:
        raise FormatError(
            f"the tree of columns has an unknown type: {IMPORT_INSTEAD}", key=key,
            expected="|".join(sorted(_DICTS | _SEQUENCES)), got=str(node.type)[:80],
        )  # fmt: skip
    context = node.context
    if isinstance(context, str):
        context = decode_index(context.encode(errors="replace"), list[str | int], key=key)
    if isinstance(context, dict):  # a defaultdict also has the name of its factory
        context = context.get("dict_context")
    if not isinstance(context, list) or len(context) != len(node.children_spec):
        raise FormatError("a dict in the tree of columns has another number of keys than children", key=key)
    return [str(name) for name in context]
