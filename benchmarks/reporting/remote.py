"""The report's part about the bucket: against the local drive, and against one request after another."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.reporting.charts import LOCAL, OTHERS, OURS, OURS_PALE, bars, below, canvas, save
from benchmarks.reporting.markdown import Figures, number, ranged, table
from benchmarks.reporting.section import Section

__all__ = ["DROP_IN", "RAW_AND_DECODED", "TRAINING", "short_table"]

_SIDES = ("local drive", "bucket, cold cache", "bucket, warm cache")
# What is said of each side: title, and the keys of local, cold, warm; None where it makes no sense.
_ROWS: tuple[tuple[str, str | None, str | None, str | None], ...] = (
    ("samples/s", "local_img_s", "cold_img_s", "warm_img_s"),
    ("÷ local drive, same round", None, "cold_ratio", "warm_ratio"),
    ("first batch, s", "first_batch_local_s", "first_batch_s", "first_batch_warm_s"),
    ("share of the epoch spent waiting", "waiting_share_local", "waiting_share", None),
    ("CPU s / 1,000 samples", "cpu_s_per_1000_local", "cpu_s_per_1000", "cpu_s_per_1000_warm"),
    ("peak memory, MB (imports included)", "peak_rss_mb_local", "peak_rss_mb", None),
    ("memory added since the imports, MB", None, "rss_added_mb", "rss_added_mb_warm"),
    ("GETs", None, "gets", "gets_warm"),
    ("bytes fetched ÷ bytes of the data set", None, "bytes_ratio", None),
)
_WORK = {
    "training": "training a small network",
    "raw": "raw bytes",
    "decoded": "decoded and augmented",
}


def _sides_table(part: Figures) -> str:
    """One kind of work on the three sides, medians with the extremes over the rounds."""

    def cell(key: str | None) -> str:
        return "–" if key is None else ranged(part[key], part["spread"].get(key))

    return table(["", *_SIDES], ([title, *(cell(key) for key in keys)] for title, *keys in _ROWS))


def short_table(train: Figures, none: Figures) -> str:
    """The medians that matter most, from both files."""
    training, raw, decoded = train["training"], none["raw"], none["decoded"]

    def sides(part: Figures, *keys: str) -> list[str]:
        return [number(part[key]) for key in keys]

    def rates(part: Figures) -> list[str]:
        ratios = ["", *(f" (median ratio {part[key]:.2f})" for key in ("cold_ratio", "warm_ratio"))]
        keys = ("local_img_s", "cold_img_s", "warm_img_s")
        return [rate + ratio for rate, ratio in zip(sides(part, *keys), ratios, strict=True)]

    firsts = [
        f"{number(training[key])} s / {number(raw[key])} s"
        for key in ("first_batch_local_s", "first_batch_s", "first_batch_warm_s")
    ]
    cpu = sides(raw, "cpu_s_per_1000_local", "cpu_s_per_1000", "cpu_s_per_1000_warm")
    rows = [
        ["training a small network, images/s", *rates(training)],
        [
            f"raw bytes, samples/s ({raw['num_samples']:,} JPEGs)",
            *sides(raw, "local_img_s", "cold_img_s", "warm_img_s"),
        ],
        ["decoded and augmented, images/s", *rates(decoded)],
        ["first batch, training / raw", *firsts],
        ["CPU s / 1,000 samples, raw", *cpu],
        [
            "memory added since the imports, raw",
            "–",
            *(f"{each} MB" for each in sides(raw, "rss_added_mb", "rss_added_mb_warm")),
        ],
    ]
    machine = none["machine"]
    told = (
        f"Medians of {raw['rounds']} rounds, sides alternating; {none['latency']}; {machine['cpu']}, "
        f"{machine['num_cores']} cores, which client, server and proxy share (those two take "
        f"{number(raw['server_cpu_s_per_1000'])} CPU s / 1,000 raw samples more). Bytes fetched are "
        f"{number(raw['bytes_ratio'])} times those of the data set."
    )
    return f"{table(['', *_SIDES], rows)}\n\n{told}"


def _parts(figures: Figures) -> list[tuple[str, Figures]]:
    return [(name, figures[name]) for name in _WORK if name in figures]


def _body(figures: Figures) -> str:
    told = []
    for name, part in _parts(figures):
        told += [
            f"**{_WORK[name].capitalize()}**, {part['num_samples']:,} samples, {part['rounds']} rounds:",
            _sides_table(part),
            f"Server and proxy took {number(part['server_cpu_s_per_1000'])} CPU s / 1,000 samples more.",
        ]
    return "\n\n".join(told)


def _plot(figures: Figures, file: Path) -> None:
    parts = _parts(figures)
    figure, panels = canvas(len(parts), height=1.7)
    for axes, (name, part) in zip(panels, parts, strict=True):
        keys = ("local_img_s", "cold_img_s", "warm_img_s")
        bars(
            axes,
            _SIDES,
            [("", [part[key] for key in keys], [LOCAL, OURS, OURS_PALE])],
            title=_WORK[name],
            unit="samples/s, median and extremes",
            extremes=[[tuple(part["spread"][key]) for key in keys]],
        )
        if axes is not panels[0]:
            axes.set_yticklabels([])
    save(figure, file)


def _latency(figures: Figures) -> str:
    return f"{figures['latency']}; {figures['server']}"


_WHAT = (
    "Photographs as an image folder on the local drive, through torch's DataLoader, against the same photographs as "
    "shards in a bucket behind injected latency, through ConcurrentDataLoader at its defaults. {work} Every epoch runs "
    "in a fresh process, sides alternate, a ratio compares epochs of the same round, and it is an error if the sides "
    "do not deliver the same pictures (number, classes{digest}). Client, server and proxy share the machine's cores."
)
TRAINING = Section(
    "remote_vs_local.train",
    "Training from a bucket against training from the local drive",
    _WHAT.format(work="A small network is trained for one epoch.", digest=""),
    _latency,
    "local: files in the page cache; cold: an empty cache folder; warm: the folder that the cold epoch left, opened by "
    "a new process",
    _body,
    _plot,
    "Bars: samples a second from the local drive, from the bucket with a cold and with a warm cache",
)
RAW_AND_DECODED = Section(
    "remote_vs_local.none",
    "Reading from a bucket against reading from the local drive",
    _WHAT.format(
        work="*Raw* only takes the bytes (torch's DataLoader in its own process, which is its fastest here); *decoded* "
        "decodes, crops and flips.",
        digest=", for raw bytes the digest of all",
    ),
    _latency,
    TRAINING.cache,
    _body,
    _plot,
    TRAINING.alt,
)


# -- only the class name changed ---------------------------------------------------------------------------------------


def _drop_in_cases(figures: Figures) -> list[tuple[str, Figures]]:
    return [(f"{row['client']}, {row['num_workers']} workers", row) for row in figures["rows"]]


def _drop_in_body(figures: Figures) -> str:
    spreads = {
        (row["client"], row["num_workers"], row["in_flight"], row["side"]): row["batch_s"] for row in figures["batch_s"]
    }

    def seconds(row: Figures, side: str) -> str:
        taken = spreads[row["client"], row["num_workers"], row["in_flight"], side]
        return ranged(median(taken), taken)

    titles = ["client", "torch, s a batch", "ours, s a batch", "speed-up", "first batch, torch s", "ours s"]
    rows = [
        [name, seconds(row, "vanilla"), seconds(row, "ours"), f"{row['speedup']:.1f}", row["vanilla_first_batch_s"],
         row["ours_first_batch_s"], row["vanilla_cpu_ms"], row["ours_cpu_ms"]]
        for name, row in _drop_in_cases(figures)
    ]  # fmt: skip
    note = (
        f"{figures['num_rounds']} rounds, median (extremes); {figures['in_flight']} items in flight; batches of "
        f"{figures['batch_size']} objects of {figures['object_bytes']:,} bytes. CPU time is the client's alone. Peak "
        "memory is not measured here."
    )
    told = [table([*titles, "CPU ms an item, torch", "ours"], rows), note]
    if (local := figures.get("local")) is not None:
        told += _local_items(local)
    return "\n\n".join(told)


def _local_items(local: Figures) -> list[str]:
    """Items that do not wait: nothing is to be gained, and nothing may be lost."""
    rows = [
        [row["kind"], str(row["num_workers"]), ranged(row["ratio"] and median(row["torch_s"]), row["torch_s"]),
         ranged(row["ratio"] and median(row["ours_s"]), row["ours_s"]), row["ratio"] or row.get("why_not")]
        for row in local["rows"]
    ]  # fmt: skip
    intro = (
        f"Items that compute or lie in memory, batches of {local['batch_size']}, {local['num_rounds']} alternating "
        "epochs of each loader in one process; median (extremes)."
    )
    return [intro, table(["items", "workers", "torch, s an epoch", "ours, s an epoch", "torch ÷ ours"], rows)]


def _drop_in_plot(figures: Figures, file: Path) -> None:
    cases = _drop_in_cases(figures)
    figure, [axes] = canvas(height=0.55 * len(cases) + 1)
    bars(
        axes,
        [name for name, _ in cases],
        [
            ("torch's DataLoader", [row["vanilla_batch_s"] for _, row in cases], OTHERS),
            ("ConcurrentDataLoader", [row["ours_batch_s"] for _, row in cases], OURS),
        ],
        title=f"Time of a batch of {figures['batch_size']} objects; shorter is better",
        unit="s a batch (logarithmic)",
        log=True,
    )
    below(figure, axes)
    save(figure, file)


DROP_IN = Section(
    "drop_in",
    "Only the class name changed: single objects",
    "A script that reads one object an item from a bucket, with torch's DataLoader and with ConcurrentDataLoader, all "
    "other arguments the same. Sides alternate, each epoch in a process of its own; the time of a batch is that of an "
    "epoch, workers' start included, by its number of batches. Items must come in the sampler's order.",
    lambda figures: (
        f"{figures['latency_ms']} ms and {figures['bandwidth_mb_s']} MB/s a connection; measured "
        f"{figures['measured_latency_ms']} ms to the first byte"
    ),
    "none",
    _drop_in_body,
    _drop_in_plot,
    "Bars: seconds a batch by client, torch's DataLoader and ours",
)
