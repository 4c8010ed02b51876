"""The forerunners' benchmark on paper: Markdown from its JSON, and the heat map as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import NAMES

__all__ = ["markdown", "plot"]

Figures = Mapping[str, Any]

_PLACES = {"local": "local drive", "s3": "S3"}
_WORDS = {
    "vanilla": "vanilla",
    "our store": "ours, store",
    "threads": "ours, drop-in, threads",
    "coroutines": "ours, drop-in, coroutines",
    "objects": "ours, ObjectDataset",
    "shards": "ours, shards",
}


def markdown(figures: Figures) -> str:
    """All tables, and what differs from the forerunners' set-up.

    Args:
        figures: The benchmark's JSON.

    Returns:
        Markdown that ends with a newline; its headings are of the third level.
    """
    parts = [
        _setting(figures),
        "### Theirs and ours\n\n" + _compared(figures["compared"]),
        "### The layers of ConcurrentDataloader\n\n" + _layers(figures["layers"]),
        "### Requests in flight (samples/s)\n\n" + _heat_map(figures["heat_map"]),
        "### datadings: in order from the local drive\n\n" + _sequential(figures["sequential"]),
        "### Zolnouri et al.: four pipelines\n\n" + _pipelines(figures["pipelines"]),
        "### L3: lossless pictures\n\n" + _lossless(figures["lossless"]),
        "### What differs\n\n" + _differences(figures["differences"]),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def plot(figures: Figures, file: Path) -> None:
    """Draws the heat map.

    Args:
        figures: The benchmark's JSON.
        file: To write; its suffix says what, PNG or SVG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heat = figures["heat_map"]
    rates = [
        [_cell(heat, workers, in_flight)["samples_s"] for in_flight in heat["in_flight"]] for workers in heat["workers"]
    ]
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(rates, cmap="viridis", aspect="auto")
    middle = max(map(max, rates)) / 2
    for y, row in enumerate(rates):
        for x, rate in enumerate(row):
            axes.text(x, y, f"{rate:,.0f}", ha="center", va="center", color="white" if rate < middle else "black")
    axes.set_xticks(range(len(heat["in_flight"])), [str(number) for number in heat["in_flight"]])
    axes.set_yticks(range(len(heat["workers"])), [str(number) for number in heat["workers"]])
    axes.set_xlabel("requests in flight, each process")
    axes.set_ylabel("worker processes")
    axes.set_title(f"objects a second, {figures['latency_ms']:.0f} ms away")
    figure.colorbar(image, ax=axes)
    figure.savefig(file, dpi=150)


# -- parts -------------------------------------------------------------------------------------------------------------


def _setting(figures: Figures) -> str:
    machine = figures["machine"]
    return (
        f"{figures['num_photos']:,} photographs of {figures['mean_bytes'] / 1e3:.0f} KB, "
        f"batches of {figures['batch_size']}, {figures['num_workers']} workers, "
        f"the drop-in with {figures['in_flight']} items in flight in each; {figures['server']}, {figures['latency']}. "
        f"{figures['cache_state']} "
        f"{machine['cpu']}, {machine['num_cores']} cores, no GPU used; other programs took "
        f"{figures['other_programs_share']:.0%} of it. "
        f"Medians of {figures['num_rounds']} rounds (lowest … highest), sides alternating."
    )


def _compared(rows: Sequence[Figures]) -> str:
    return _table(
        ("forerunner", "what", "theirs", "ours", "source"),
        [(NAMES[row["forerunner"]], row["what"], row["theirs"], row["ours"], row["source"]) for row in rows],
    )


def _layers(rows: Sequence[Figures]) -> str:
    titles = (
        "place", "layer", "side", "samples/s", "batch load s", "a batch every s", "first batch s", "CPU s / 1,000",
        "peak MB", "samples",
    )  # fmt: skip
    cells = [
        (
            _PLACES[row["place"]], row["layer"], _WORDS[row["side"]], _with_spread(row), _seconds(row["batch_load_s"]),
            _seconds(row["batch_every_s"]), _seconds(row["first_batch_s"]), f"{row['cpu_s_per_1000']:.2f}",
            f"{row['peak_rss_mb']:,.0f}", f"{row['num_samples']:,}",
        )
        for row in rows
    ]  # fmt: skip
    return _table(titles, cells)


def _heat_map(heat: Figures) -> str:
    titles = ("worker processes", *(f"{number} in flight" for number in heat["in_flight"]), "auto ÷ best fixed")
    cells = []
    for workers in heat["workers"]:
        row = [_cell(heat, workers, number) for number in heat["in_flight"]]
        ratio = heat["auto_vs_best"][str(workers)]
        cells.append(
            (str(workers), *(_rate(cell) for cell in row), "–" if ratio is None else f"{ratio:.2f}"),
        )
    return (
        _table(titles, cells) + "\nIn brackets the share of (requests in flight ÷ time of a request) that is reached.\n"
    )


def _rate(cell: Figures) -> str:
    share = cell["of_in_flight"]
    return f"{cell['samples_s']:,.0f}" + ("" if share is None else f" ({share:.0%})")


def _cell(heat: Figures, workers: int, in_flight: int | str) -> Figures:
    found: Figures = next(
        cell for cell in heat["cells"] if (cell["workers"], cell["in_flight"]) == (workers, in_flight)
    )
    return found


def _sequential(rows: Sequence[Figures]) -> str:
    titles = ("reader", "samples/s", "samples/s of a core", "CPU s / 1,000", "first sample s", "peak MB")
    cells = [
        (
            row["reader"], _with_spread(row), f"{row['samples_s_core']:,.0f}", f"{row['cpu_s_per_1000']:.3f}",
            _seconds(row["first_sample_s"]), f"{row['peak_rss_mb']:,.0f}",
        )
        for row in rows
    ]  # fmt: skip
    return _table(titles, cells)


def _pipelines(found: Figures) -> str:
    titles = ("augmentations", "pictures from", "augmented on", "epoch s", "images/s", "waiting")
    cells = [
        (
            row["operations"], row["source"], row["place"], f"{row['epoch_s']:.2f}", f"{row['images_s']:,.0f}",
            f"{row['waiting_share']:.0%}",
        )
        for row in found["rows"]
    ]  # fmt: skip
    return _table(titles, cells) + f"\n{_origin(found)}; device: {found['device']}.\n"


def _lossless(found: Figures) -> str:
    cells = [
        (row["set"], row["codec"], f"{row['vs_png']:.2f}", f"{row['decode_mpix_s']:,.0f}")
        for row in found["rows"]
        if row.get("vs_png") is not None
    ]
    best = f"The fastest PNG decoder is {found['best_png']}."
    return (
        _table(("pictures", "codec", "size ÷ PNG", "decoding MPix/s, one core"), cells)
        + f"\n{_origin(found)}. {best}\n"
    )


def _origin(found: Figures) -> str:
    machine = found["machine"]
    return f"{found['origin']}, on {machine['cpu']} with {machine['num_cores']} cores"


def _differences(differences: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f"- **{NAMES[name]}:** {' '.join(sentences)}" for name, sentences in differences.items())


# -- words -------------------------------------------------------------------------------------------------------------


def _with_spread(row: Figures) -> str:
    low, high = row["samples_s_spread"]
    return f"{row['samples_s']:,.0f} ({low:,.0f} … {high:,.0f})"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
