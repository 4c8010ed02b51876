"""What the forerunners' benchmark makes of its measurements: rows of medians, ratios, and ours beside theirs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.figures import spread
from benchmarks.in_flight_map import Cell, CellEpoch
from benchmarks.layers import Case, Epoch
from benchmarks.published import PUBLISHED
from benchmarks.sequential import Reading

Figures = Mapping[str, Any]


def layer_rows(epochs: Mapping[Case, Sequence[Epoch]], batch_size: int) -> list[dict[str, Any]]:
    """A row of medians for each case.

    A batch's load is the median over all batches of all rounds; the other figures are medians over the rounds.
    """
    rows = []
    for case, found in epochs.items():
        rates = spread([epoch.num_samples / epoch.epoch_s for epoch in found])
        loads = [load for epoch in found for load in epoch.load_s]
        rows.append(
            {
                **asdict(case),
                "samples_s": _rounded(rates.median),
                "samples_s_spread": [_rounded(rates.low), _rounded(rates.high)],
                "batch_load_s": _rounded(statistics.median(loads)) if loads else None,
                "batch_every_s": _rounded(batch_size / rates.median),
                "first_batch_s": _rounded(statistics.median(epoch.first_batch_s for epoch in found)),
                "cpu_s_per_1000": _rounded(statistics.median(1000 * each.cpu_s / each.num_samples for each in found)),
                "peak_rss_mb": _rounded(statistics.median(epoch.peak_rss_mb for epoch in found)),
                "num_samples": found[0].num_samples,
            }
        )
    return rows


def speedups(rows: Sequence[Figures], layer: str, what: str) -> dict[str, float]:
    """How many times as fast as vanilla each of our sides is from S3."""
    of_layer = {row["side"]: row[what] for row in rows if row["place"] == "s3" and row["layer"] == layer}
    vanilla = of_layer.pop("vanilla")
    return {side: _rounded(vanilla / value) for side, value in of_layer.items() if value is not None}


def remote_share(rows: Sequence[Figures], layer: str) -> dict[str, dict[str, float]]:
    """Each of our sides' rate from S3 over vanilla's from the local drive, and over the same side's from there.

    Coroutines and objects, which read single files like the drop-in's threads, are set beside those.
    """
    rates = {(row["place"], row["side"]): row["samples_s"] for row in rows if row["layer"] == layer}
    ours = [side for place, side in rates if place == "s3" and side != "vanilla"]
    own = {side: rates["local", side] if ("local", side) in rates else rates["local", "threads"] for side in ours}
    return {
        "of_vanilla_local": {side: _rounded(rates["s3", side] / rates["local", "vanilla"]) for side in ours},
        "of_own_local": {side: _rounded(rates["s3", side] / own[side]) for side in ours},
    }


def heat_map(
    epochs: Mapping[Cell, Sequence[CellEpoch]], *, latency_s: float, mean_bytes: float, bytes_per_s: float
) -> dict[str, Any]:
    """The map, and what share of (requests in flight ÷ time of a request) a cell reaches."""
    cells = []
    for cell, found in epochs.items():
        rates = spread([epoch.num_samples / epoch.epoch_s for epoch in found])
        share = None
        if cell.in_flight != "auto":
            most = max(1, cell.workers) * int(cell.in_flight) / (latency_s + mean_bytes / bytes_per_s)
            share = _rounded(rates.median / most)
        cells.append(
            {
                **asdict(cell),
                "samples_s": _rounded(rates.median),
                "samples_s_spread": [_rounded(rates.low), _rounded(rates.high)],
                "of_in_flight": share,
                "cpu_s_per_1000": _rounded(statistics.median(1000 * each.cpu_s / each.num_samples for each in found)),
                "num_samples": found[0].num_samples,
            }
        )
    return {
        "workers": sorted({cell.workers for cell in epochs}),
        "in_flight": list(dict.fromkeys(cell.in_flight for cell in epochs)),
        "cells": cells,
        "auto_vs_best": {
            str(workers): _auto_vs_best([each for each in cells if each["workers"] == workers])
            for workers in sorted({cell.workers for cell in epochs})
        },
    }


def _auto_vs_best(cells: Sequence[Figures]) -> float | None:
    auto = [cell["samples_s"] for cell in cells if cell["in_flight"] == "auto"]
    fixed = [cell["samples_s"] for cell in cells if cell["in_flight"] != "auto"]
    return _rounded(auto[0] / max(fixed)) if auto and fixed else None


def sequential_rows(readings: Mapping[str, Sequence[Reading]]) -> list[dict[str, Any]]:
    """A row of medians for each reader."""
    rows = []
    for name, found in readings.items():
        rates = spread([each.timed_samples / each.seconds for each in found])
        rows.append(
            {
                "reader": name,
                "samples_s": _rounded(rates.median),
                "samples_s_spread": [_rounded(rates.low), _rounded(rates.high)],
                "samples_s_core": _rounded(statistics.median(each.timed_samples / each.cpu_s for each in found)),
                "cpu_s_per_1000": _rounded(statistics.median(1000 * each.cpu_s / each.timed_samples for each in found)),
                "first_sample_s": _rounded(statistics.median(each.first_s for each in found)),
                "peak_rss_mb": _rounded(statistics.median(each.peak_rss_mb for each in found)),
            }
        )
    return rows


# -- ours beside theirs ------------------------------------------------------------------------------------------------


def compared(figures: Figures) -> list[dict[str, str]]:
    """Each published figure with ours beside it, in words; the figures are this benchmark's, ``compared`` left out."""
    ours = {**_of_concurrent(figures), **_of_datadings(figures), **_of_zolnouri(figures), **_of_l3(figures)}
    return [
        {
            "forerunner": each.forerunner,
            "what": each.what,
            "theirs": each.figure,
            "ours": ours[each.key],
            "source": each.source,
        }
        for each in PUBLISHED
    ]


