"""Implements `concurrent-loader info URL`: shows the contents of a dataset, from its manifest alone."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concurrent_loader.cli.options import (
    Client,
    EndpointUrl,
    Json,
    Profile,
    Region,
    StorageOption,
    open_for_command,
    store_options,
)

if TYPE_CHECKING:
    from concurrent_loader.storage.shards.manifest.manifest import Manifest
    from concurrent_loader.storage.stores.store import Store

__all__ = ["Url", "info"]

Url = Annotated[str, typer.Argument(metavar="URL", help="URL of the dataset.")]
_MAX_CLASSES = 20
_COUNTS = ("source_bytes", "stored_bytes")


def info(
    url: Url,
    *,
    snapshot: Annotated[int | None, typer.Option(min=1, help="Number of the snapshot. Default: the newest.")] = None,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    storage_option: StorageOption = None,
    client: Client = "auto",
    as_json: Json = False,
) -> None:
    """Show the columns, counts, sizes, classes, statistics and snapshots of a dataset."""
    options = store_options(endpoint_url=endpoint_url, region=region, profile=profile, storage_option=storage_option)
    store = open_for_command(url, client=client, options=options)
    manifest, snapshots = asyncio.run(_load(store, snapshot))
    facts = _describe(store.url, manifest, snapshots)
    typer.echo(json.dumps(facts) if as_json else "\n".join(_lines(facts)))


async def _load(store: Store, snapshot: int | None) -> tuple[Manifest, list[int]]:
    from concurrent_loader.storage.errors import NotFound
    from concurrent_loader.storage.shards.manifest.snapshots import NO_DATASET, list_snapshots, load_manifest

    async with store:
        snapshots = await list_snapshots(store)
        if not snapshots:
            raise NotFound(NO_DATASET, url=store.url, key="manifests/")
        return await load_manifest(store, snapshot or snapshots[-1]), snapshots


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
        "num_bytes": manifest.num_bytes,
        "payload_bytes": int(manifest.table.payload_bytes.sum()),
        "num_shards": len(sizes),
        "shard_bytes": {"min": min(sizes), "mean": sum(sizes) // len(sizes), "max": max(sizes)} if sizes else None,
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


def _lines(facts: dict[str, Any]) -> list[str]:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count, format_size

    sizes = facts["shard_bytes"]
    spread = (
        f", {' / '.join(format_size(sizes[name]) for name in ('min', 'mean', 'max'))} (min/mean/max)" if sizes else ""
    )
    lines = [
        f"dataset    {facts['url']}",
        f"snapshot   {facts['snapshot']} of {_format_runs(facts['snapshots'])}, digest {facts['digest']}",
        f"samples    {facts['num_samples']:,}",
        f"size       {format_size(facts['num_bytes'])}, of which payload {format_size(facts['payload_bytes'])}",
        f"shards     {facts['num_shards']:,}{spread}",
        f"bundles    {facts['num_bundles']:,}, {format_size(facts['bundle_bytes'])}",
    ]
    if facts["num_column_sets"]:
        sets = format_count(facts["num_column_sets"], "column set")
        lines.append(f"added      {sets}, {format_size(facts['column_set_bytes'])}")
    lines.append("columns")
    width = max(len(name) for name in facts["columns"])
    for name, kind in facts["columns"].items():
        about = ", ".join(f"{fact} {value}" for fact, value in facts["statistics"].get(name, {}).items())
        lines.append(f"  {name:<{width}}  {kind}{f'  ({about})' if about else ''}")
    for name, counts in facts["encoded"].items():
        sizes_of = " of ".join(format_size(int(counts[each])) for each in reversed(_COUNTS))
        lines.append(f"encoded    {name}: {sizes_of} in the source, ratio {counts['ratio']:.3f}")
    rest = {name: value for name, value in facts["metadata"].items() if name != "encoded"}
    classes = rest.pop("classes", None)
    if isinstance(classes, dict):
        for name, names in classes.items():
            lines += _class_lines(str(name), names)
    lines += [f"metadata   {name}: {json.dumps(value, ensure_ascii=False)[:200]}" for name, value in rest.items()]
    # Names come from the dataset and may contain control characters, which must not reach the terminal.
    return [printable(line) for line in lines]


def _class_lines(name: str, names: object) -> list[str]:
    if not isinstance(names, list):
        return []
    shown = ", ".join(map(str, names[:_MAX_CLASSES]))
    return [f"classes    {name}: {len(names)}: {shown}{', …' if len(names) > _MAX_CLASSES else ''}"]


def _format_runs(snapshots: list[int]) -> str:
    """Formats 1, 2, 3, 7 as "1-3, 7"."""
    runs: list[list[int]] = []
    for snapshot in snapshots:
        if runs and runs[-1][-1] == snapshot - 1:
            runs[-1][1:] = [snapshot]
        else:
            runs.append([snapshot])
    return ", ".join("-".join(map(str, run)) for run in runs)
