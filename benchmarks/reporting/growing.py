"""The report's part about more of everything: how well the shuffle mixes, resuming, growth, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting.charts import (
    BEST,
    OTHERS,
    OURS,
    OURS_PALE,
    bars,
    canvas,
    legend,
    legend_under,
    named,
    plain,
    save,
)
from benchmarks.reporting.markdown import Figures, percent, ranged, table
from benchmarks.reporting.section import Section

__all__ = ["COST", "RESUME", "SCALE", "SHUFFLE"]

# -- the shuffle -------------------------------------------------------------------------------------------------------


def _shuffle_body(figures: Figures) -> str:
    rows = [
        [f"{row['window_shards']:,}{' (the default)' if row['default'] else ''}", row["sorted_distance"],
         row["sorted_distance_first"], row["random_distance"], row["same_shard"], row["next_in_batch"]]
        for row in figures["rows"]
    ]  # fmt: skip
    shares = [[f"{nodes} nodes", percent(share["largest"])] for nodes, share in figures["share_of_shards"].items()]
    return "\n\n".join(
        [
            table(
                ["window, shards", "distance, sorted by class", "its first batches", "written in random order",
                 "same shard, ×", "next in batch, ×"],
                rows,
            ),
            ("Distance: of a batch's classes from the data set's, total variation, mean over the epoch. ×: multiples "
            "of what a full permutation has."),
            table(["", "of the shards, a node touches at most"], shares),
            "Arithmetic on plans: the same every time, so without spread.",
        ]
    )  # fmt: skip


def _shuffle_plot(figures: Figures, file: Path) -> None:
    rows = figures["rows"]
    x = [row["window_shards"] for row in rows]
    figure, [axes] = canvas(height=2.9)
    axes.plot(x, [row["sorted_distance"] for row in rows], color=OURS, marker="o", label="sorted by class")
    axes.plot(x, [row["random_distance"] for row in rows], color=OURS_PALE, marker="s", label="written in random order")
    axes.axhline(rows[-1]["random_distance"], color=BEST, linestyle="--", linewidth=1, label="a full permutation")
    for row in rows:
        if row["default"]:
            axes.annotate(
                "default", (row["window_shards"], row["sorted_distance"]), xytext=(4, 6), textcoords="offset points",
                fontsize=8,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    plain(axes, "x")
    named(axes, title="How far a batch's classes are from the data set's", x="shuffle window, shards", y="distance")
    legend(axes, place="center left")
    save(figure, file)


SHUFFLE = Section(
    "shuffle_quality",
    "How well the shuffle mixes",
    "Plans of epochs over a data set that is sorted by class, which is the worst case, and over one that was written "
    "in random order, as `concurrent-loader ingest` does.",
    lambda figures: "none: nothing is read",
    "none",
    _shuffle_body,
    _shuffle_plot,
    "Distance of a batch's classes from the data set's, over the shuffle window",
)

# -- resuming ----------------------------------------------------------------------------------------------------------


def _resume_body(figures: Figures) -> str:
    rows = [
        [f"{row['sample']:,}", ranged(row["first_batch_s"], row["spread_s"]), row["gets"], row["shards"]]
        for row in figures["rows"]
    ]
    titles = ["resumed at sample", "first batch after, s (extremes)", "GETs until then", "shards that it needs"]
    return table(titles, rows) + (
        f"\n\n{figures['num_samples']:,} samples. Processor time and memory are not measured here."
    )


RESUME = Section(
    "resume",
    "The first batch after a resume",
    "A data set of tiny samples. Loaders take turns: each is given a state as it would stand in a checkpoint, and the "
    "time to its first batch is taken. It is an error if that is not the batch of the state's step.",
    lambda figures: "none: the local drive",
    "none; the page cache is warm",
    _resume_body,
)

# -- growth ------------------------------------------------------------------------------------------------------------

_KEYS = {
    "samples": (
        "num_samples",
        "num_shards manifest_bytes open_s loader_s shuffle_s batch_s seek_s resume_s schedule_s rss_added_mb",
    ),
    "shards": ("num_shards", "open_s first_batch_s samples_s mb_s cpu_s_per_1000 gets rss_added_mb"),
    "nodes": (
        "nodes",
        (
            "gets bytes_ratio shared_shards most_over_mean least_over_mean requests_s busiest_requests_s limit_share "
            "objects_limit_share"
        ),
    ),
    "sample_bytes": ("sample_bytes", "num_shards first_batch_s samples_s mb_s cpu_s_per_1000 gets rss_added_mb"),
}
_TITLES = {
    "samples": "Samples of 110 KB; only the manifest is written, and opened, planned, sought in, resumed",
    "shards": "Shards, the same bytes in all; written and read on the local drive",
    "nodes, groups by default": "Nodes, the default number of groups; counted in the plans",
    "nodes, a group each": "Nodes, a group each; counted in the plans",
    "sample_bytes": "Bytes of a sample; written and read on the local drive",
}


def _series(figures: Figures) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Name, what grows, and the rows."""
    half = len(figures["nodes"]) // 2
    halves = {"nodes, groups by default": figures["nodes"][:half], "nodes, a group each": figures["nodes"][half:]}
    return [
        (name, kind, halves[name] if kind == "nodes" else figures[kind])
        for name in _TITLES
        for kind in [name.partition(",")[0]]
    ]


