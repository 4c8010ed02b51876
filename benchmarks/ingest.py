"""How fast images become a dataset: one process and two, three checks, Ray, and the writers of other formats.

    python -m benchmarks.ingest [--json FILE] [--data DIR] [--without-rivals] [--quick]

The same JPEG photographs, as files on the local drive and in the page cache, become a dataset on the same drive. Each
turn is a fresh process whose clock starts after its imports; sides alternate over the rounds. Rivals write their own
formats with two processes, each in the environment of `benchmarks.peers`; they check nothing, so they are compared with
ours without a check. Ours still computes a digest of each value, and waits for the drive after each shard.

JSON: ``rows``: ``side, title, verify, processes, rounds, img_s, cpu_s_per_1000, error, spread``. ``scaling_2``: rate of
two processes ÷ rate of one in the same round, with decoding. ``verified_img_s_core, header_img_s_core``: images per
processor second of one process. ``vs_best_peer``: ours with two processes without a check ÷ the fastest rival in the
same round. ``fixed_s``: seconds of an import that do not depend on the number of images, from one with a quarter of
them. ``rss_mb``: peak memory of importing a million tiny dicts, ``rss_mb_tenth`` a tenth of them. ``rss_per_file``:
bytes by which the peak grows per file of an image folder. ``plan``: `at_scale`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.access import PRICES, PRICES_AS_OF
from benchmarks.command import bar, command_line, in_turns, publish
from benchmarks.figures import four_digits, with_spread
from benchmarks.harness import ask
from benchmarks.machine import read_into_page_cache
from benchmarks.peers.catalog import find
from benchmarks.peers.processes import EnvironmentFailed, python_of
from benchmarks.photos import PhotoFolder, make_photos, replicate_photos
from benchmarks.program import ROOT

_TIMEOUT_S = 600
_MACHINES = (1, 16, 64)
_CORES = 16  # of each machine of the extrapolation
_TERABYTES = 10


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 3200
    raw_bytes: int = 1_000_000_000
    num_rounds: int = 5
    num_tiny: int = 1_000_000
    num_files: int = 100_000


FULL = Load()
QUICK = Load(num_photos=8, raw_bytes=1, num_rounds=1, num_tiny=2000, num_files=200)


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
    share: int = 1  # imports one in so many images

    @property
    def reported(self) -> dict[str, Any]:
        """Its facts in the JSON."""
        return {"side": self.name, "title": self.title, "verify": self.verify, "processes": self.processes}


_OURS = "concurrent-loader"
OURS = (
    Side("decode_1", _OURS, verify="decode", processes=1),
    Side("decode_2", _OURS, verify="decode"),
    Side("header_1", _OURS, verify="header", processes=1),
    Side("header_2", _OURS, verify="header"),
    Side("none_1", _OURS, processes=1),
    Side("none_2", _OURS),
    Side("ray_2", f"{_OURS}, Ray", verify="decode", ray=True),
    Side("quarter", f"{_OURS}, a quarter", verify="header", processes=1, share=4),
)
_QUICK_SIDES = ("decode_1", "decode_2", "header_1", "none_2", "quarter")
RIVALS = (
    Side("litdata", "LitData optimize", "litdata", peer="litdata"),
    Side("mosaicml", "MosaicML MDSWriter", "mosaicml", peer="mosaicml"),
    Side("webdataset", "WebDataset ShardWriter", "webdataset", peer="webdataset"),
    Side("hf_datasets", "Hugging Face to_parquet", "hf_datasets", peer="hf_datasets"),
)


class _Measuring:
    def __init__(self, load: Load, data: Path, sides: Sequence[Side], console: Console) -> None:
        self._load = load
        self._data = data.resolve()
        self._sides = list(sides)
        self._console = console
        self._found: dict[str, dict[int, dict[str, Any]]] = {side.name: {} for side in sides}
        self._errors: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        made = make_photos(self._data, count=self._load.num_photos)
        photos = replicate_photos(made, min_bytes=self._load.raw_bytes)
        read_into_page_cache(photos.root)
        quarter = self._linked(photos, 4)
        try:
            with bar(self._console, "imports", self._load.num_rounds * len(self._sides)) as progress:
                for number, side in in_turns(self._sides, self._load.num_rounds):
                    self._turn(number, side, quarter if side.share > 1 else photos.root)
                    progress.advance()
            memory = self._memory(photos)
        finally:
            for folder in (quarter, self._data / "ingest-run", self._data / "ingest-tiny"):
                shutil.rmtree(folder, ignore_errors=True)
        rows = [self._row(side, photos.count) for side in self._sides]
        return figures(rows, self._found, photos, memory) | {"load": asdict(self._load)}

    def _linked(self, photos: PhotoFolder, share: int) -> Path:
        """Makes a folder of hard links to one in so many photographs."""
        folder = self._data / "ingest-quarter"
        shutil.rmtree(folder, ignore_errors=True)
        for path in photos.paths()[::share]:
            target = folder / path.relative_to(photos.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(path)
        return folder

    def _turn(self, number: int, side: Side, photos: Path) -> None:
        count = sum(1 for _ in photos.glob("*/*.jpg"))
        task = {**asdict(side), "photos": str(photos), "count": count}
        try:
            python = sys.executable
            if side.peer is not None:
                python = python_of(find(side.peer).environment, self._data / "peers" / "environments")
            self._found[side.name][number] = {**self._ask(python, task), "count": count}
        except (EnvironmentFailed, subprocess.SubprocessError, OSError, RuntimeError) as error:
            if side.peer is None:
                raise
            self._errors[side.name] = str(error).replace(str(self._data), "…").replace(str(ROOT), "…")[-500:]
            self._console.print(f"{side.title} fails:\n{error}", markup=False, style="red")

    def _ask(self, python: str, task: Mapping[str, Any]) -> dict[str, Any]:
        folder = self._data / "ingest-run"
        shutil.rmtree(folder, ignore_errors=True)
        return ask(python, "ingest_side", {**task, "folder": str(folder)}, timeout_s=_TIMEOUT_S)

    def _memory(self, photos: PhotoFolder) -> dict[str, float]:
        """Measures the peak memory of many tiny samples, and of many tiny files."""
        many, few = (
            self._ask(sys.executable, {"writer": "tiny", "count": count})["rss_mb"]
            for count in (self._load.num_tiny, self._load.num_tiny // 10)
        )
        data, folder = photos.paths()[0].read_bytes()[:600], self._data / "ingest-tiny"
        peaks = []
        for start, stop in ((0, self._load.num_files // 10), (self._load.num_files // 10, self._load.num_files)):
            for number in range(start, stop):
                path = folder / f"class{number % 100:03}" / f"{number:08}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            task = {"writer": "ours", "photos": str(folder), "verify": "none", "processes": 1, "count": stop}
            peaks.append(self._ask(sys.executable, task)["rss_mb"])
        grown = (peaks[1] - peaks[0]) * 1e6 / (self._load.num_files - self._load.num_files // 10)
        return {"rss_mb": round(many, 1), "rss_mb_tenth": round(few, 1), "rss_per_file": four_digits(max(0.0, grown))}

    def _row(self, side: Side, count: int) -> dict[str, Any]:
        turns = list(self._found[side.name].values())
        values = {
            "img_s": [turn["count"] / turn["wall_s"] for turn in turns],
            "cpu_s_per_1000": [1000 * turn["cpu_s"] / turn["count"] for turn in turns],
        }
        measured = with_spread(values) if turns else {**dict.fromkeys(values), "spread": {}}
        return {**side.reported, "rounds": len(turns), **measured, "error": self._errors.get(side.name)}


Turns = Mapping[str, Mapping[int, Mapping[str, Any]]]


def figures(
    rows: list[dict[str, Any]], found: Turns, photos: PhotoFolder, memory: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the JSON: the rows, and what they amount to."""
    per_core = {row["side"]: four_digits(1000 / row["cpu_s_per_1000"]) for row in rows if row["cpu_s_per_1000"]}
    scaling = _ratio(found, "decode_2", ["decode_1"])
    whole, quarter = (median(turn["wall_s"] for turn in found[name].values()) for name in ("header_1", "quarter"))
    turn = next(iter(found["none_2"].values()))
    made = {
        "scaling_2": scaling,
        "verified_img_s_core": per_core["decode_1"],
        "header_img_s_core": per_core["header_1"],
        "vs_best_peer": _ratio(found, "none_2", [side.name for side in RIVALS if found.get(side.name)]),
        "fixed_s": four_digits(max(0.0, (4 * quarter - whole) / 3)),
        **memory,
        "num_images": photos.count,
        "image_bytes": round(photos.mean_bytes),
        "shards_per_gb": four_digits(turn["num_shards"] / photos.num_bytes * 1e9),
    }
    return {"rows": rows, **made, "plan": at_scale(made), "prices_as_of": PRICES_AS_OF}


