"""Formats what `concurrent-loader info` found for a terminal of any width, without colors and without JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["info_lines"]

_INDENT = 11
_MAX_CLASSES = 20
_MAX_ITEMS = 5  # of a list in the metadata
_MAX_FACTS = 40
_MAX_TEXT = 200


def info_lines(facts: dict[str, Any], width: int) -> list[str]:
    """Formats the facts of `concurrent-loader info`.

    Args:
        facts: Facts, as ``--json`` prints them.
        width: Width of the terminal in characters. Only a long URL makes a line longer.
    """
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count, format_size

    sizes = facts["shard_bytes"]
    spread = (
        f", {' / '.join(format_size(sizes[name]) for name in ('min', 'mean', 'max'))} (min/mean/max)" if sizes else ""
    )
    lines = [
        f"dataset    {facts['url']}",
        f"snapshot   {facts['snapshot']} of {format_runs(facts['snapshots'])}, digest {facts['digest']}",
        f"samples    {facts['num_samples']:,}{_deleted(facts['num_deleted'])}",
        f"size       {format_size(facts['num_bytes'])}, of which payload {format_size(facts['payload_bytes'])}",
        f"shards     {facts['num_shards']:,}{spread}",
        f"bundles    {facts['num_bundles']:,}, {format_size(facts['bundle_bytes'])}",
    ]
    if facts["num_undigested"]:
        shards = format_count(facts["num_undigested"], "shard")
        lines.append(
            f"digests    none for the payload of {shards}: only headers were adopted, so bytes are not verified"
        )
    if facts["num_column_sets"]:
        added = format_count(facts["num_column_sets"], "column set")
        lines.append(f"added      {added}, {format_size(facts['column_set_bytes'])}")
    lines += ["columns", *_column_lines(facts["columns"], facts["statistics"])]
    for name, counts in facts["encoded"].items():
        stored, source = format_size(counts["stored_bytes"]), format_size(counts["source_bytes"])
        lines.append(f"encoded    {name}: {stored} of {source} in the source, ratio {counts['ratio']:.3f}")
    for name, counts in facts["class_counts"].items():
        lines += _class_lines(name, counts)
    lines += [f"classes    {line}" for line in facts["class_notes"]]
    metadata = {name: value for name, value in facts["metadata"].items() if name not in ("encoded", "classes")}
    if metadata:
        lines += ["metadata", *_metadata_lines(metadata)]
    # Names come from the dataset and may contain control characters, which must not reach the terminal.
    return [part for line in lines for part in _wrapped(printable(line), width)]


def _deleted(num_rows: int) -> str:
    return f"; {num_rows:,} more are deleted, but stored, and in the sizes and statistics" if num_rows else ""


def format_runs(snapshots: list[int]) -> str:
    """Formats 1, 2, 3, 7 as "1-3, 7"."""
    runs: list[list[int]] = []
    for snapshot in snapshots:
        if runs and runs[-1][-1] == snapshot - 1:
            runs[-1][1:] = [snapshot]
        else:
            runs.append([snapshot])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _wrapped(line: str, width: int) -> list[str]:
    indent = " " * (_INDENT if line[:1] != " " else len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line, max(width, 2 * _INDENT), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _column_lines(columns: Mapping[str, str], statistics: Mapping[str, Any]) -> Iterator[str]:
    widest, types = max(map(len, columns)), max(map(len, columns.values()))
    for name, kind in columns.items():
        facts = statistics.get(name, {})
        about = ", ".join(filter(None, [_about(facts), f"{facts['num_null']:,} null" if "num_null" in facts else ""]))
        yield f"  {name:<{widest}}  {kind:<{types}}  {about}".rstrip()


def _about(found: Mapping[str, Any]) -> str:
    from concurrent_loader.storage.sizes import format_size

    if "total_bytes" in found:
        total, least, most = (found.get(f"{name}_bytes") or 0 for name in ("total", "min", "max"))
        each = format_size(least) if least == most else f"{format_size(least)} to {format_size(most)}"
        return f"{format_size(total)}, {each} each"
    if "num_values" in found:
        return f"{found.get('num_true') or 0:,} of {found['num_values']:,} true"
    parts = [] if found.get("min") is None else [f"{_number(found['min'])} to {_number(found['max'])}"]
    parts += [
        f"{found[name]:,} {word}"
        for name, word in (("num_nan", "NaN"), ("num_infinite", "infinite"))
        if found.get(name)
    ]
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def _class_lines(name: str, counts: list[dict[str, Any]]) -> Iterator[str]:
    from rich.cells import cell_len

    from concurrent_loader.storage.printable import printable

    total = sum(each["num_samples"] for each in counts)
    yield f"classes    {name}: {len(counts):,}, {_range_of(counts)} samples each"
    shown = counts[:_MAX_CLASSES]
    labels = [printable(_shortened(each["label"], 28)) for each in shown]
    widest = max(map(cell_len, labels), default=0)
    digits = max((len(f"{each['num_samples']:,}") for each in shown), default=0)
    for each, label in zip(shown, labels, strict=True):
        share = each["num_samples"] / total
        yield f"  {label}{' ' * (widest - cell_len(label))}  {each['num_samples']:>{digits},}  {share:6.1%}"
    if len(counts) > len(shown):
        yield f"  … {len(counts) - len(shown):,} more"


def _range_of(counts: list[dict[str, Any]]) -> str:
    numbers = [each["num_samples"] for each in counts]
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _metadata_lines(metadata: Mapping[str, Any]) -> list[str]:
    facts = list(_flat("", metadata))
    lines = [f"  {name}: {text}" for name, text in facts[:_MAX_FACTS]]
    return lines + ([f"  … {len(facts) - _MAX_FACTS:,} more; --json has all"] if len(facts) > _MAX_FACTS else [])


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields the leaves of nested metadata by their dotted names."""
    from concurrent_loader.storage.sizes import format_count, format_size

    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, list) and value:
        if any(isinstance(each, dict | list) for each in value):
            yield name, format_count(len(value), "entry", "entries")
        else:
            more = f", … {len(value) - _MAX_ITEMS:,} more" if len(value) > _MAX_ITEMS else ""
            yield name, ", ".join(_leaf(each) for each in value[:_MAX_ITEMS]) + more
    elif isinstance(value, int) and not isinstance(value, bool) and name.endswith("_bytes"):
        yield name, format_size(value)
    else:
        yield name, _leaf(value)


def _leaf(value: Any) -> str:
    if value is None or value in ({}, []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _shortened(str(value), _MAX_TEXT)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
