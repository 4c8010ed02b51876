"""Parses conditions such as ``label == 7 and width < 64``, and evaluates them for whole columns at once.

A condition is parsed as Python, but only the nodes listed here are accepted, and nothing is executed. There is no
arithmetic, because integers of a fixed size would overflow silently, and a wrong condition deletes the wrong samples.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.shards.format.schema import ColumnKind, Schema

__all__ = ["Where"]

Mask = npt.NDArray[np.bool_]
Values = Mapping[str, npt.NDArray[Any] | Sequence[Any]]
Operand = Callable[[Values], Any]
Condition = Callable[[Values], Mask]

_MAX_CHARACTERS = 1 << 20
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Where:
    """A condition on the numbers and texts of a sample.

    It may contain names of columns, numbers, texts, ``True`` and ``False``; ``==``, ``!=``, ``<``, ``<=``, ``>``,
    ``>=``, ``in [...]``, ``not in [...]``, ``is None``, ``is not None``; ``and``, ``or``, ``not`` and parentheses.
    Columns of type ``str``, of bools and of single numbers can be used. A null fulfils no comparison.

    Args:
        text: Condition.
        schema: Columns of the dataset.

    Attributes:
        columns: Names of the columns that the condition uses, at least one.

    Raises:
        ConfigurationError: The text is not such a condition.
        SchemaError: A column does not exist, is of another type, or is compared with a value of another kind.

    Example:
        >>> import numpy as np
        >>> from concurrent_loader.storage import Schema
        >>> from concurrent_loader.storage.shards.editing.where import Where
        >>> where = Where("label == 7 and name != 'b'", Schema.parse({"label": "int64", "name": "str"}))
        >>> where.columns
        ('label', 'name')
        >>> where({"label": np.array([7, 7, 8]), "name": ["a", "b", "c"]}).tolist()
        [True, False, False]
    """

    def __init__(self, text: str, schema: Schema) -> None:
        if not isinstance(text, str) or len(text) > _MAX_CHARACTERS:
            raise ConfigurationError("a condition must be a text of at most 1,048,576 characters", got=type(text))
        self._schema = schema
        self._used: dict[str, None] = {}
        try:
            self._condition = self._parse(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"the condition cannot be parsed: {error}", got=text[:200]) from None
        if not self._used:
            raise ConfigurationError("a condition must name a column", got=text[:200])
        self.columns = tuple(self._used)

    def __call__(self, values: Values) -> Mask:
        """Returns whether each sample fulfils the condition: (n,) bool.

        Args:
            values: Whole columns by name: an array (n,) for numbers, a list of n for texts.
        """
        with np.errstate(over="ignore"):  # a number that is too large for a column is above all of its values
            return self._condition(values)

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _parse(self, node: ast.expr) -> Condition:
        if isinstance(node, ast.BoolOp):
            parts = [self._parse(each) for each in node.values]
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return lambda values: combine.reduce([part(values) for part in parts])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._parse(node.operand)
            return lambda values: ~inner(values)
        if isinstance(node, ast.Compare):
            bounds = [node.left, *node.comparators]
            pairs = [self._compare(op, bounds[at], bounds[at + 1]) for at, op in enumerate(node.ops)]
            return lambda values: np.logical_and.reduce([pair(values) for pair in pairs])
        name = _name(node)
        if name is not None and self._kind(name) == "bool":
            return lambda values: _mask(values[name], len(values[name]))
        raise _refused(node, "a comparison, or a column of bools")

    def _compare(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Condition:
        if isinstance(op, ast.In | ast.NotIn):
            return self._member(left, right, negated=isinstance(op, ast.NotIn))
        if isinstance(op, ast.Is | ast.IsNot):
            return self._null(left, right, negated=isinstance(op, ast.IsNot))
        function = _COMPARISONS[type(op)]
        (first, kind), (second, other) = self._operand(left), self._operand(right)
        if (kind == "text") != (other == "text"):
            raise SchemaError(f"a {kind} cannot be compared with a {other}", got=ast.unparse(left)[:80])
        columns = [name for each in (left, right) if (name := _name(each)) is not None]
        if not columns:
            raise ConfigurationError("a comparison must name a column", got=ast.unparse(left)[:80])

        def compare(values: Values) -> Mask:
            one, two = first(values), second(values)
            present = ~(_is_missing(one) | _is_missing(two)) if kind == "text" else None
            if present is None:
                return _mask(function(one, two), len(values[columns[0]]))
            mask = np.zeros(len(values[columns[0]]), np.bool_)
            rows = np.flatnonzero(np.broadcast_to(present, mask.shape))
            mask[rows] = _mask(function(_at(one, rows), _at(two, rows)), len(rows))
            return mask

        return compare

    def _null(self, left: ast.expr, right: ast.expr, *, negated: bool) -> Condition:
        name = _name(left)
        if name is None or not isinstance(right, ast.Constant) or right.value is not None:
            raise ConfigurationError("'is' stands between a column and None; otherwise use ==", got=_text(left))
        self._kind(name)
        return lambda values: _nulls(values[name]) != negated

    def _member(self, left: ast.expr, right: ast.expr, *, negated: bool) -> Condition:
        name = _name(left)
        if name is None:
            raise _refused(left, "the name of a column in front of 'in'")
        if not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise _refused(right, "a list of values behind 'in', such as [1, 2]")
        kind = self._kind(name)
        wanted = [_constant(each) for each in right.elts]
        if any(isinstance(value, str) != (kind == "text") for value in wanted):
            raise SchemaError(f"every value behind 'in' must be a {kind}, like the column", column=name)
        if kind == "text":
            chosen = frozenset(wanted)
            return lambda values: np.fromiter(
                (value is not None and (value in chosen) != negated for value in values[name]), np.bool_
            )
        dtype = self._schema[name].dtype

        def is_member(values: Values) -> Mask:
            column = np.asanyarray(values[name])
            found: Mask = np.isin(np.ma.getdata(column), _as_numbers(wanted, dtype)) != negated
            return found & ~np.ma.getmaskarray(column)

        return is_member

    # -- operands ------------------------------------------------------------------------------------------------------

    def _operand(self, node: ast.expr) -> tuple[Operand, str]:
        name = _name(node)
        if name is not None:
            kind = self._kind(name)
            if kind == "text":
                return (lambda values: np.array([*values[name], None], object)[:-1]), kind
            return (lambda values: values[name]), kind
        value = _constant(node)
        return (lambda _: value), "text" if isinstance(value, str) else "number"

    def _kind(self, name: str) -> str:
        column = self._schema[name]
        self._used[name] = None
        if column.kind is ColumnKind.SMALL and column.type.startswith("str"):
            return "text"
        if column.kind is ColumnKind.FIXED and column.shape == () and column.dtype is not None:
            return "bool" if column.dtype == np.bool_ else "number"
        raise SchemaError(
            "a condition can use texts (str), bools and single numbers only", column=name, got=column.type
        )


def _name(node: ast.expr) -> str | None:
    """Returns the name of a column; it may have dots, such as ``name.en``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _name(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def _constant(node: ast.expr) -> str | bool | int | float:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _constant(node.operand)
        if not isinstance(value, str | bool):
            return -value
    elif isinstance(node, ast.Constant) and isinstance(node.value, str | bool | int | float):
        return node.value
    raise _refused(node, "the name of a column, a number, a text, True or False")


def _refused(node: ast.expr, expected: str) -> ConfigurationError:
    return ConfigurationError("the condition has a part that is not allowed", expected=expected, got=_text(node))


def _text(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:80]
    except RecursionError:
        return type(node).__name__


def _as_numbers(values: Sequence[Any], dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """Returns those of some numbers that a column can hold, in its dtype: a wider one would round large integers."""
    assert dtype is not None
    if dtype.kind == "f":
        return np.array(values, np.float64).astype(dtype)
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return np.array([int(value) for value in values if low <= value <= high and value == int(value)], dtype)


def _nulls(values: Any) -> Mask:
    """Returns whether each value of a column is null: (n,) bool."""
    if isinstance(values, np.ndarray):
        return np.ma.getmaskarray(values)
    return np.fromiter((value is None for value in values), np.bool_, len(values))


def _is_missing(values: Any) -> npt.NDArray[np.bool_]:
    if isinstance(values, np.ndarray):
        return np.fromiter((value is None for value in values), np.bool_, len(values))
    return np.zeros((), np.bool_)


def _at(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else values


def _mask(found: Any, num_samples: int) -> Mask:
    # Of a masked array, a missing value is False.
    return np.broadcast_to(np.ma.filled(found, False).astype(np.bool_), (num_samples,))
