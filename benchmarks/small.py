"""Small samples: ``python -m benchmarks.small [--json FILE] [--quick]``. Rows per second of processor time.

Rows are text (118 characters), int32 arrays (110 numbers, ``ragged="packed"``), bytes of 1 KB, and three numbers. They
are written by ``write_batch`` and read from the local drive, in order and shuffled, in batches of 1,024, the numbers of
8,192. Every side has a process of its own, in turns with the others; a round's figure is its best epoch. The rivals
have the same texts, and give lists of str: datasets (Hugging Face, Arrow), Parquet through pyarrow (row groups in a new
order, and rows within each), LitData, MDS, and Grain's ArrayRecord, in the environments of `benchmarks.peers`.

``text_linear`` is the rate with ten times as many rows per shard over the rate with one time, both shuffled.
``text_vs_best_peer`` compares shuffled epochs; only ours checks a digest of what it reads.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.command import bar, in_turns, program
from benchmarks.figures import extremes, medians, rounded
from benchmarks.harness import CommandError, ask
from benchmarks.peers.processes import python_of

_OURS = {
    "text": "512KiB", "text, 10 x rows per shard": "5MiB", "tokens": "8MiB", "bytes1k": "8MiB", "fixed": "8MiB",
}  # fmt: skip
_PEERS = {
    "datasets": None, "parquet": None, "litdata": "litdata", "mds": "mosaicml", "array_record": "array_record",
}  # fmt: skip
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_rows: int = 100_000
    num_fixed_rows: int = 2_000_000
    batch_size: int = 1024
    num_epochs: int = 3
    num_rounds: int = 5
    peers: str = ",".join(_PEERS)


def _measure(load: Load, side: str, folder: str) -> dict[str, float]:
    job: dict[str, Any] = {"side": side, "folder": f"{folder}/rows", **asdict(load)}
    python = sys.executable
    if side in _PEERS:
        python = python_of(_PEERS[side], Path(".demo/peers/environments").resolve())
    else:
        kind = side.partition(",")[0]
        job |= {"side": "ours", "kind": kind, "shard_size": _OURS[side]}
        if kind == "fixed":
            job |= {"num_rows": load.num_fixed_rows, "batch_size": 8 * load.batch_size}
    return ask(python, "small_side", job, timeout_s=_TIMEOUT_S)


def measure(load: Load, console: Console) -> dict[str, Any]:
    """Measures all sides in turns."""
    sides = [*_OURS, *filter(None, load.peers.split(","))]
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    errors: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, bar(console, "Sides", len(sides) * load.num_rounds) as progress:
        for _, side in in_turns(sides, load.num_rounds):
            if side not in errors:
                try:
                    found[side].append(_measure(load, side, folder))
                except (CommandError, subprocess.TimeoutExpired) as error:
                    if side in _OURS:
                        raise
                    errors[side] = str(error)[-400:]
            progress.advance()
    rows: list[dict[str, Any]] = [
        {
            "side": side if side in _PEERS else "ours",
            "rows": "text" if side in _PEERS else side,
            **medians(rounds, rounded),
            "extremes": extremes([each["shuffled"] for each in rounds]),
        }
        for side, rounds in found.items()
        if rounds
    ]
    mine = {row["rows"]: row for row in rows if row["side"] == "ours"}
    best = max((row["shuffled"] for row in rows if row["side"] != "ours"), default=0)
    text, large = mine["text"], mine["text, 10 x rows per shard"]
    return {
        "load": asdict(load),
        "small": rows,
        "text_rows_s_core": large["shuffled"],
        "text_linear": round(large["shuffled"] / text["shuffled"], 3),
        "tokens_rows_s_core": mine["tokens"]["in_order"],
        "bytes1k_rows_s": mine["bytes1k"]["shuffled"],
        "fixed_rows_s": mine["fixed"]["shuffled"],
        "write_batch_rows_s": mine["fixed"]["write"],
        "text_vs_best_peer": round(large["shuffled"] / best, 3) if best else None,
        "errors": errors,
    }


_QUICK = Load(num_rows=3000, num_fixed_rows=3000, num_epochs=1, num_rounds=1, peers="parquet")
main = program("small", __doc__, measure, Load(), _QUICK, "num_rounds", peers=_PEERS)

if __name__ == "__main__":
    raise SystemExit(main())
