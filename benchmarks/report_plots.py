"""The plots of REPORT.md: bars from zero, lines, one heat map; ours in one colour everywhere.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), which the colour-blind tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from benchmarks.report_text import number, peer_rows

Figures = Mapping[str, Any]
_OURS, _OURS_PALE, _OURS_DARK = "#0072B2", "#56B4E9", "#003A5D"
_OTHERS, _OTHERS_PALE, _LOCAL = "#7A7A7A", "#BDBDBD", "#E69F00"
_FONT = 8.5


def _canvas(count: int = 1, height: float = 3.0, num_rows: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(9.0, height), dpi=110, layout="constrained")
    panels = [figure.add_subplot(num_rows, -(-count // num_rows), 1 + at) for at in range(count)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=_FONT)
        axes.grid(color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def _bars(
    axes: Axes, bars: Sequence[tuple[str, Sequence[tuple[float | None, str, str]]]], title: str, unit: str
) -> None:
    """Draws horizontal bars from zero: name and, for each bar of a group, length, colour and the text behind it."""
    highest = max([value for _, group in bars for value, _, _ in group if value] or [1.0])
    for place, (_, group) in enumerate(bars):
        thickness = 0.8 / len(group)
        for each, (value, colour, told) in enumerate(group):
            y = place + (each - (len(group) - 1) / 2) * thickness
            axes.barh(y, value or 0, thickness * 0.92, color=colour)
            axes.annotate(f" {told}", (value or 0, y), va="center", fontsize=_FONT - 1.5)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=_FONT)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, highest * 1.3)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=5)
    _named(axes, title, unit, "")


def _one(name: str, value: float, colour: str, unit: str = "") -> tuple[str, list[tuple[float | None, str, str]]]:
    return name, [(value, colour, number(value) + unit)]


def _named(axes: Axes, title: str, x: str, y: str, legend: float | None = None) -> None:
    axes.set_title(title, fontsize=_FONT + 1, loc="left")
    axes.set_xlabel(x, fontsize=_FONT)
    axes.set_ylabel(y, fontsize=_FONT)
    if legend is not None:
        axes.legend(fontsize=legend, frameon=False)


def _plain(axes: Axes, *which: str) -> None:
    """Writes the powers of a logarithmic axis as numbers."""
    for axis in (getattr(axes, f"{name}axis") for name in which):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}" if value >= 0.001 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def save(name: str, figures: Figures, file: Path) -> None:
    """Draws the plot of a benchmark."""
    file.parent.mkdir(parents=True, exist_ok=True)
    PLOTS[name](figures).savefig(file, metadata={"Software": None})


def _colour(name: str) -> str:
    return _OURS if name.startswith("ours") else _OTHERS


def _peers(figures: Figures) -> Figure:
    rows = [row for row in peer_rows(figures) if row["latency_ms"] is not None and row["workers"] in {None, 2}]
    groups = list(dict.fromkeys((row["kind"], row["where"]) for row in rows))
    figure, panels = _canvas(len(groups), height=4.6 * -(-len(groups) // 2), num_rows=-(-len(groups) // 2))
    for axes, group in zip(panels, groups, strict=True):
        there = [row for row in rows if (row["kind"], row["where"]) == group]
        ours = {row["epoch"]: row["samples_s"] for row in there if row["peer"] == "ours"}
        bars = []
        for label in dict.fromkeys(row["label"] for row in there if row["peer"] != "ours"):
            bar: list[tuple[float | None, str, str]] = []
            for epoch, looks in (("cold", (_OURS, _OTHERS)), ("warm", (_OURS_PALE, _OTHERS_PALE))):
                for row in there:
                    if (row["label"], row["epoch"]) == (label, epoch) and ours.get(epoch):
                        share = 100 * row["samples_s"] / ours[epoch]
                        told = f"{share:.0f} %" if row["unfinished"] is None else "did not finish"
                        bar.append((share if row["unfinished"] is None else None, looks[not row["ours"]], told))
            if bar:
                bars.append((label, bar))
        _bars(axes, bars, f"{group[0]}, {group[1]}, 2 workers", "samples/s, % of ours over shards")
        axes.set_xlim(0, 100)
    figure.suptitle("dark: cold, pale: warm; ours over shards is 100 %", fontsize=_FONT, x=0.01, ha="left")
    return figure


def _remote(figures: Figures) -> Figure:
    parts = [name for name in ("training", "raw", "decoded") if name in figures]
    figure, panels = _canvas(len(parts), height=1.7)
    sides = (("local drive", "local", _LOCAL), ("bucket, cold", "cold", _OURS), ("bucket, warm", "warm", _OURS_PALE))
    for axes, name in zip(panels, parts, strict=True):
        found = figures[name]
        bars = [_one(side, found[f"{key}_img_s"], colour) for side, key, colour in sides]
        _bars(axes, bars, name, "samples/s, median and extremes")
        for y, (_, key, _) in enumerate(sides):
            axes.plot(found["spread"][f"{key}_img_s"], [y + 0.3, y + 0.3], color="black", linewidth=1)
    return figure


def _drop_in(figures: Figures) -> Figure:
    figure, [axes] = _canvas(height=2.4)
    bars = [
        _one(f"{row['client']}, {row['num_workers']} workers", row["speedup"], _OURS, " ×") for row in figures["rows"]
    ]
    _bars(axes, bars, "How many times as fast as torch's DataLoader", "×")
    return figure


def _forerunners(figures: Figures) -> Figure:
    heat = figures["heat_map"]
    rates = {(cell["workers"], cell["in_flight"]): cell["samples_s"] for cell in heat["cells"]}
    lines = [[rates[workers, in_flight] for in_flight in heat["in_flight"]] for workers in heat["workers"]]
    figure, [axes] = _canvas(height=3.2)
    axes.grid(visible=False)
    image = axes.imshow(lines, cmap="viridis", aspect="auto")
    middle = max(map(max, lines)) / 2
    for y, line in enumerate(lines):
        for x, rate in enumerate(line):
            axes.text(x, y, f"{rate:,.0f}", ha="center", va="center", color="white" if rate < middle else "black")
    axes.set_xticks(range(len(heat["in_flight"])), [str(each) for each in heat["in_flight"]])
    axes.set_yticks(range(len(heat["workers"])), [str(each) for each in heat["workers"]])
    title = f"objects per second, {figures['latency_ms']:.0f} ms away"
    _named(axes, title, "requests in flight, each process", "worker processes")
    figure.colorbar(image, ax=axes)
    return figure


def _inflight(figures: Figures) -> Figure:
    figure, panels = _canvas(2, height=3.6)
    for axes, kind in zip(panels, ("object", "range"), strict=True):
        rows = sorted((row for row in figures["rows"] if row["kind"] == kind), key=lambda row: int(row["in_flight"]))
        latencies = sorted({row["latency_ms"] for row in rows})
        for latency_ms, colour in zip(latencies, (_OURS_PALE, _OURS, _OURS_DARK), strict=False):
            mine = [row for row in rows if row["latency_ms"] == latency_ms]
            x = [row["in_flight"] for row in mine]
            axes.plot(x, [row["limit_per_s"] for row in mine], color=colour, linestyle=":", linewidth=1.2)
            axes.plot(x, [row["per_s"] for row in mine], color=colour, marker="o", label=f"{latency_ms} ms")
        auto = [each for each in figures["auto"] if each["kind"] == kind]
        x = [median(each["limits"]) for each in auto]
        axes.plot(x, [each["per_s"] for each in auto], "*", markersize=11, color="#D55E00", label='"auto"')
        axes.plot([], [], color=_OURS, linestyle=":", label="possible")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _plain(axes, "x", "y")
        title = f"{kind}s of {figures['num_bytes'][kind]:,} bytes"
        _named(axes, title, "requests in flight", "requests per second", _FONT - 1)
    return figure


def _tail(figures: Figures) -> Figure:
    figure, [axes] = _canvas()
    for name, colour in (("off", _OTHERS), ("on", _OURS)):
        taken = sorted(figures["batch_s"][name])
        shares = [1 - place / len(taken) for place in range(len(taken))]
        axes.step(taken, shares, where="post", color=colour, label=f"hedging {name}")
    axes.axhline(0.01, color="black", linewidth=0.8, linestyle=":", label="P99")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _named(axes, "Batches that take longer than …", "seconds per batch", "share of the batches", _FONT)
    return figure


def _cache(figures: Figures) -> Figure:
    figure, [axes] = _canvas()
    looks = (("optimum", "#000000", "s--", "the best possible"), ("ours", _OURS, "o-", "ours"),
             ("lru", _OTHERS, "^-", "least recently used"))  # fmt: skip
    for policy, colour, line, told in looks:
        rows = [row for row in figures["rows"] if row["policy"] == policy]
        x = [100 * row["budget"] for row in rows]
        axes.plot(x, [100 * row["hit_rate"] for row in rows], line, color=colour, label=told, fillstyle="none")
    _named(axes, "Hit rate of the second and third epochs", "cache, % of the dataset", "hits, % of the lookups", _FONT)
    return figure


def _decode(figures: Figures) -> Figure:
    sets = list(dict.fromkeys(row["set"] for row in figures["rows"]))
    figure, panels = _canvas(len(sets), height=2.4)
    for axes, name in zip(panels, sets, strict=True):
        rows = [row for row in figures["rows"] if row["set"] == name and not row["recipe"].startswith("decode: ")]
        bars = [_one(row["recipe"], row["images_s_core"], _colour(row["recipe"])) for row in rows]
        _bars(axes, bars, name, "images per second and core")
        if axes is not panels[0]:
            axes.set_yticklabels([])
    return figure


def _lossless(figures: Figures) -> Figure:
    rows = [row for row in figures["rows"] if row["set"] == "photographs" and not row.get("missing")]
    rows.sort(key=lambda row: float(row["decode_mpix_s"]), reverse=True)
    png = max(row["decode_mpix_s"] for row in rows if row["codec"].startswith("PNG"))
    figure, panels = _canvas(2, height=0.26 * len(rows) + 1)
    bars = [_one(row["codec"], row["decode_mpix_s"] / png, _colour(row["codec"]), " ×") for row in rows]
    _bars(panels[0], bars, "Decoding on a core", "× the fastest PNG decoder")
    sized = [row for row in rows if row.get("vs_png") is not None]
    _bars(panels[1], [_one(row["codec"], row["vs_png"], _colour(row["codec"])) for row in sized], "Size", "÷ PNG")
    return figure


def _pipelines(figures: Figures) -> Figure:
    figure, panels = _canvas(2, height=2.0)
    for axes, operations in zip(panels, ("few", "many"), strict=True):
        rows = [row for row in figures["rows"] if row["operations"] == operations]
        bars = [
            _one(f"{row['source']}, {row['place']}", row["epoch_s"], _OURS if row["source"] == "shards" else _OTHERS)
            for row in rows
        ]
        _bars(axes, bars, f"{operations} augmentations; shorter is better", "s per epoch")
    return figure


def _scaling(figures: Figures) -> Figure:
    figure, panels = _canvas(2)
    for axes, transform in zip(panels, ("native", "python"), strict=True):
        for mode, colour, marker in (("threads", _OURS, "o"), ("processes", _OURS_PALE, "s")):
            rows = [row for row in figures["rows"] if (row["transform"], row["mode"]) == (transform, mode)]
            y = [figures["ratios"][f"{transform}-{mode}-{row['n']}"] for row in rows]
            axes.plot([row["n"] for row in rows], y, color=colour, marker=marker, label=mode)
        axes.set_ylim(0, 2.2)
        held = "releases" if transform == "native" else "holds"
        _named(axes, f"{transform} transform: it {held} the GIL", "threads or processes", "÷ one thread", _FONT)
    return figure


def _shuffle(figures: Figures) -> Figure:
    rows = figures["rows"]
    figure, [axes] = _canvas()
    for key, colour, told in (
        ("sorted_distance", _OURS, "sorted by class"),
        ("random_distance", _OURS_PALE, "written in random order"),
    ):
        axes.plot([row["window_shards"] for row in rows], [row[key] for row in rows], "o-", color=colour, label=told)
    axes.axhline(rows[-1]["random_distance"], color="black", linestyle="--", linewidth=1, label="full permutation")
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    _plain(axes, "x")
    _named(axes, "How far a batch's classes are from the dataset's", "shuffle window, shards", "distance", _FONT)
    return figure


def _scale(figures: Figures) -> Figure:
    figure, panels = _canvas(4, height=7.0, num_rows=2)
    drawn = (
        ("samples", "num_samples", ("open_s", "shuffle_s", "seek_s", "resume_s", "batch_s"), "samples", "s"),
        ("shards", "num_shards", ("open_s", "first_batch_s", "cpu_s_per_1000"), "shards, the same bytes in all", "s"),
        ("nodes", "nodes", ("gets",), "nodes", "GETs per epoch, all nodes"),
        ("sample_bytes", "sample_bytes", ("mb_s", "samples_s"), "bytes of a sample", "MB/s, samples/s"),
    )
    half = len(figures["nodes"]) // 2
    for axes, (kind, x_key, keys, x, y) in zip(panels, drawn, strict=True):
        halves = {"8 groups": figures["nodes"][:half], "by default": figures["nodes"][half:]}
        for name, rows in halves.items() if kind == "nodes" else {"": figures[kind]}.items():
            for key in keys:
                axes.plot([row[x_key] for row in rows], [row[key] for row in rows], "o-", ms=4, label=name or key)
        axes.set_xscale("log", base=2 if kind == "nodes" else 10)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 10 * low:
            axes.set_ylim(low / 3, high * 3)
        _plain(axes, "x", "y")
        _named(axes, "", x, y, _FONT - 1)
    return figure


def _cost(figures: Figures) -> Figure:
    store = "S3 Standard, over the internet"
    dollars = {f"{row['system']} ({row['kind']})": row["usd"][store]["run"] for row in figures["rows"]}
    ours = next(value for name, value in dollars.items() if name.startswith("ours, shards, cache"))
    figure, [axes] = _canvas(height=0.24 * len(dollars) + 0.8)
    bars = [_one(name, value / ours, _colour(name), " ×") for name, value in dollars.items()]
    _bars(axes, bars, store, "dollars per run, × ours over shards with a cache")
    return figure


def _gpu(figures: Figures) -> Figure:
    rows = figures["training"]["rows"]
    names = {"synthetic": "data on the device", "bucket": "ours, from the bucket", "torch": "torch, local files"}
    figure, panels = _canvas(2, height=1.7)
    rates = [_one(names[row["side"]], row["images_s"], _colour(names[row["side"]])) for row in rows]
    waits = [_one("", 100 * row["gpu_wait_share"], _colour(names[row["side"]]), " %") for row in rows]
    _bars(panels[0], rates, "ResNet-50, bf16", "images/s")
    _bars(panels[1], waits, "The GPU waits", "% of the time")
    return figure


PLOTS: dict[str, Callable[[Figures], Figure]] = {
    "peers": _peers, "remote_vs_local.train": _remote, "remote_vs_local.none": _remote, "drop_in": _drop_in,
    "forerunners": _forerunners, "inflight": _inflight, "tail": _tail, "cache": _cache, "decode": _decode,
    "lossless": _lossless, "pipelines": _pipelines, "scaling": _scaling, "shuffle_quality": _shuffle,
    "scale": _scale, "cost": _cost, "gpu": _gpu,
}  # fmt: skip
