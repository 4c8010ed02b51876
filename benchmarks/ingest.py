"""How fast images become a dataset: one process and two, three checks, Ray, and the writers of other formats.

    python -m benchmarks.ingest [--json FILE] [--peers NAME,…] [--num-rounds N] [--quick]

The same JPEG photographs, as files on the local drive and in the page cache, become a dataset on the same drive. Each
turn is a fresh process whose clock starts after its imports; sides alternate over the rounds. Rivals write their own
formats with two processes, each in the environment of `benchmarks.peers`; they check nothing, so they are compared with
ours without a check. Ours still computes a digest of each value, and its data are on the drive when it returns; those
of the rivals are in the page cache. So each turn is also timed until the drive has everything (`os.sync`).

JSON: ``rows``: ``side, title, verify, processes, rounds, img_s, durable_img_s, cpu_s_per_1000, error, spread``.
``scaling_2``: rate of two processes ÷ rate of one in the same round, with decoding. ``verified_img_s_core,
header_img_s_core``: images per processor second of one process. ``vs_best_peer``: ours with two processes without a
check ÷ the fastest rival in the same round; ``durable_vs_best_peer``: until the drive has the data. ``fixed_s``:
seconds of an import that do not depend on the number of images, from one with a quarter of them. ``rss_mb``: peak
memory of importing a million tiny dicts, ``rss_mb_tenth`` a tenth of them. ``rss_per_file``: bytes by which the peak
grows per file of an image folder. ``plan``: `at_scale`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.access import PRICES, PRICES_AS_OF
from benchmarks.command import bar, in_turns, program
from benchmarks.figures import four_digits, with_spread
from benchmarks.harness import ROOT, ask
from benchmarks.machine import read_into_page_cache
from benchmarks.peers.catalog import find
from benchmarks.peers.figures import without_paths
from benchmarks.peers.job import paths
from benchmarks.peers.processes import python_of
from benchmarks.peers.turns import empty_folder
from benchmarks.photos import PhotoFolder, make_photos, replicate_photos

_TIMEOUT_S = 600
_MACHINES = (1, 16, 64)
_CORES = 16  # of each machine of the extrapolation
_TERABYTES = 10


@dataclass(frozen=True, slots=True)
class Side:
    """Who writes, and how."""

    name: str
    title: str
    writer: str = "ours"
    verify: str = "none"
    processes: int = 2
    ray: bool = False
    peer: str | None = None  # rival whose environment it runs in
    quarter: bool = False  # imports one in four images


_OURS = "concurrent-loader"
OURS = (
    Side("decode_1", _OURS, verify="decode", processes=1),
    Side("decode_2", _OURS, verify="decode"),
    Side("header_1", _OURS, verify="header", processes=1),
    Side("header_2", _OURS, verify="header"),
    Side("none_1", _OURS, processes=1),
    Side("none_2", _OURS),
    Side("ray_2", f"{_OURS}, Ray", verify="decode", ray=True),
    Side("quarter", f"{_OURS}, a quarter", verify="header", processes=1, quarter=True),
)
RIVALS = (
    Side("litdata", "LitData optimize", "litdata", peer="litdata"),
    Side("mosaicml", "MosaicML MDSWriter", "mosaicml", peer="mosaicml"),
    Side("webdataset", "WebDataset ShardWriter", "webdataset", peer="webdataset"),
    Side("hf_datasets", "Hugging Face to_parquet", "hf_datasets", peer="hf_datasets"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 3200
    raw_bytes: int = 1_000_000_000
    num_rounds: int = 5
    num_tiny: int = 1_000_000
    num_files: int = 100_000
    ours: str = ",".join(side.name for side in OURS)
    peers: str = ",".join(side.name for side in RIVALS)


QUICK = Load(8, 1, 1, num_tiny=2000, num_files=200, ours="decode_1,decode_2,header_1,none_2,quarter", peers="")


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Lets the sides take turns, and measures memory."""
    data = Path(".demo").resolve()
    photos = replicate_photos(make_photos(data, count=load.num_photos), min_bytes=load.raw_bytes)
    read_into_page_cache(photos.root)
    by_name = {side.name: side for side in (*OURS, *RIVALS)}
    sides = [by_name[name] for name in filter(None, f"{load.ours},{load.peers}".split(","))]
    found: dict[str, dict[int, dict[str, Any]]] = {side.name: {} for side in sides}
    errors: dict[str, str] = {}
    with (
        empty_folder(data / "ingest-quarter") as quarter,
        bar(console, "imports", load.num_rounds * len(sides)) as progress,
    ):
        for path in photos.paths()[::4]:
            target = Path(quarter) / path.relative_to(photos.root)
            target.parent.mkdir(exist_ok=True)
            target.hardlink_to(path)
        for number, side in in_turns(sides, load.num_rounds):
            folder = quarter if side.quarter else str(photos.root)
            task = {**asdict(side), "photos": folder, "count": len(paths(folder))}
            try:
                found[side.name][number] = _import(data, task, side.peer) | {"count": task["count"]}
            except (subprocess.SubprocessError, OSError, RuntimeError) as error:
                if side.peer is None:
                    raise
                errors[side.name] = without_paths(str(error), str(data), str(ROOT))[-500:]
                console.print(f"{side.title} fails:\n{error}", markup=False, style="red")
            progress.advance()
    rows = [_row(side, list(found[side.name].values()), errors.get(side.name)) for side in sides]
    return figures(rows, found, photos, _memory(load, data, photos)) | {"load": asdict(load)}


