"""What happens as work grows, and by which power: samples, shards, nodes, the size of a sample, rows per shard.

    python -m benchmarks.scale [--json FILE] [--quick]

Five series. ``slopes`` has, for each figure, the exponent of its power law (least squares over logarithms): over all
points, and over the last two, since a fixed cost hides growth at small sizes. 0: does not depend on it; 1: in
proportion.

- ``samples``, 10³ to 10⁷ of 110 KB in shards of 8 MiB. Only the manifest is written, by the code that writes real ones;
  it is opened, planned, sought in and resumed by the real dataset and loader, and nothing else is read. Keys of a row:
  ``num_samples, num_shards, manifest_bytes, open_s, loader_s, shuffle_s, batch_s, seek_s, resume_s, schedule_s,
  rss_added_mb`` (`benchmarks.scale_points.OpenPoint` says what each is).
- ``shards``, about 1 to 1,000 of them with the same 128 MiB in all, so with fewer samples each; written and read on the
  local drive, shuffled in a window that holds nearly all of them, no cache:
  ``num_shards, num_samples, sample_bytes, open_s, first_batch_s, samples_s, mb_s, cpu_s_per_1000, gets,
  rss_added_mb``.
- ``nodes``, 1 to 64, counted in the plans of an epoch of a dataset like ImageNet, nothing being sent; with the default
  number of groups and with one a node: the keys of `benchmarks.simulated_nodes.NodesRow`.
- ``sample_bytes``, 100 B to 10 MB, written and read like ``shards``, with the same keys.
- ``rows``, small rows of each column kind, about 200, 2,000 and 20,000 per shard, in one dataset of 20,000 rows, read
  like ``shards``: the same keys, and ``kind`` and ``rows_per_shard``. The slope of ``samples_s`` shows whether the work
  for a row depends on its shard.

Times are medians over the rounds (``spread`` of a row has the extremes), after one round that is not counted; the page
cache is warm. Each row that has ``rss_added_mb`` has a process of its own; that is the highest resident memory since
the imports, of ``samples`` in the round that is not counted. ``load`` says how much was measured, ``machine`` and
``versions`` on what. The tables in docs/explanation/order.md come from the JSON file; see `benchmarks.report_page`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks.console import bar, ends_with_one_line
from benchmarks.growth import slopes
from benchmarks.machine import describe_machine, versions
from benchmarks.output import present
from benchmarks.scale_points import OpenPoint, ReadPoint, Times, measure_opening, measure_reading
from benchmarks.simulated_nodes import simulate_nodes
from benchmarks.synthetic import row_bytes, synthetic_manifest, write_manifest, write_noise, write_rows

T = TypeVar("T")
Row = dict[str, Any]

_SIZES = {
    "samples": "num_samples",
    "shards": "num_shards",
    "nodes": "nodes",
    "sample_bytes": "sample_bytes",
    "rows": "rows_per_shard",
}
_SHOWN = {
    "samples": "num_shards manifest_bytes open_s loader_s shuffle_s batch_s seek_s resume_s schedule_s rss_added_mb",
    "shards": "open_s first_batch_s samples_s mb_s cpu_s_per_1000 gets rss_added_mb",
    "nodes": (
        "gets bytes_ratio shared_shards most_over_mean least_over_mean requests_s busiest_requests_s limit_share "
        "objects_limit_share"
    ),
    "sample_bytes": "num_shards first_batch_s samples_s mb_s cpu_s_per_1000 gets rss_added_mb",
    "rows": "num_shards first_batch_s samples_s cpu_s_per_1000 gets",
}
_DEFAULT_GROUPS, _GROUP_EACH = "nodes, groups by default", "nodes, a group each"


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    samples: tuple[int, ...]  # points of the first series
    shards: tuple[int, ...]  # points of the second
    shard_series_bytes: int  # payload of each of them
    nodes: tuple[int, ...]  # points of the third; they divide ``global_batch_size``
    node_samples: int  # samples of the dataset that the nodes read
    sample_sizes: tuple[int, ...]  # points of the fourth, in bytes
    sample_series_bytes: int  # payload of each of them, as far as ``most_samples`` allows
    most_samples: int  # of any dataset that is really written
    row_kinds: tuple[str, ...]  # column types of the fifth
    rows_per_shard: tuple[int, ...]  # points of the fifth, for each column type
    num_rows: int  # of each of its datasets
    num_rounds: int  # that are counted
    global_batch_size: int = 4096  # of all nodes together
    node_samples_s: float = 20_000.0  # what a node is assumed to consume: eight GPUs at 2,500 images a second each
    photo_bytes: int = 110_000  # of a sample where only a manifest is written
    # whether each row that has ``rss_added_mb`` has a process of its own; starting them takes seconds
    own_processes: bool = True

    @property
    def num_points(self) -> int:
        """Rows of all series."""
        return (
            len(self.samples) + len(self.shards) + 2 * len(self.nodes) + len(self.sample_sizes) + self._num_row_points
        )

    @property
    def _num_row_points(self) -> int:
        return len(self.row_kinds) * len(self.rows_per_shard)


FULL = Load(
    samples=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    shards=(1, 10, 100, 1_000),
    shard_series_bytes=128 << 20,
    nodes=(1, 2, 4, 8, 16, 32, 64),
    node_samples=1_281_167,
    sample_sizes=(100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    sample_series_bytes=200_000_000,
    most_samples=100_000,
    row_kinds=("str", "json", "bytes", "float32[16]", "int32[...]"),
    rows_per_shard=(200, 2_000, 20_000),
    num_rows=20_000,
    num_rounds=5,
)
QUICK = Load(
    samples=(1_000, 10_000),
    shards=(1, 10),
    shard_series_bytes=1 << 20,
    nodes=(1, 2, 4),
    node_samples=50_000,
    sample_sizes=(100, 10_000),
    sample_series_bytes=200_000,
    most_samples=1_000,
    row_kinds=("str", "int32[...]"),
    rows_per_shard=(50, 500),
    num_rows=500,
    num_rounds=1,
    own_processes=False,
)


def in_own_process(measure: Callable[..., T], *arguments: Any) -> T:
    """Calls a function in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def _here(measure: Callable[..., T], *arguments: Any) -> T:
    return measure(*arguments)


