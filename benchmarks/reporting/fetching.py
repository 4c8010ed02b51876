"""The report's part about fetching and keeping: requests in flight, the slowest batches, the cache, clients, faults."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.ticker import LogLocator, PercentFormatter

from benchmarks.reporting.charts import (
    BEST,
    OTHERS,
    OURS,
    OURS_DARK,
    OURS_PALE,
    canvas,
    legend,
    named,
    plain,
    save,
)
from benchmarks.reporting.markdown import Figures, number, percent, table
from benchmarks.reporting.section import Section

__all__ = ["CACHE", "CLIENTS", "INFLIGHT", "SOAK", "TAIL"]

# -- requests in flight ------------------------------------------------------------------------------------------------

_KINDS = {"object": "objects of {:,} bytes", "range": "ranges of {:,} bytes"}


def _groups(figures: Figures) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The rows of each kind at each latency, by requests in flight."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in figures["rows"]:
        found.setdefault((row["kind"], row["latency_ms"]), []).append(row)
    return {pair: sorted(rows, key=lambda row: int(row["in_flight"])) for pair, rows in found.items()}


def _inflight_body(figures: Figures) -> str:
    groups = _groups(figures)
    numbers = [row["in_flight"] for row in next(iter(groups.values()))]
    rows = [
        [kind, latency_ms, *(f"{row['per_s']:,.0f} ({row['ratio']:.2f})" for row in found)]
        for (kind, latency_ms), found in groups.items()
    ]
    autos = [
        [each["kind"], each["latency_ms"], each["per_s"], f"{each['best_fixed_per_s']:,.0f} ({each['best_fixed']})",
         each["ratio"], each["converge_s"], "/".join(map(str, each["limits"]))]
        for each in figures["auto"]
    ]  # fmt: skip
    cpu = [[kind, latency_ms, *(row["cpu_ms"] for row in found)] for (kind, latency_ms), found in groups.items()]
    return "\n\n".join(
        [
            "Requests a second with so many in flight, and (in brackets) divided by what was possible:",
            table(["kind", "latency, ms", *map(str, numbers)], rows),
            'How near `in_flight="auto"` comes to the best of these numbers, measured anew between spans of it:',
            table(
                ["kind", "latency, ms", "auto, /s", "best fixed, /s (its number)", "ratio", "near it after, s",
                 "limit found, by turn"],
                autos,
            ),
            "Processor time of the client, ms a request:",
            table(["kind", "latency, ms", *map(str, numbers)], cpu),
            (f"Medians over {figures['load']['num_rounds']['object']} (objects) and "
            f"{figures['load']['num_rounds']['range']} (ranges) rounds a cell, {figures['load']['num_turns']} turns of "
            f"{figures['load']['num_pairs']} pairs for auto; extremes and peak memory are not kept."),
        ]
    )  # fmt: skip


def _inflight_plot(figures: Figures, file: Path) -> None:
    groups = _groups(figures)
    figure, panels = canvas(2, height=3.6)
    colours = (OURS_PALE, OURS, OURS_DARK)
    for axes, kind in zip(panels, _KINDS, strict=True):
        mine = [(latency_ms, rows) for (each, latency_ms), rows in groups.items() if each == kind]
        for (latency_ms, rows), colour in zip(mine, colours, strict=False):
            x = [row["in_flight"] for row in rows]
            axes.plot(x, [row["limit_per_s"] for row in rows], color=colour, linestyle=":", linewidth=1.2)
            axes.plot(
                x, [row["per_s"] for row in rows], color=colour, marker="o", markersize=3.5, label=f"{latency_ms} ms"
            )
        for each in figures["auto"]:
            if each["kind"] == kind:
                axes.plot(
                    median(each["limits"]), each["per_s"], marker="*", markersize=11, color="#D55E00",
                    linestyle="none", markeredgecolor="white",
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        plain(axes, "x", "y")
        named(
            axes, title=_KINDS[kind].format(figures["num_bytes"][kind]), x="requests in flight", y="requests a second"
        )
    legend(panels[0], place="lower right")
    panels[1].plot([], [], color=OURS, linestyle=":", label="possible")
    panels[1].plot([], [], marker="*", markersize=9, color="#D55E00", linestyle="none", label='"auto"')
    handles, labels = panels[1].get_legend_handles_labels()
    panels[1].legend(handles[-2:], labels[-2:], loc="lower right", fontsize=8, frameon=False)
    save(figure, file)


INFLIGHT = Section(
    "inflight",
    "Requests in flight against latency",
    "How much of what is possible the fetch engine reaches with 1 … 256 requests in flight. Possible is what the "
    "latency measured through the same proxy and the connection's bandwidth allow, and no more than the same client, "
    "server and proxy reach in the same run without latency, for all of them share the machine's cores. Rounds "
    "alternate over all cells.",
    lambda figures: (
        ", ".join(f"{asked} ms (measured {measured} ms)" for asked, measured in figures["measured_latency_ms"].items())
        + f"; {figures['bandwidth_mb_s']} MB/s a connection"
    ),
    "none",
    _inflight_body,
    _inflight_plot,
    "Requests a second over requests in flight, by latency, with what was possible and what auto found",
)

# -- the slowest batches -----------------------------------------------------------------------------------------------


def _tail_body(figures: Figures) -> str:
    keys = ("p50_s", "p95_s", "p99_s", "needed_gets", "gets", "hedges", "hedges_won")
    rows = [
        [row["hedging"], row["batches"], *(row[key] for key in keys), percent(row["extra_gets"])]
        for row in figures["rows"]
    ]
    titles = ["hedging", "batches", "P50, s", "P95, s", "P99, s", "objects", "GETs", "doubles", "won", "extra GETs"]
    return table(titles, rows) + "\n\nProcessor time and peak memory are not measured here."


def _tail_plot(figures: Figures, file: Path) -> None:
    figure, [axes] = canvas(height=3.0)
    for name, colour in (("off", OTHERS), ("on", OURS)):
        taken = sorted(figures["batch_s"][name])
        shares = [1 - place / len(taken) for place in range(len(taken))]
        axes.step(taken, shares, where="post", color=colour, label=f"hedging {name}")
    axes.axhline(0.01, color="black", linewidth=0.8, linestyle=":")
    axes.annotate("P99", (0, 0.01), xycoords=("axes fraction", "data"), xytext=(3, 2), textcoords="offset points",
                  fontsize=8)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain(axes, "x")
    named(axes, title="Batches that take longer than …", x="seconds a batch (logarithmic)", y="share of the batches")
    legend(axes, place="lower left")
    save(figure, file)


TAIL = Section(
    "tail",
    "The slowest batches, with and without hedging",
    "A bucket behind a proxy that draws every answer's latency from a lognormal distribution and makes 1 % of the "
    "requests 50 times as slow, as real stores do. A batch takes as long as its slowest object. Two engines that "
    "differ in hedging alone take turns; every object's bytes are checked.",
    lambda figures: (
        f"median {number(figures['options']['latency_ms'])} ms, sigma {figures['options']['sigma']}, "
        f"{percent(figures['options']['slow'])} of the requests {number(figures['options']['slow_factor'])} times as "
        f"slow; measured {figures['first_byte_ms']} ms to the first byte"
    ),
    "none",
    _tail_body,
    _tail_plot,
    "Share of batches that take longer than so many seconds, hedging off and on",
)

# -- the cache ---------------------------------------------------------------------------------------------------------

_POLICIES = {"ours": "ours", "lru": "least recently used", "optimum": "the best possible"}


def _by_budget(figures: Figures) -> dict[float, dict[str, dict[str, float]]]:
    found: dict[float, dict[str, dict[str, float]]] = {}
    for row in figures["rows"]:
        found.setdefault(row["budget"], {})[row["policy"]] = row
    return found


def _cache_body(figures: Figures) -> str:
    titles = ["cache ÷ data set", *(f"{name}: {what}" for what in ("hits", "bytes") for name in _POLICIES.values())]
    rows = [
        [f"{budget:.0%}", *(percent(found[policy]["hit_rate"]) for policy in _POLICIES),
         *(found[policy]["bytes_ratio"] for policy in _POLICIES)]
        for budget, found in _by_budget(figures).items()
    ]  # fmt: skip
    return table(titles, rows) + (
        "\n\nHits of the second and third epochs; bytes fetched ÷ bytes read in all three. Counts, not times: there is "
        "no spread, and processor time and memory are not measured here."
    )


def _cache_plot(figures: Figures, file: Path) -> None:
    figure, [axes] = canvas(height=3.0)
    budgets = _by_budget(figures)
    looks = {
        "optimum": (BEST, "s", "--", 8.0),
        "ours": (OURS, "o", "-", 5.0),
        "lru": (OTHERS, "^", "-", 5.0),
    }
    for policy, (colour, marker, line, size) in looks.items():
        axes.plot(
            [100 * budget for budget in budgets], [100 * found[policy]["hit_rate"] for found in budgets.values()],
            color=colour, marker=marker, linestyle=line, markersize=size, label=_POLICIES[policy],
            markerfacecolor="none" if policy == "optimum" else colour,
        )  # fmt: skip
    named(
        axes, title="Hit rate of the second and third epochs", x="cache, % of the data set", y="hits, % of the lookups"
    )
    legend(axes, place="upper left")
    save(figure, file)


CACHE = Section(
    "cache",
    "A cache that is smaller than the data set",
    "Three epochs, shuffled anew each time, read by the real loader through the real cache, for every budget: evicting "
    "by the plan, as it always does; by LRU (the same cache, the plan kept from it); and Belady's offline rule on the "
    "same sequence of shards, which no cache of that size beats.",
    lambda figures: "none: the data set lies on the local drive; shards and bytes count, not seconds",
    "empty at first",
    _cache_body,
    _cache_plot,
    "Hit rate over cache size: ours, least recently used, the best possible",
)

# -- clients -----------------------------------------------------------------------------------------------------------


def _clients_body(figures: Figures) -> str:
    keys = ("small_per_s", "small_cpu_ms", "ranges_gb_per_s", "ranges_cpu_s_per_gb")
    rows = [[name, *(found[key] for key in keys)] for name, found in figures["clients"].items()]
    load = figures["load"]
    titles = [
        "client", f"objects of {load['small_bytes']:,} bytes/s", "CPU ms each", "ranges of 8 MiB, GB/s", "CPU s a GB"
    ]  # fmt: skip
    return table(titles, rows) + f"\n\n{load['num_rounds']} rounds, medians; extremes and peak memory are not kept."


CLIENTS = Section(
    "clients",
    "Which S3 client",
    "Every client that our stores can use, through our own stores, against one local server; rounds alternate.",
    lambda figures: f"none; {figures['server']} on the same machine",
    "none",
    _clients_body,
)

# -- faults ------------------------------------------------------------------------------------------------------------


def _soak_body(figures: Figures) -> str:
    facts: list[tuple[str, object]] = [
        ("epochs", figures["epochs"]),
        ("samples delivered, each compared with the truth", figures["samples"]),
        ("wrong samples", figures["wrong_samples"]),
        ("spells of weather, of so many kinds", f"{sum(figures['spells'].values())}, {len(figures['spells'])}"),
        ("requests that reached the faulty proxy", figures["faults"]["requests"]),
        ("faults that it injected", sum(count for name, count in figures["faults"].items() if name != "requests")),
        ("typed errors that ended an epoch, gone on from the state", sum(figures["errors"].values())),
        ("requests repeated / gone on with / fetched again after a wrong digest",
         f"{figures['retries']:,} / {figures['resumed']:,} / {figures['refetched']:,}"),
        ("cached files set aside as damaged", figures["quarantined"]),
        ("descriptors before, at most, after", f"{figures['fd_before']}, {figures['max_fd']}, {figures['fd_after']}"),
        ("memory at the end, MB; its drift from the second third to the last",
         f"{number(figures['rss_mb'])}; {number(figures['rss_drift_mb'])}"),
    ]  # fmt: skip
    return table(["", "counted"], facts)


SOAK = Section(
    "soak",
    "Half an hour of bad weather",
    "Epochs of a real loader over a real cache folder that is too small, from MinIO behind toxiproxy behind a faulty "
    "HTTP proxy, while the weather changes every few seconds: resets, stalls, lies, wrong bytes, a killed server, a "
    "spoilt cache. Each sample's digest is compared with the truth. Anything but a typed error fails the run.",
    lambda figures: "part of the weather",
    "a folder that is too small; sometimes truncated, flipped or deleted",
    _soak_body,
)
