"""What happens as work grows, and by which power: samples, shards, nodes, the size of a sample.

    python -m benchmarks.scale [--json FILE] [--quick]

Four series. ``slopes`` has, for each figure, the exponent of its power law (least squares over logarithms): over all
points, and over the last two, because a fixed cost hides growth at small sizes. 0: does not depend on it; 1: in
proportion.

- ``samples``, 10³ to 10⁷ of 110 KB in shards of 8 MiB. Only the manifest is written, by the code that writes real ones;
  the real dataset and loader open it, plan, seek and resume, and nothing else is read. Keys of a row: ``num_samples,
  num_shards, manifest_bytes, rss_added_mb``, and those of `benchmarks.scale_points.measure_opening`.
- ``shards``, about 1 to 1,000 of them with the same 128 MiB in all, so with fewer samples each; written and read on the
  local drive, shuffled in a window that holds nearly all of them, no cache: ``num_shards, num_samples, sample_bytes,
  open_s, first_batch_s, samples_s, mb_s, cpu_s_per_1000, gets, rss_added_mb``.
- ``nodes``, 1 to 64, counted in the plans of an epoch of a dataset like ImageNet, nothing being sent; with 8
  groups and with the default number: the keys of `benchmarks.scale_points.simulate_nodes`.
- ``sample_bytes``, 100 B to 10 MB, written and read like ``shards``, with the same keys.

Times are medians over the rounds (``spread`` of a row has the extremes), after one round that is not counted; the page
cache is warm. Each row that has ``rss_added_mb`` has a process of its own; that is the highest resident memory since
the imports. ``load`` is how much was measured. The tables in docs/explanation/order.md come from the JSON file; see
`benchmarks.report_page`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.command import bar, program
from benchmarks.figures import four_digits, with_spread
from benchmarks.fresh_process import in_fresh_process
from benchmarks.scale_points import Point, measure_opening, measure_reading, simulate_nodes
from benchmarks.synthetic import synthetic_manifest, write_manifest, write_noise
from concurrent_loader.order.options import DEFAULT_GROUPS

_POINT_S = 1200.0  # a point that takes longer has hung
Row = dict[str, Any]

# Series → what grows, and the figures whose power is found.
_SERIES = {
    "samples": (
        "num_samples",
        "num_shards manifest_bytes open_s loader_s shuffle_s batch_s seek_s resume_s schedule_s rss_added_mb",
    ),
    "shards": ("num_shards", "open_s first_batch_s samples_s mb_s cpu_s_per_1000 gets rss_added_mb"),
    "nodes": (
        "nodes",
        """gets bytes_ratio shared_shards most_over_mean least_over_mean requests_s busiest_requests_s limit_share
        objects_limit_share""",
    ),
    "sample_bytes": ("sample_bytes", "num_shards first_batch_s samples_s mb_s cpu_s_per_1000 gets rss_added_mb"),
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    samples: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)  # points of the first series
    shards: tuple[int, ...] = (1, 10, 100, 1_000)  # points of the second
    shard_series_bytes: int = 128 << 20  # payload of each of them
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # points of the third; they divide ``global_batch_size``
    node_samples: int = 1_281_167  # samples of the dataset that the nodes read
    sample_sizes: tuple[int, ...] = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)  # points of the fourth, bytes
    sample_series_bytes: int = 200_000_000  # payload of each of them, as far as ``most_samples`` allows
    most_samples: int = 100_000  # of any dataset that is really written
    num_rounds: int = 5  # that are counted
    global_batch_size: int = 4096  # of all nodes together
    node_samples_s: float = 20_000.0  # that a node consumes: eight GPUs at 2,500 images per second each
    photo_bytes: int = 110_000  # of a sample where only a manifest is written
    own_processes: bool = True  # for each row that has ``rss_added_mb``; starting them takes seconds


FULL = Load()
QUICK = Load(
    samples=(1_000, 10_000), shards=(1, 10), shard_series_bytes=1 << 20, nodes=(1, 2, 4), node_samples=50_000,
    sample_sizes=(100, 10_000), sample_series_bytes=200_000, most_samples=1_000, num_rounds=1, own_processes=False,
)  # fmt: skip


def points(load: Load, folder: str) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yields the series of each point, and what measures it, with datasets that stay in the folder."""
    for num_samples in load.samples:
        yield "samples", partial(_opened, load, num_samples, f"{folder}/samples-{num_samples}")
    for num_shards in load.shards:
        sample_bytes = 4096 - 64
        num_samples = load.shard_series_bytes // 4096
        # The writer fills shards up to a size: a little room for each shard's tail, or there would be one more.
        shard_bytes = load.shard_series_bytes // num_shards + max(4096, load.shard_series_bytes // num_shards // 64)
        yield "shards", partial(_read, load, f"{folder}/shards-{num_shards}", num_samples, sample_bytes, shard_bytes)
    manifest = synthetic_manifest(load.node_samples, load.photo_bytes)
    for groups in (DEFAULT_GROUPS, None):
        for nodes in load.nodes:
            sizes: Row = {"global_batch_size": load.global_batch_size, "node_samples_s": load.node_samples_s}
            yield "nodes", partial(simulate_nodes, manifest, nodes, groups=groups, **sizes)
    for sample_bytes in load.sample_sizes:
        num_samples = max(1, min(load.most_samples, load.sample_series_bytes // sample_bytes))
        yield "sample_bytes", partial(_read, load, f"{folder}/bytes-{sample_bytes}", num_samples, sample_bytes, 8 << 20)


def _opened(load: Load, num_samples: int, url: str) -> Row:
    manifest = synthetic_manifest(num_samples, load.photo_bytes)
    manifest_bytes = write_manifest(url, manifest)
    point = _point(load, measure_opening, url, load.num_rounds)
    return {
        "num_samples": num_samples,
        "num_shards": len(manifest.shards),
        "manifest_bytes": manifest_bytes,
        **with_spread(point.seconds, four_digits),
        "rss_added_mb": point.rss_added_mb,
    }


def _point(load: Load, measure: Callable[..., Point], *arguments: Any) -> Point:
    if not load.own_processes:
        return measure(*arguments)
    return in_fresh_process(measure, arguments, what=str(arguments), timeout_s=_POINT_S)


def _read(load: Load, url: str, num_samples: int, sample_bytes: int, shard_bytes: int) -> Row:
    manifest = write_noise(url, num_samples=num_samples, sample_bytes=sample_bytes, shard_bytes=shard_bytes)
    batch_size = min(256, max(1, num_samples // 16))
    point = _point(load, measure_reading, url, batch_size, load.num_rounds)
    medians = {name: median(times) for name, times in point.seconds.items()}
    spread = with_spread(point.seconds, four_digits)["spread"]
    return {
        "num_shards": len(manifest.shards),
        "num_samples": num_samples,
        "sample_bytes": sample_bytes,
        "batch_size": batch_size,
        "open_s": medians["open_s"],
        "first_batch_s": medians["first_batch_s"],
        "samples_s": num_samples / medians["epoch_s"],
        "mb_s": num_samples * sample_bytes / medians["epoch_s"] / 1e6,
        "cpu_s_per_1000": 1000 * medians["cpu_s"] / num_samples,
        "gets": point.gets,
        "rss_added_mb": point.rss_added_mb,
        "spread": {name: extremes for name, extremes in spread.items() if name != "cpu_s"},
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Fits ``value = c · size ** exponent`` to the positive values; None with fewer than two points."""
    points = np.log([(size, value) for size, value in zip(sizes, values, strict=True) if value > 0])
    if len(points) == 0 or len(np.unique(points[:, 0])) < 2:
        return None
    return round(float(np.polyfit(points[:, 0], points[:, 1], 1)[0]), 3)


def fit(found: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Returns series → figure → exponents; each way to group nodes is a series."""
    half = len(found["nodes"]) // 2
    named = {
        "samples": found["samples"],
        "shards": found["shards"],
        "nodes, 8 groups": found["nodes"][:half],
        "nodes, groups by default": found["nodes"][half:],
        "sample_bytes": found["sample_bytes"],
    }
    fitted: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, rows in named.items():
        size_key, keys = _SERIES[name.partition(",")[0]]
        sizes = [row[size_key] for row in rows]
        values = {key: [row[key] for row in rows] for key in keys.split()}
        fitted[name] = {
            key: {"all": exponent(sizes, each), "last": exponent(sizes[-2:], each[-2:])} for key, each in values.items()
        }
    return fitted


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures all series and fits their powers."""
    found: dict[str, list[Row]] = {name: [] for name in _SERIES}
    with tempfile.TemporaryDirectory(prefix="scale-benchmark-") as folder:
        asked = list(points(load, folder))
        with bar(console, "scale", len(asked)) as progress:
            for series, measure in asked:
                row = measure()
                digits = {
                    name: four_digits(value) if isinstance(value, float) else value for name, value in row.items()
                }
                found[series].append(digits)
                progress.advance()
    return {**found, "slopes": fit(found), "load": asdict(load)}


main = program("scale", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
