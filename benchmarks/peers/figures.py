"""What the peers' epochs amount to: rows, and how ours compare with the best of the others. No I/O."""

from __future__ import annotations

import operator
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from benchmarks.figures import four_digits, with_spread
from benchmarks.peers.catalog import OURS, PEERS, Cell, Peer
from benchmarks.peers.job import Outcome
from benchmarks.shuffle_quality import class_distances

_SLOW = 0.25
_MEASURED = (
    "samples", "samples_s", "cpu_s_per_1000", "peak_rss_mb", "build_s", "first_batch_s", "half_s", "gets",
    "bytes_ratio", "shuffle_distance", "resume_s", "resume", "complete", "fault",
)  # fmt: skip
_CLASSES = 100  # made up, of images that lie side by side in the bucket


@dataclass(frozen=True, slots=True)
class Run:
    """One epoch of a peer."""

    outcome: Outcome  # what its process said
    round: int  # in which turn
    fault: str = ""  # what was wrong with the images that came; empty if nothing


def expected_digest(numbers: Sequence[int], digests: Sequence[int]) -> str:
    """Returns what `Outcome.digest` must be for these images."""
    return f"{sum(digests[number] for number in numbers) % 2**128:032x}"


def image_digest(data: bytes, number: int) -> int:
    """Returns one image's part of `Outcome.digest`."""
    return xxhash.xxh3_128_intdigest(data, seed=number)


def check(outcome: Outcome, digests: Sequence[int], *, decoded: bool) -> str:
    """Describes what is wrong with what was delivered; an empty string if each image came once, as it is.

    An epoch that was cut short may lack images, but must have no other and none twice.
    """
    num_samples = len(digests)
    different = set(outcome.numbers)
    strange = sum(not 0 <= number < num_samples for number in different)
    counts = {
        "that do not exist": strange,
        "again": len(outcome.numbers) - len(different),
        "missing": num_samples - len(different) + strange if outcome.complete else 0,
    }
    faults = [f"{count} images {what}" for what, count in counts.items() if count]
    if not strange and not decoded and outcome.digest != expected_digest(outcome.numbers, digests):
        faults.append("wrong bytes")
    return ", ".join(faults)