def _of_concurrent(figures: Figures) -> dict[str, str]:
    load, every = figures["batch_load_speedup"], figures["batch_every_speedup"]
    rates = {
        row["side"]: row["samples_s"] for row in figures["layers"] if (row["place"], row["layer"]) == ("s3", "loader")
    }
    shares = figures["remote_share"]["loader"]
    return {
        "batch_load": f"{_factors(load)}; time between two batches: {_factors(every)}",
        "samples_s": ", ".join(f"{side} {rate:,.0f}" for side, rate in rates.items()),
        "of_vanilla_local": ", ".join(f"{side} {share:.0%}" for side, share in shares["of_vanilla_local"].items()),
        "of_own_local": ", ".join(f"{side} {share:.0%}" for side, share in shares["of_own_local"].items()),
        "of_in_flight": ", ".join(
            f"{cell['of_in_flight']:.0%} at {max(1, cell['workers'])} × {cell['in_flight']}"
            for cell in figures["heat_map"]["cells"]
            if cell["of_in_flight"] is not None and cell["workers"] != 0
        ),
    }


def _factors(found: Mapping[str, float]) -> str:
    return ", ".join(f"{side} {factor:.1f}×" for side, factor in found.items())


def _of_datadings(figures: Figures) -> dict[str, str]:
    rows = figures["sequential"]
    return {
        "sequential": "; ".join(f"{row['reader']}: {row['samples_s']:,.0f}" for row in rows),
        "first_sample": "; ".join(f"{row['reader']}: {row['first_sample_s']:.2g}" for row in rows),
    }


def _of_zolnouri(figures: Figures) -> dict[str, str]:
    found = figures["pipelines"]
    return {
        name: ", ".join(_change(found, name, many) for many in ("few", "many")) + f" (device: {found['device']})"
        for name in ("reader", "device")
    }


def _change(found: Figures, name: str, many: str) -> str:
    return f"{found[f'{name}_change_{many}']:+.0%} with {many} augmentations".replace("-", "−")


def _of_l3(figures: Figures) -> dict[str, str]:
    found = figures["lossless"]
    core = f"{found['decode_pack_vs_png']:.1f}× on one core, {found['decode_vs_png']:.1f}× where compressed further"
    size = f"files {found['size_vs_png']:.2f} of PNG's size"
    gpu, train = found.get("gpu_prepare_vs_png"), found.get("gpu_train_vs_png")
    return {
        "decoding": f"{core}; {size}" if gpu is None else f"{gpu:.1f}× on the GPU; {core}; {size}",
        "training": "not measured: no GPU" if train is None else f"{train:.2f}×",
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)