def _scale_body(figures: Figures) -> str:
    told = []
    for name, kind, rows in _series(figures):
        size, keys = _KEYS[kind]
        cells = []
        for key in keys.split():
            slope = figures["slopes"][name][key]
            exponents = ("–" if slope[which] is None else f"{slope[which]:+.2f}" for which in ("all", "last"))
            cells.append([f"`{key}`", *(_ranged(row, key) for row in rows), *exponents])
        told += [
            f"{_TITLES[name]}:",
            table([f"`{size}`", *(f"{row[size]:,}" for row in rows), "slope", "last two"], cells),
        ]
    told.append(
        "A slope is the exponent of a power law, least squares over logarithms: 0 does not depend on it, 1 grows in "
        "proportion; over all points, and over the last two, since a fixed cost hides growth at small sizes. Medians "
        f"of {figures['load']['num_rounds']} rounds (extremes). What a key means: `python -m benchmarks.scale --help`."
    )
    return "\n\n".join(told)


def _ranged(row: dict[str, Any], key: str) -> str:
    return ranged(row[key], row.get("spread", {}).get(key))


_SHOWN = {
    "open_s": "open",
    "shuffle_s": "shuffle, first batch",
    "seek_s": "seek",
    "resume_s": "resume",
    "batch_s": "a batch after it",
    "first_batch_s": "first batch",
    "cpu_s_per_1000": "CPU of 1,000 samples",
    "mb_s": "MB/s",
    "samples_s": "samples/s",
}


