"""What the forerunners' benchmark makes of its measurements: rows of medians, ratios, and ours beside theirs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from benchmarks.figures import extremes, median, rounded
from benchmarks.peers.job import Outcome
from concurrent_loader.storage.fetch import InFlight

Figures = Mapping[str, Any]
_TOML = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
PUBLISHED: list[dict[str, str]] = _TOML["published"]
DIFFERENCES: dict[str, list[str]] = _TOML["differences"]


class Case(NamedTuple):
    """A row of the table of layers."""

    place: str  # local or s3
    layer: str  # store, dataset, loader or training
    side: str  # vanilla; our store; the drop-in in threads, or over coroutines; objects; shards


_SIDES = {"local": ("vanilla", "threads", "shards"), "s3": ("vanilla", "threads", "coroutines", "objects", "shards")}
_TRAINED = ("vanilla", "threads", "shards")  # a step takes so long that the others add nothing new
CASES = tuple(
    Case(place, layer, side)
    for place, sides in _SIDES.items()
    for layer, layer_sides in (
        ("store", ("vanilla", "our store")), ("dataset", sides), ("loader", sides), ("training", _TRAINED)
    )
    for side in layer_sides
)  # fmt: skip


class Cell(NamedTuple):
    """A place in the heat map."""

    workers: int  # processes of the loader; 0 is the consumer's own
    in_flight: InFlight  # requests of each process


def _common(epochs: Sequence[Outcome]) -> dict[str, Any]:
    """Returns what every row has: medians over the rounds."""
    rates = [each.samples_s for each in epochs]
    cpu_s_per_1000 = median(each.cpu_s_per_1000 for each in epochs)
    return {"samples_s": median(rates), "samples_s_spread": extremes(rates), "cpu_s_per_1000": cpu_s_per_1000}


def loads_s(epoch: Outcome, batch_size: int) -> list[float]:
    """Returns the seconds of each batch, from its first item's beginning to its last item's end.

    Items that came one by one make batches in the order in which they were begun.
    """
    if len(epoch.spans) < len(epoch.numbers):
        return [ended - began for began, ended in epoch.spans]
    spans = sorted(epoch.spans)
    groups = [spans[start : start + batch_size] for start in range(0, len(spans) - batch_size + 1, batch_size)]
    return [max(ended for _, ended in group) - group[0][0] for group in groups]


def layer_rows(epochs: Mapping[Case, Sequence[Outcome]], batch_size: int) -> list[dict[str, Any]]:
    """Returns a row for each case; a batch's load is the median over all batches of all rounds."""
    loads = {case: [load for epoch in found for load in loads_s(epoch, batch_size)] for case, found in epochs.items()}
    return [
        {
            **case._asdict(),
            **_common(found),
            "batch_load_s": median(loads[case]) if loads[case] else None,
            "batch_every_s": median(batch_size / epoch.samples_s for epoch in found),
            "first_batch_s": median(epoch.first_batch_s for epoch in found),
            "peak_rss_mb": median(epoch.peak_rss_mb for epoch in found),
            "num_samples": len(found[0].numbers),
        }
        for case, found in epochs.items()
    ]


def speedups(rows: Sequence[Figures], layer: str, what: str) -> dict[str, float]:
    """Divides vanilla's figure from S3 by that of each of our sides; sides without it are left out."""
    of_layer = {row["side"]: row[what] for row in rows if row["place"] == "s3" and row["layer"] == layer}
    vanilla = of_layer.pop("vanilla")
    return {side: rounded(vanilla / value) for side, value in of_layer.items() if value is not None}


def remote_share(rows: Sequence[Figures], layer: str) -> dict[str, dict[str, float]]:
    """Divides each of our sides' rate from S3 by vanilla's from the local drive, and by the same side's from there.

    Coroutines and objects, which read single files like the drop-in's threads, are set beside those.
    """
    rates = {(row["place"], row["side"]): row["samples_s"] for row in rows if row["layer"] == layer}
    ours = [side for place, side in rates if place == "s3" and side != "vanilla"]
    own = {side: rates.get(("local", side), rates["local", "threads"]) for side in ours}
    return {
        "of_vanilla_local": {side: rounded(rates["s3", side] / rates["local", "vanilla"]) for side in ours},
        "of_own_local": {side: rounded(rates["s3", side] / own[side]) for side in ours},
    }


def figures_of(
    epochs: Mapping[Case | Cell | str, Sequence[Outcome]], batch_size: int, request_s: float
) -> dict[str, Any]:
    """Returns what the epochs of layers, cells and readers amount to."""
    rows = layer_rows({key: found for key, found in epochs.items() if isinstance(key, Case)}, batch_size)
    cells = {key: found for key, found in epochs.items() if isinstance(key, Cell)}
    return {
        "layers": rows,
        "batch_load_speedup": speedups(rows, "loader", "batch_load_s"),
        "batch_every_speedup": speedups(rows, "loader", "batch_every_s"),
        "remote_share": {layer: remote_share(rows, layer) for layer in ("loader", "training")},
        "heat_map": heat_map(cells, request_s),
        "sequential": sequential_rows({key: found for key, found in epochs.items() if isinstance(key, str)}),
    }


def heat_map(epochs: Mapping[Cell, Sequence[Outcome]], request_s: float) -> dict[str, Any]:
    """Returns the map, and what share of (requests in flight ÷ seconds of a request) a cell reaches."""
    cells = []
    for cell, found in epochs.items():
        share = None
        if cell.in_flight != "auto":
            share = median(each.samples_s * request_s / max(1, cell.workers) / int(cell.in_flight) for each in found)
        cells.append({**cell._asdict(), **_common(found), "of_in_flight": share, "num_samples": len(found[0].numbers)})
    workers = sorted({cell.workers for cell in epochs})
    vs_best = {}
    for count in workers:
        rates = {each["in_flight"]: each["samples_s"] for each in cells if each["workers"] == count}
        auto = rates.pop("auto", None)
        vs_best[str(count)] = rounded(auto / max(rates.values())) if auto and rates else None
    in_flight = list(dict.fromkeys(cell.in_flight for cell in epochs))
    return {"workers": workers, "in_flight": in_flight, "cells": cells, "auto_vs_best": vs_best}


def sequential_rows(readings: Mapping[str, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Returns a row for each reader."""
    return [
        {
            "reader": name,
            **_common(found),
            "samples_s_core": median(each.samples_s_core for each in found),
            "first_sample_s": median(each.first_batch_s for each in found),
            "peak_rss_mb": median(each.peak_rss_mb for each in found),
        }
        for name, found in readings.items()
    ]


_WORDS = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 - no HTML
_WORDS.filters["listed"] = lambda found, form: ", ".join(
    f"{side} {form.format(value)}" for side, value in found.items()
)


def compared(figures: Figures) -> list[dict[str, str]]:
    """Returns each published figure with ours beside it, in words."""
    kept = ("forerunner", "what", "source")
    return [
        {
            "theirs": each["figure"],
            "ours": _WORDS.from_string(each["ours"]).render(figures),
            **{name: each[name] for name in kept},
        }
        for each in PUBLISHED
    ]