def _import(data: Path, task: Mapping[str, Any], peer: str | None = None) -> dict[str, Any]:
    """Does a task in a fresh process, of the environment of a peer if there is one."""
    environment = find(peer).environment if peer else None
    with empty_folder(data / "ingest-run") as folder:
        task = {**task, "folder": f"{folder}/made"}
        return ask(python_of(environment, data / "peers" / "environments"), "ingest_side", task, timeout_s=_TIMEOUT_S)


def _memory(load: Load, data: Path, photos: PhotoFolder) -> dict[str, float]:
    """Measures the peak memory of many tiny samples, and of many tiny files."""
    counts = (load.num_tiny, load.num_tiny // 10)
    many, few = (_import(data, {"writer": "tiny", "count": count})["rss_mb"] for count in counts)
    first, tenth, peaks = photos.paths()[0].read_bytes()[:600], load.num_files // 10, []
    with empty_folder(data / "ingest-tiny") as folder:
        for start, stop in ((0, tenth), (tenth, load.num_files)):
            for number in range(start, stop):
                path = Path(folder, f"class{number % 100:03}", f"{number:08}.jpg")
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(first)
            task = {"writer": "ours", "photos": folder, "verify": "none", "processes": 1, "count": stop}
            peaks.append(_import(data, task)["rss_mb"])
    grown = (peaks[1] - peaks[0]) * 1e6 / (load.num_files - tenth)
    return {"rss_mb": round(many, 1), "rss_mb_tenth": round(few, 1), "rss_per_file": four_digits(max(0.0, grown))}


def _row(side: Side, turns: Sequence[Mapping[str, Any]], error: str | None) -> dict[str, Any]:
    values = {
        "img_s": [turn["count"] / turn["wall_s"] for turn in turns],
        "durable_img_s": [turn["count"] / turn["durable_s"] for turn in turns],
        "cpu_s_per_1000": [1000 * turn["cpu_s"] / turn["count"] for turn in turns],
    }
    measured = with_spread(values) if turns else {**dict.fromkeys(values), "spread": {}}
    facts = {"side": side.name, "title": side.title, "verify": side.verify, "processes": side.processes}
    return {**facts, "rounds": len(turns), **measured, "error": error}


Turns = Mapping[str, Mapping[int, Mapping[str, Any]]]


def figures(
    rows: list[dict[str, Any]], found: Turns, photos: PhotoFolder, memory: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the JSON: the rows, and what they amount to."""
    per_core = {row["side"]: four_digits(1000 / row["cpu_s_per_1000"]) for row in rows if row["cpu_s_per_1000"]}
    scaling = _ratio(found, "decode_2", ["decode_1"])
    whole, quarter = (median(turn["wall_s"] for turn in found[name].values()) for name in ("header_1", "quarter"))
    turn, rivals = next(iter(found["none_2"].values())), [side.name for side in RIVALS if found.get(side.name)]
    made = {
        "scaling_2": scaling,
        "verified_img_s_core": per_core["decode_1"],
        "header_img_s_core": per_core["header_1"],
        "vs_best_peer": _ratio(found, "none_2", rivals),
        "durable_vs_best_peer": _ratio(found, "none_2", rivals, "durable_s"),
        "fixed_s": four_digits(max(0.0, (4 * quarter - whole) / 3)),
        **memory,
        "num_images": photos.count,
        "image_bytes": round(photos.mean_bytes),
        "shards_per_gb": four_digits(turn["num_shards"] / photos.num_bytes * 1e9),
    }
    return {"rows": rows, **made, "plan": at_scale(made), "prices_as_of": PRICES_AS_OF}


def _ratio(found: Turns, ours: str, others: Sequence[str], key: str = "wall_s") -> float | None:
    """Returns the median over the rounds of our rate ÷ the fastest other one in the same round."""
    ratios = [
        min(found[name][number][key] for name in others if number in found[name]) / turn[key]
        for number, turn in found[ours].items()
        if any(number in found[name] for name in others)
    ]
    return four_digits(median(ratios)) if ratios else None


def at_scale(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Extrapolates to 10 TB of such images, from a bucket to a bucket, on machines of 16 cores.

    hours = images ÷ (machines × 16 × images per processor second × scaling_2 ÷ 2), plus the fixed seconds. Requests: a
    GET per image, a LIST per 1,000 images and machine, a PUT per shard and part (of four shards); a PUT costs what a
    LIST costs. ``scan_gb``: memory of a machine for the list of an image folder.
    """
    images = _TERABYTES * 1e12 / measured["image_bytes"]
    shards = measured["shards_per_gb"] * _TERABYTES * 1000
    price = next(each for each in PRICES if each.store == "S3 Standard, same region")
    rows = []
    for verify, per_core in (("decode", "verified_img_s_core"), ("header", "header_img_s_core")):
        for machines in _MACHINES:
            rate = machines * _CORES * measured[per_core] * min(1.0, (measured["scaling_2"] or 2) / 2)
            lists = machines * images / 1000
            dollars = images * price.get_per_million + (lists + 1.25 * shards) * price.list_per_million
            values = {
                "hours": (images / rate + measured["fixed_s"]) / 3600,
                "mb_s_machine": rate / machines * measured["image_bytes"] / 1e6,
                "million_requests": (images + lists + 1.25 * shards) / 1e6,
                "dollars": dollars / 1e6,
                "scan_gb": images * measured["rss_per_file"] / 1e9,
            }
            rounded = {name: four_digits(value) for name, value in values.items()}
            rows.append({"verify": verify, "machines": machines, **rounded})
    return rows


main = program("ingest", __doc__, run_benchmark, Load(), QUICK, "num_rounds", peers=Load().peers.split(","))

if __name__ == "__main__":
    raise SystemExit(main())