def _ratio(found: Turns, ours: str, others: Sequence[str]) -> float | None:
    """Returns the median over the rounds of our rate ÷ the fastest other one in the same round."""
    ratios = [
        min(found[name][number]["wall_s"] for name in others if number in found[name]) / turn["wall_s"]
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
            rows.append(
                {
                    "verify": verify,
                    "machines": machines,
                    "hours": four_digits((images / rate + measured["fixed_s"]) / 3600),
                    "mb_s_machine": four_digits(rate / machines * measured["image_bytes"] / 1e6),
                    "million_requests": four_digits((images + lists + 1.25 * shards) / 1e6),
                    "dollars": four_digits(dollars / 1e6),
                    "scan_gb": four_digits(images * measured["rss_per_file"] / 1e9),
                }
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark from the command line; returns the exit status."""
    parser = command_line("ingest", __doc__)
    parser.add_argument("--data", type=Path, default=Path(".demo"), help="folder for all that is made (default .demo)")
    parser.add_argument("--without-rivals", action="store_true", help="ours only")
    parser.add_argument("--rounds", type=int, help=f"of all sides (default {FULL.num_rounds})")
    parsed = parser.parse_args(arguments)
    load = QUICK if parsed.quick else FULL
    if parsed.rounds is not None:
        load = replace(load, num_rounds=parsed.rounds)
    sides: tuple[Side, ...] = OURS
    if parsed.quick:
        sides = tuple(side for side in OURS if side.name in _QUICK_SIDES)
    elif not parsed.without_rivals:
        sides += RIVALS
    return publish("ingest", lambda console: _Measuring(load, parsed.data, sides, console).run(), parsed.json)


if __name__ == "__main__":
    raise SystemExit(main())
