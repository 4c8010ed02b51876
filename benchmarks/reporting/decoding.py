"""The report's part about what is done to pictures: decoding, lossless pictures, pipelines, threads, the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.reporting.charts import OTHERS, OURS, OURS_PALE, bars, canvas, legend, named, save
from benchmarks.reporting.markdown import Figures, number, percent, ranged, table
from benchmarks.reporting.section import Section

__all__ = ["DECODE", "GPU", "LOSSLESS", "PIPELINES", "SCALING"]

_NOWHERE = "none: everything is in memory"


# -- decoding ----------------------------------------------------------------------------------------------------------

_SETS = {"110kb": "500×375, about 110 KB", "35kb": "500×375, about 35 KB", "large": "2000×1500"}
_ALONE = "decode: "


def _recipes(figures: Figures) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in figures["rows"]:
        found.setdefault(row["recipe"], {})[row["set"]] = row
    return found


def _decode_body(figures: Figures) -> str:
    recipes = _recipes(figures)

    def rows(*, alone: bool) -> list[list[object]]:
        return [
            [name.removeprefix(_ALONE), *(by_set[each]["images_s_core"] for each in _SETS),
             *(by_set[each]["cpu_s_per_1000"] for each in _SETS)]
            for name, by_set in recipes.items() if name.startswith(_ALONE) == alone
        ]  # fmt: skip

    titles = ["", *(f"{each}, images/s" for each in _SETS.values()), *(f"{each}, CPU s/1,000" for each in _SETS)]
    return "\n\n".join(
        [
            "Decode, random resized crop to 224², flip; a core:",
            table(["recipe", *titles[1:]], rows(alone=False)),
            "Decoding the whole picture alone; a core:",
            table(["library", *titles[1:]], rows(alone=True)),
            (
                f"Two threads do {number(figures['two_thread_scaling'])} times as much as one. Mean difference from "
                f"the picture decoded whole, cropped and resized with antialiasing: {number(figures['mean_error'])} "
                f"gray levels. {figures['rounds']} rounds, the median of each picture's, summed: there are no "
                "extremes. Memory is not measured here. A dash: not installed."
            ),
        ]
    )


def _decode_plot(figures: Figures, file: Path) -> None:
    recipes = {name: found for name, found in _recipes(figures).items() if not name.startswith(_ALONE)}
    names = list(recipes)
    figure, panels = canvas(len(_SETS), height=2.3)
    for axes, (each, title) in zip(panels, _SETS.items(), strict=True):
        values = [found[each]["images_s_core"] for found in recipes.values()]
        colours = [OURS if name.startswith("ours") else OTHERS for name in names]
        bars(axes, names, [("", values, colours)], title=title, unit="images a second and core")
        if axes is not panels[0]:
            axes.set_yticklabels([])
    save(figure, file)


DECODE = Section(
    "decode",
    "Decoding JPEGs on a core",
    "Real photographs in three sets. Decoding alone; and decode, random resized crop to 224×224 and flip, every recipe "
    "with the same boxes and its best settings. One thread each, processor time, picture by picture in turns.",
    lambda figures: _NOWHERE,
    "none",
    _decode_body,
    _decode_plot,
    "Bars: images a second and core by recipe, for three sets of photographs",
)

# -- lossless pictures -------------------------------------------------------------------------------------------------


def _lossless_body(figures: Figures) -> str:
    told = []
    for name in dict.fromkeys(row["set"] for row in figures["rows"]):
        keys = ("bits_per_pixel", "vs_png", "encode_mpix_s", "decode_mpix_s")
        rows = [
            [row["codec"], *(["not installed", "", "", ""] if row.get("missing") else [row.get(key) for key in keys])]
            for row in figures["rows"]
            if row["set"] == name
        ]
        told += [
            f"{name.capitalize()}:",
            table(["codec", "bits a pixel", "÷ PNG", "encoded, 10⁶ pixels/s", "decoded, 10⁶ pixels/s"], rows),
        ]
    told.append(
        f"The fastest PNG decoder here is {figures['best_png']}. A crop of 512² out of 2048×1024 takes "
        f"{number(figures['crop_vs_full'])} of the whole picture's time. {figures['rounds']} rounds, the median of "
        "each picture's, summed: there are no extremes. Memory is not measured here. A dash for size and encoding: the "
        "files of the first codec of the same format are decoded."
    )
    return "\n\n".join(told)


def _lossless_plot(figures: Figures, file: Path) -> None:
    rows = [row for row in figures["rows"] if row["set"] == "photographs" and not row.get("missing")]
    rows.sort(key=lambda row: float(row["decode_mpix_s"]), reverse=True)
    names = [row["codec"] for row in rows]
    sizes = {row["codec"].split(",")[0]: row["vs_png"] for row in rows if "vs_png" in row}
    colours = [OURS if name.startswith("ours") else OTHERS for name in names]
    figure, panels = canvas(2, height=0.24 * len(rows) + 1)
    rates = [row["decode_mpix_s"] for row in rows]
    bars(panels[0], names, [("", rates, colours)], title="Decoding", unit="10⁶ pixels a second and core", log=True)
    # Codecs of one format share its files, which have one size.
    known = [row.get("vs_png", 1.0 if row["codec"].startswith("PNG") else sizes.get("ours")) for row in rows]
    bars(panels[1], names, [("", known, colours)], title="Size of the files; PNG is 1", unit="÷ PNG, level 6")
    panels[1].set_yticklabels([])
    panels[1].axvline(1, color="black", linewidth=0.8, linestyle=":")
    save(figure, file)


LOSSLESS = Section(
    "lossless",
    "Lossless pictures",
    "The ten photographs that scikit-image and scikit-learn carry, full size, and mosaics of them of 2048×1024, in our "
    "format and in others. One thread each, processor time, picture by picture in turns; that ours gives back every "
    "pixel is checked first. L3's scheme is our own writing of it in numpy: its size counts, its rate is numpy's.",
    lambda figures: _NOWHERE,
    "none",
    _lossless_body,
    _lossless_plot,
    "Bars: decoding rate and size of lossless codecs on photographs",
)

# -- pipelines ---------------------------------------------------------------------------------------------------------

_PLACES = {"cpu": "by picture", "device": "by batch"}


def _pipelines_body(figures: Figures) -> str:
    rows = [
        [row["operations"], row["source"], _PLACES[row["place"]], ranged(row["epoch_s"], row["spread_s"]),
         row["images_s"], percent(row["waiting_share"]), percent(row["augmenting_share"])]
        for row in figures["rows"]
    ]  # fmt: skip
    theirs = figures["zolnouri"]
    changes = [
        [what, *(f"{100 * figures[f'{name}_change_{each}']:+.0f} %" for each in ("few", "many")),
         f"{100 * theirs[name]:+.0f} %"]
        for name, what in (("reader", "shards"), ("device", "shards and augmentation by batch"))
    ]  # fmt: skip
    titles = ["augmentations", "source", "augmented", "epoch, s (extremes)", "images/s", "waiting", "augmenting"]
    return "\n\n".join(
        [
            table(titles, rows, num_left=3),
            "Change of an epoch's time over files and augmentation by picture, beside what the authors published (on a "
            "GPU; here the device is: " + figures["device"] + "):",
            table(["", "few", "many", "published"], changes),
            (
                f"{figures['num_samples']:,} pictures, {figures['rounds']} rounds. Processor time and memory are not "
                "measured here."
            ),
        ]
    )


def _pipelines_plot(figures: Figures, file: Path) -> None:
    figure, panels = canvas(2, height=2.0)
    for axes, operations in zip(panels, ("few", "many"), strict=True):
        rows = [row for row in figures["rows"] if row["operations"] == operations]
        colours = [OURS if row["source"] == "shards" else OTHERS for row in rows]
        bars(
            axes,
            [f"{row['source']}, {_PLACES[row['place']]}" for row in rows],
            [("", [row["epoch_s"] for row in rows], colours)],
            title=f"{operations} augmentations; shorter is better",
            unit="s an epoch",
            extremes=[[tuple(row["spread_s"]) for row in rows]],
        )
        if axes is not panels[0]:
            axes.set_yticklabels([])
    save(figure, file)


PIPELINES = Section(
    "pipelines",
    "Four pipelines",
    "{files, shards} × {augmentation by picture, by batch on the device}, with few and with many augmentations, as in "
    "Zolnouri, Li and Partovi Nia (arXiv 2005.02130). All train the same small network with the same steps; pipelines "
    "take turns in every round.",
    lambda figures: "none: the local drive",
    "page cache warm",
    _pipelines_body,
    _pipelines_plot,
    "Bars: seconds an epoch of the four pipelines, few and many augmentations",
)

# -- threads and processes ---------------------------------------------------------------------------------------------


def _scaling_body(figures: Figures) -> str:
    ratios = figures["ratios"]
    rows = [
        [row["transform"], f"{row['n']} {row['mode']}", row["samples_s"],
         ratios[f"{row['transform']}-{row['mode']}-{row['n']}"], row["cpu_s_per_1000"], row["peak_rss_mb"],
         row["start_s"]]
        for row in figures["rows"]
    ]  # fmt: skip
    titles = ["transform", "side", "samples/s", "÷ one thread", "CPU s / 1,000", "peak memory, MB", "first batch, s"]
    return table(titles, rows, num_left=2) + (
        f"\n\n{figures['load']['num_rounds']} rounds, medians; ratios are within a round; extremes are not kept."
    )


def _scaling_plot(figures: Figures, file: Path) -> None:
    figure, panels = canvas(2, height=2.8)
    for axes, transform in zip(panels, ("native", "python"), strict=True):
        for mode, colour, marker in (("threads", OURS, "o"), ("processes", OURS_PALE, "s")):
            rows = [row for row in figures["rows"] if (row["transform"], row["mode"]) == (transform, mode)]
            x = [row["n"] for row in rows]
            y = [figures["ratios"][f"{transform}-{mode}-{row['n']}"] for row in rows]
            axes.plot(x, y, color=colour, marker=marker, label=mode)
        axes.set_ylim(0, 2.2)
        axes.set_xticks([1, 2, 4])
        held = "releases" if transform == "native" else "holds"
        named(axes, title=f"{transform} transform: it {held} the GIL", x="threads or processes", y="÷ one thread")
    legend(panels[0], place="lower right")
    save(figure, file)


SCALING = Section(
    "scaling",
    "Threads and worker processes",
    "JPEGs in shards on the local drive: only the processors count. The *native* transform decodes and crops by "
    "libraries that release the GIL, *python* adds a loop in pure Python that holds it. Each measurement has a process "
    "of its own, sides alternate over the rounds, the second of three epochs is timed.",
    lambda figures: "none: the local drive",
    "page cache warm",
    _scaling_body,
    _scaling_plot,
    "Lines: rate relative to one thread, over threads and processes",
)

# -- the GPU -----------------------------------------------------------------------------------------------------------


def _gpu_body(figures: Figures) -> str:
    decoding = [[row["what"], row["path"], row["batch_size"], row["images_s"]] for row in figures["decode"]]
    training = [
        [row["side"], row["images_s"], percent(row["gpu_wait_share"]), row["cpu_s_per_1000"], row["first_batch_s"]]
        for row in figures["training"]["rows"]
    ]
    return "\n\n".join(
        [
            table(["what", "path", "batch", "images/s"], decoding, num_left=2),
            table(["training from", "images/s", "GPU waits", "CPU s / 1,000", "first batch, s"], training),
            "Medians over the rounds; sides take turns; extremes and peak memory are not kept.",
        ]
    )


def _gpu_plot(figures: Figures, file: Path) -> None:
    rows = figures["training"]["rows"]
    names = {"synthetic": "data on the device", "bucket": "ours, from the bucket", "torch": "torch, local files"}
    colours = {"synthetic": "#000000", "bucket": OURS, "torch": OTHERS}
    figure, panels = canvas(2, height=1.7)
    paint = [colours[row["side"]] for row in rows]
    labels = [names[row["side"]] for row in rows]
    bars(panels[0], labels, [("", [row["images_s"] for row in rows], paint)], title="ResNet-50, bf16", unit="images/s")
    waits = [100 * row["gpu_wait_share"] for row in rows]
    bars(panels[1], labels, [("", waits, paint)], title="The GPU waits", unit="% of the time")
    panels[1].set_yticklabels([])
    save(figure, file)


GPU = Section(
    "gpu",
    "From a bucket to a GPU",
    "ResNet-50 in bf16, from shards in a bucket with a cold cache, decoded and cropped on the device; against the same "
    "steps over one batch that is on the device already, and against torch's DataLoader that decodes the same files "
    "from the local drive on the CPU. The GPU's waiting is measured on the GPU, by events.",
    lambda figures: str(figures["training"].get("latency", "see the file")),
    "cold: an empty cache folder every round",
    _gpu_body,
    _gpu_plot,
    "Bars: images a second and the share of time that the GPU waits",
)