def _scale_plot(figures: Figures, file: Path) -> None:
    figure, panels = canvas(4, height=7.0, num_rows=2)
    slopes = figures["slopes"]
    colours = (OURS, OURS_PALE, "#009E73", "#CC79A7", "#D55E00")
    drawn: tuple[tuple[str, str, Sequence[str], str, str], ...] = (
        ("samples", "num_samples", ("open_s", "shuffle_s", "seek_s", "resume_s", "batch_s"), "samples", "s"),
        ("shards", "num_shards", ("open_s", "first_batch_s", "cpu_s_per_1000"), "shards, the same bytes in all", "s"),
        ("nodes", "nodes", ("gets",), "nodes", "GETs an epoch, all nodes"),
        ("sample_bytes", "sample_bytes", ("mb_s", "samples_s"), "bytes of a sample", "MB/s, samples/s"),
    )
    series = {name: rows for name, _, rows in _series(figures)}
    for axes, (kind, size, keys, x, y) in zip(panels, drawn, strict=True):
        names = [name for name in series if name.partition(",")[0] == kind]
        lines = [(name, key) for name in names for key in keys]
        for (name, key), colour, marker in zip(lines, colours, "osD^v", strict=False):
            rows = series[name]
            slope = slopes[name][key]["all"]
            label = name.partition(", ")[2] or _SHOWN[key]
            told = f"{label}, slope {slope:+.2f}" if slope is not None else label
            axes.plot(
                [row[size] for row in rows], [row[key] for row in rows], color=colour, marker=marker, markersize=4,
                label=told,
            )  # fmt: skip
        axes.set_xscale("log", base=2 if kind == "nodes" else 10)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 10 * low:  # what does not grow has little to show; a decade has ticks
            axes.set_ylim(low / 3, high * 3)
        plain(axes, "x", "y")
        named(axes, title="", x=x, y=y)
        legend_under(axes)
    save(figure, file)


SCALE = Section(
    "scale",
    "What happens as work grows",
    "Four series: samples, shards, nodes and the size of a sample. Each measured row has a process of its own; times "
    "are medians after one round that is not counted.",
    lambda figures: "none: the local drive, or plans alone",
    "no cache; the page cache is warm",
    _scale_body,
    _scale_plot,
    "Four log-log plots with slopes: over samples, shards, nodes and bytes of a sample",
)

# -- cost --------------------------------------------------------------------------------------------------------------


def _cost_body(figures: Figures) -> str:
    stores = [price["store"] for price in figures["prices"]]
    requests = [
        [row["system"], row["kind"], *(f"{row[part]['gets']:,}" for part in ("first_epoch", "later_epoch", "run")),
         f"{row['run']['bytes'] / 1e12:,.2f}"]
        for row in figures["rows"]
    ]  # fmt: skip
    dollars = [[row["system"], *(_dollars(row["usd"][store]["run"]) for store in stores)] for row in figures["rows"]]
    work = figures["workload"]
    sources = ", ".join(f"[{price['store']}]({price['source']})" for price in figures["prices"])
    return "\n\n".join(
        [
            f"{work['num_samples']:,} samples of {work['sample_bytes']:,} bytes, {work['num_epochs']} epochs:",
            table(
                ["system", "", "GETs, first epoch", "GETs, each later one", "GETs of the run", "TB of the run"],
                requests, num_left=2,
            ),
            (f"US dollars a run at the list prices of {figures['prices_as_of']} (check them; storage and drives are "
            "not counted):"),
            table(["system", *stores], dollars),
            f"Sources of the prices: {sources}",
        ]
    )  # fmt: skip


def _dollars(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.4f}"


def _cost_plot(figures: Figures, file: Path) -> None:
    rows = figures["rows"]
    stores = ("S3 Standard, same region", "S3 Standard, over the internet")
    figure, panels = canvas(2, height=0.3 * len(rows) + 0.8)
    for axes, store in zip(panels, stores, strict=True):
        colours = [OURS if row["system"].startswith("ours") else OTHERS for row in rows]
        labels = [row["system"] for row in rows]
        dollars = [row["usd"][store]["run"] for row in rows]
        bars(axes, labels, [("", dollars, colours)], title=store, unit="US dollars a run (logarithmic)", log=True)
        if axes is not panels[0]:
            axes.set_yticklabels([])
    save(figure, file)


COST = Section(
    "cost",
    "GETs, bytes and dollars",
    "Ours is counted on the wire: the real loader reads a data set from a local S3 server through a proxy that counts, "
    "with and without a cache; scaled to the number of samples. The others are *computed* from their documentation, at "
    "the least: nothing of theirs was run here.",
    lambda figures: f"none; {figures['server']} on the same machine",
    "as each system's name says",
    _cost_body,
    _cost_plot,
    "Bars: dollars of a run by system, within a region and over the internet",
)
