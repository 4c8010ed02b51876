"""Implements `concurrent-loader info URL`: shows the contents of a dataset, from its manifest and its labels."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concurrent_loader.cli.info_text import info_lines
from concurrent_loader.cli.open_reader import open_reader
from concurrent_loader.cli.options import (
    Json,
    Snapshot,
    StoreFlags,
    takes_store,
)

if TYPE_CHECKING:
    from concurrent_loader.preview.class_counts import ClassCount
    from concurrent_loader.storage.shards.manifest.manifest import Manifest
    from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["Url", "info"]

Url = Annotated[str, typer.Argument(metavar="URL", help="URL of the dataset.")]
_COUNTS = ("source_bytes", "stored_bytes")
_MAX_LABEL_BYTES = 32 << 20  # labels that are fetched without being asked for


@takes_store
def info(
    url: Url,
    *,
    snapshot: Snapshot = None,
    counts: Annotated[
        bool | None,
        typer.Option(help="Count the samples of each class. Default: if the labels take at most 32 MiB."),
    ] = None,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Show the columns, counts, sizes, classes, statistics and snapshots of a dataset."""
    options = store_flags.options
    facts = asyncio.run(_facts(url, snapshot, counts, store_flags.client, options))
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        typer.echo("\n".join(info_lines(facts, shutil.get_terminal_size().columns)))


async def _facts(
    url: str, snapshot: str | None, counts: bool | None, client: str, options: dict[str, Any]
) -> dict[str, Any]:
    from concurrent_loader.storage.shards.manifest.snapshots import list_snapshots

    async with open_reader(url, client=client, options=options, snapshot=snapshot) as reader:
        store = reader.engine.store
        facts = _describe(store.url, reader.manifest, await list_snapshots(store))
        found, notes = await _class_counts(reader, counts)
    facts["class_counts"] = {
        name: [{"value": each.value, "label": each.label, "num_samples": each.num_samples} for each in column]
        for name, column in found.items()
    }
    facts["class_notes"] = notes
    return facts


async def _class_counts(reader: DatasetReader, wanted: bool | None) -> tuple[dict[str, list[ClassCount]], list[str]]:
    """Returns the counts per class, and for each column without counts the number of its classes."""
    from concurrent_loader.preview.class_counts import (
        class_columns,
        class_names,
        read_class_counts,
        small_columns_bytes,
    )
    from concurrent_loader.storage.sizes import format_size

    num_bytes = small_columns_bytes(reader)
    found: dict[str, list[ClassCount]] = {}
    if wanted or (wanted is None and 0 <= num_bytes <= _MAX_LABEL_BYTES):
        found = await read_class_counts(reader)
    metadata = reader.manifest.metadata
    named = metadata.get("classes")
    names = [name for name in named if name not in found] if isinstance(named, dict) else []
    notes = [f"{name}: {len(class_names(metadata, name)):,} named" for name in names]
    left_out = [name for name in class_columns(reader.schema, metadata) if reader.schema[name].shape == ()]
    if left_out and not found and wanted is None and num_bytes > _MAX_LABEL_BYTES:
        notes.append(f"not counted: --counts fetches {format_size(num_bytes)} of labels")
    return found, notes


def _describe(url: str, manifest: Manifest, snapshots: list[int]) -> dict[str, Any]:
    sizes = manifest.table.sizes.tolist()
    return {
        "url": url,
        "snapshot": manifest.snapshot,
        "snapshots": snapshots,
        "digest": manifest.digest,
        "parent": manifest.parent,
        "format_version": manifest.format_version,
        "num_samples": manifest.num_samples,
        "num_deleted": manifest.num_stored_samples - manifest.num_samples,
        "num_bytes": manifest.num_bytes,
        "payload_bytes": int(manifest.table.payload_bytes.sum()),
        "num_shards": len(sizes),
        "shard_bytes": {"min": min(sizes), "mean": sum(sizes) // len(sizes), "max": max(sizes)} if sizes else None,
        "num_undigested": int((manifest.table.num_chunks == 0).sum()),
        "num_bundles": len(manifest.bundles),
        "bundle_bytes": sum(bundle.size for bundle in manifest.bundles),
        "num_column_sets": len(manifest.column_sets),
        "column_set_bytes": sum(int(each.table.sizes.sum()) for each in manifest.column_sets),
        "columns": manifest.schema,
        "statistics": manifest.statistics,
        "encoded": _encoded(manifest.metadata.get("encoded")),
        "metadata": manifest.metadata,
    }


def _encoded(kept: object) -> dict[str, dict[str, float]]:
    """Returns, for each column that was encoded again: bytes in the source, bytes as stored, and their ratio."""
    facts = {}
    for column, counts in kept.items() if isinstance(kept, dict) else ():
        source, stored = (counts.get(name) if isinstance(counts, dict) else None for name in _COUNTS)
        if isinstance(source, int) and isinstance(stored, int) and source > 0:
            facts[str(column)] = {"source_bytes": source, "stored_bytes": stored, "ratio": round(stored / source, 4)}
    return facts