def measure(load: Load, folder: Path, *, on_point: Callable[[], object] = lambda: None) -> dict[str, list[Row]]:
    """Measures all series."""
    found: dict[str, list[Row]] = {name: [] for name in _SHOWN}

    def add(series: str, row: Row) -> None:
        found[series].append(row)
        on_point()

    for num_samples in load.samples:
        add("samples", _opened(load, num_samples, str(folder / f"samples-{num_samples}")))
    for num_shards in load.shards:
        sample_bytes = 4096 - 64
        num_samples = load.shard_series_bytes // 4096
        url = str(folder / f"shards-{num_shards}")
        # The writer fills shards up to a size: a little room for each shard's tail, or there would be one more.
        shard_bytes = load.shard_series_bytes // num_shards + max(4096, load.shard_series_bytes // num_shards // 64)
        add("shards", _read(load, url, num_samples, sample_bytes, shard_bytes))
    manifest = synthetic_manifest(load.node_samples, load.photo_bytes)
    for follow_nodes in (False, True):
        for nodes in load.nodes:
            row = simulate_nodes(
                manifest,
                nodes,
                global_batch_size=load.global_batch_size,
                node_samples_s=load.node_samples_s,
                follow_nodes=follow_nodes,
            )
            add("nodes", _rounded(asdict(row)))
    for sample_bytes in load.sample_sizes:
        num_samples = max(1, min(load.most_samples, load.sample_series_bytes // sample_bytes))
        url = str(folder / f"bytes-{sample_bytes}")
        add("sample_bytes", _read(load, url, num_samples, sample_bytes, 8 << 20))
    for kind in load.row_kinds:
        for rows in load.rows_per_shard:
            url = str(folder / f"rows-{kind}-{rows}")
            num_shards = write_rows(url, kind, num_rows=load.num_rows, rows_per_shard=rows)
            figures = _measured(load, url, num_shards, load.num_rows, row_bytes(kind))
            add("rows", {"kind": kind, "rows_per_shard": rows, **figures})
    return found


def _opened(load: Load, num_samples: int, url: str) -> Row:
    manifest = synthetic_manifest(num_samples, load.photo_bytes)
    manifest_bytes = write_manifest(url, manifest)
    run = in_own_process if load.own_processes else _here
    point: OpenPoint = run(measure_opening, url, load.num_rounds)
    facts = {"num_samples": num_samples, "num_shards": len(manifest.shards), "manifest_bytes": manifest_bytes}
    times = {field.name: getattr(point, field.name) for field in fields(point) if field.name.endswith("_s")}
    return _rounded(
        {
            **facts,
            **{name: value.median for name, value in times.items()},
            "rss_added_mb": point.rss_added_mb,
            "spread": _spreads(times),
        }
    )


def _read(load: Load, url: str, num_samples: int, sample_bytes: int, shard_bytes: int) -> Row:
    manifest = write_noise(url, num_samples=num_samples, sample_bytes=sample_bytes, shard_bytes=shard_bytes)
    return _measured(load, url, len(manifest.shards), num_samples, sample_bytes)


def _measured(load: Load, url: str, num_shards: int, num_samples: int, sample_bytes: int) -> Row:
    batch_size = min(256, max(1, num_samples // 16))
    run = in_own_process if load.own_processes else _here
    point: ReadPoint = run(measure_reading, url, batch_size, load.num_rounds)
    return _rounded(
        {
            "num_shards": num_shards,
            "num_samples": num_samples,
            "sample_bytes": sample_bytes,
            "batch_size": batch_size,
            "open_s": point.open_s.median,
            "first_batch_s": point.first_batch_s.median,
            "samples_s": num_samples / point.epoch_s.median,
            "mb_s": num_samples * sample_bytes / point.epoch_s.median / 1e6,
            "cpu_s_per_1000": 1000 * point.cpu_s.median / num_samples,
            "gets": point.gets,
            "rss_added_mb": point.rss_added_mb,
            "spread": _spreads(
                {"open_s": point.open_s, "first_batch_s": point.first_batch_s, "epoch_s": point.epoch_s}
            ),
        }
    )


def _spreads(times: Mapping[str, Times]) -> dict[str, list[float]]:
    return {name: [_short(value) for value in one.spread] for name, one in times.items()}


def _rounded(row: Row) -> Row:
    return {name: _short(value) if isinstance(value, float) else value for name, value in row.items()}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def fit(found: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Series → figure → exponents; the two ways to group nodes are two series."""
    return {
        name: slopes(
            [row[size] for row in rows],
            {key: [row[key] for row in rows] for key in _SHOWN[kind].split() if key != size},
        )
        for name, kind, size, rows in _series(found)
    }


def _series(found: Mapping[str, Sequence[Row]]) -> list[tuple[str, str, str, Sequence[Row]]]:
    """Name, kind, what grows, and the rows."""
    half = len(found["nodes"]) // 2
    named = {
        "samples": ("samples", found["samples"]),
        "shards": ("shards", found["shards"]),
        _DEFAULT_GROUPS: ("nodes", found["nodes"][:half]),
        _GROUP_EACH: ("nodes", found["nodes"][half:]),
        "sample_bytes": ("sample_bytes", found["sample_bytes"]),
        **{f"rows, {kind}": ("rows", rows) for kind, rows in _by_kind(found["rows"]).items()},
    }
    return [(name, kind, _SIZES[kind], rows) for name, (kind, rows) in named.items()]


def _by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["kind"], []).append(row)
    return found


def _run(load: Load, file: Path | None) -> None:
    console = Console()
    machine = describe_machine()
    with (
        tempfile.TemporaryDirectory(prefix="scale-benchmark-") as folder,
        bar(console, "scale", load.num_points) as progress,
    ):
        found = measure(load, Path(folder), on_point=progress.advance)
    fitted = fit(found)
    report = {**found, "slopes": fitted, "load": asdict(load), "machine": machine, "versions": versions()}
    present("scale", report, console, file)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs; no figures to quote")
    options = parser.parse_args(arguments)
    return ends_with_one_line(lambda: _run(QUICK if options.quick else FULL, options.json))


if __name__ == "__main__":
    raise SystemExit(main())