def shuffle_distance(outcome: Outcome, order: Sequence[int]) -> float | None:
    """Returns how far batches are from the whole, if a hundred classes lay sorted in the bucket.

    Mean over the batches of the total variation distance between their classes and the dataset's; see
    `benchmarks.shuffle_quality`. A permutation has some, too: 0.25 for batches of 256.
    """
    if not outcome.numbers or max(outcome.numbers) >= len(order):
        return None
    place = np.empty(len(order), dtype=np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    classes = place * _CLASSES // len(order)
    batches = np.split(np.asarray(outcome.numbers), np.cumsum(outcome.batch_sizes[:-1]))
    whole = [batch for batch in batches if len(batch) == max(outcome.batch_sizes)]
    return round(float(class_distances(whole, classes, _CLASSES).mean()), 3)


def make_row(
    peer: Peer, cell: Cell, epoch: str, runs: Sequence[Run], order: Sequence[int], error: str | None
) -> dict[str, Any]:
    """Returns a row of the JSON: medians over the rounds, extremes under ``spread``."""
    row: dict[str, Any] = {
        "peer": peer.name,
        "title": peer.title,
        "layout": peer.layout,
        "kind": cell.kind,
        "epoch": epoch,
        "latency_ms": None if peer.place == "local" else cell.latency_ms,
        "workers": cell.workers,
        "rounds": len(runs),
        "of_samples": len(order),
        **dict.fromkeys(_MEASURED),
        "note": peer.note,
        "error": error,
    }
    if not runs:
        return row
    outcomes = [run.outcome for run in runs]
    return row | {
        **with_spread(
            {
                name: [getattr(outcome, name) for outcome in outcomes]
                for name in ("samples_s", "cpu_s_per_1000", "build_s", "first_batch_s", "half_s")
            },
            four_digits,
        ),
        "samples": round(statistics.median(len(outcome.numbers) for outcome in outcomes)),
        "shuffle_distance": shuffle_distance(outcomes[0], order),
        "complete": all(outcome.complete for outcome in outcomes),
        "fault": "; ".join(sorted({run.fault for run in runs if run.fault})) or None,
    }


def headline(runs: Mapping[tuple[str, Cell, str], Sequence[Run]], main: Cell, decoded: Cell) -> dict[str, Any]:
    """Ours against the best of the others: medians over the rounds of the ratio within a round.

    ``cold_raw_vs_best`` and ``warm_raw_vs_best``: images a second. ``decoded_vs_best``: decoded images a second of
    processor time, with a warm cache where the peer has one. ``first_batch_vs_best``: seconds to the first batch, cold
    and raw: less is better. ``best`` names who was the best. The best is the one with the best median; peers on the
    local drive do not compete, nor does one that did not deliver each image once. None where one side is missing.
    """
    found: dict[str, Any] = {"best": {}}
    rate = operator.attrgetter("samples_s")
    for key, cell, epoch, figure, more_is_better in (
        ("cold_raw_vs_best", main, "cold", rate, True),
        ("warm_raw_vs_best", main, "warm", rate, True),
        ("decoded_vs_best", decoded, "warm", operator.attrgetter("samples_s_core"), True),
        ("decoded_wall_vs_best", decoded, "warm", rate, True),
        ("first_batch_vs_best", main, "cold", operator.attrgetter("first_batch_s"), False),
    ):
        others = [peer.name for peer in PEERS if not peer.is_ours and peer.place != "local"]
        theirs = {name: runs.get((name, cell, epoch)) or runs.get((name, cell, "cold"), ()) for name in others}
        rivals = {name: rival for name, rival in theirs.items() if rival and not any(run.fault for run in rival)}
        ours = runs.get((OURS, cell, epoch))
        if not ours or not rivals:
            found[key] = None
            continue
        medians = {name: statistics.median(figure(run.outcome) for run in rival) for name, rival in rivals.items()}
        best = (max if more_is_better else min)(medians, key=medians.__getitem__)
        of_best = {run.round: figure(run.outcome) for run in rivals[best]}
        ratios = [figure(run.outcome) / of_best[run.round] for run in ours if run.round in of_best]
        found[key] = four_digits(statistics.median(ratios))
        found["best"][key] = best
    return found


def with_earlier(figures: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's figures, and those rows of an earlier run that it did not measure again.

    Ratios, and whatever else is said of the whole, are of the later run that had ours in both of the headline's cells;
    a row of the other run says when it was measured (``measured``), and its latencies that the main one has not stay.
    """
    rows = {_identity(row): row for row in figures["rows"]}
    kept: dict[tuple[Any, ...], Any] = {}
    for row in earlier["rows"]:
        if _identity(row) not in rows:
            kept.setdefault(_identity(row), row)
    runs = [(figures, rows), (earlier, kept)]
    (main, main_rows), (other, other_rows) = runs if _has_headline(figures) else runs[::-1]
    began = other.get("began") or other.get("machine", {}).get("measured_at")
    return {
        **main,
        "rows": [
            *main_rows.values(),
            *({**row, "measured": row.get("measured", began)} for row in other_rows.values()),
        ],
        "environments": {**earlier.get("environments", {}), **figures["environments"]},
        "first_byte_ms": {**other.get("first_byte_ms", {}), **main.get("first_byte_ms", {})},
        "remarks": [*earlier.get("remarks", ()), *figures.get("remarks", ())],
    }


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("peer", "kind", "latency_ms", "workers", "epoch"))


def _has_headline(figures: Mapping[str, Any]) -> bool:
    """Returns whether a run measured ours in the first of its cells, raw and decoded: ratios are of one run."""
    ours = [row for row in figures["rows"] if row["peer"] == OURS]
    load = figures.get("load")
    if load is None:
        return bool(ours)
    first = load["latencies_ms"][0], load["workers"][0]
    return {row["kind"] for row in ours if (row["latency_ms"], row["workers"]) == first} == {"raw", "decoded"}


def without_paths(error: str, *folders: str) -> str:
    """Returns a peer's message without the places of this machine: figures go to other machines."""
    for folder in folders:
        error = error.replace(f"{folder}/", "")
    return re.sub(r"(?<![\w.-])/[^\s\"']*/(?=(?:site-packages|python3\.\d+)/)", "…/", error)


def is_slow(outcome: Outcome, ours: Outcome) -> bool:
    """Returns whether an epoch came to less than a quarter of our pace."""
    return outcome.samples_s < _SLOW * ours.samples_s
