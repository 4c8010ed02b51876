"""Ours and every other loader on the same images from the same bucket.

    python -m benchmarks.peers [--json FILE [--keep]] [--peer NAME …] [--cell KIND:MS:WORKERS …] [--quick]

The same real photographs (19,200 JPEGs, 1.07 GB, raw; 3,200 of them decoded to 224²) from one MinIO behind a latency of
5, 30 or 130 ms ± a third and 90 MB/s a connection, in each peer's own format and settings (`benchmarks.peers.catalog`
and ``programs/``, which name the documentation that they follow), each peer in a virtual environment of its own, made
on the first run below ``.demo``. Every epoch is a fresh process; its clock starts when the imports are done, before
the dataset is opened, so that listing, starting workers and connecting count. What the server sends, and what the
local rows read, is in the page cache before a turn: drives are not compared. In every round each peer has its turn, in
an order that changes, in each *cell*: a kind, a latency and a number of workers; peers on the local drive in those of
the first latency, peers that came to less than a quarter of our pace in the first round of a kind's first cell in no
further one. ``cold``: nothing kept on the drive; ``warm``: with the cache folder that a cold epoch in an earlier
process left, for peers that have one. An epoch may be cut short after ``limit_s`` seconds (``complete`` is false then,
``samples`` says how many came); the warm ones beside it have a copy of what a whole cold epoch left. Every image
that comes is checked: bytes, none twice, none missing at the end (``fault``).

JSON: ``rows``: ``peer, title, layout, kind`` (raw or decoded)``, epoch`` (cold or warm)``, latency_ms, workers``
(worker processes; threads where the peer has threads)``, rounds, of_samples`` (of the dataset)``, samples`` (that
came)``, samples_s, cpu_s_per_1000`` (processor seconds of client and workers)``, peak_rss_mb, build_s, first_batch_s,
half_s, gets, bytes_ratio`` (bytes fetched ÷ bytes of the images; these two counted on the wire, with ``peak_rss_mb``,
in epochs of their own without latency)``, shuffle_distance`` (see `benchmarks.shuffle_quality`: a permutation's is 0.25
for batches of 256, 0.35 for 128)``, resume_s`` (a new process, half way through the epoch: seconds to the next
batch)``, resume`` (``state``, or ``replay`` where half of the epoch has to be read again)``, complete, fault, note,
error, spread``. ``cold_raw_vs_best, warm_raw_vs_best, decoded_vs_best, decoded_wall_vs_best, first_batch_vs_best,
best``: see `benchmarks.peers.figures.headline`. ``measured``: of a row that is not of the run that the ratios are of
(``--keep``): when. ``began, photos, sample_bytes, first_byte_ms, bandwidth_mb_s, load, environments, machine, versions,
other_programs_share``. A peer that fails a turn gets another chance, and has the ``error`` beside its figures then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.command import command_line, ends_with_one_line
from benchmarks.peers.catalog import FULL, PEERS, QUICK, find
from benchmarks.peers.figures import with_earlier
from benchmarks.peers.measuring import Measuring
from benchmarks.report_page import section


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command_line("peers", __doc__)
    add = parser.add_argument
    add("--keep", action="store_true", help="rows that are not measured now stay in the file")
    names, cells = [peer.name for peer in PEERS], [str(cell) for cell in FULL.cells()]
    add("--peer", action="append", choices=names, help="only this one; may be repeated (--peer ours to compare)")
    add("--cell", action="append", choices=cells, help="only this cell; may be repeated")
    parsed = parser.parse_args(arguments)
    if parsed.keep and parsed.json is None:
        parser.error("--keep needs --json")
    load, asked = QUICK if parsed.quick else FULL, parsed.cell or ()
    load = replace(load, only=tuple(cell for cell in load.cells() if str(cell) in asked))
    if len(load.only) < len(set(asked)):
        parser.error(f"--quick has only {', '.join(map(str, load.cells()))}")
    peers = [find(name) for name in parsed.peer or names]

    def run() -> None:
        console = Console()
        earlier = json.loads(parsed.json.read_text(encoding="utf-8")) if parsed.keep and parsed.json.exists() else None

        def write(figures: dict[str, Any]) -> None:
            if parsed.json is not None:
                figures = with_earlier(figures, earlier) if earlier else figures
                parsed.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

        figures = Measuring(load, peers, Path(".demo"), console).run(on_figures=write)
        console.print(Markdown(section("peers", json.loads(json.dumps(figures)))))

    return ends_with_one_line(run)


if __name__ == "__main__":
    raise SystemExit(main())
