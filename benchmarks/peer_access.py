"""What other loaders were seen to ask a bucket for, scaled to a run: from the figures of the benchmark of peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.access import Access, Workload
from benchmarks.bucket_requests import Requests

Row = Mapping[str, Any]

_BY_SAMPLE = 0.9  # of a GET a sample, from which on each sample is taken to be an object


def peer_accesses(report: Mapping[str, Any], workload: Workload) -> list[Access]:
    """Finds each peer's first and later epochs and scales them.

    Used of ``rows``: ``peer, layout, kind`` (``"raw"``), ``epoch`` (``"cold"`` or ``"warm"``), ``latency_ms, gets,
    bytes_ratio, of_samples, rounds, error``; where a peer was measured at several latencies, the lowest. Ours is left
    out: it is counted again. So is what failed in all turns, or was not read to its end.

    Where samples are objects, GETs grow with the samples; where they are in files, with the bytes, if ``sample_bytes``
    of the report says how large those were that were read, else with the samples as well. A peer without a warm epoch
    is taken to read every epoch like the first.
    """
    epochs: dict[tuple[str, str], dict[str, Row]] = {}
    for row in sorted(filter(_counts, report["rows"]), key=lambda row: float(row["latency_ms"] or 0)):
        epochs.setdefault((row["peer"], row["layout"]), {}).setdefault(row["epoch"], row)
    sample_bytes = report.get("sample_bytes")
    return [
        _access(peer, layout, found, sample_bytes, workload)
        for (peer, layout), found in sorted(epochs.items())
        if "cold" in found
    ]


def _counts(row: Row) -> bool:
    if row["kind"] != "raw" or row["peer"].startswith("ours"):
        return False
    if row.get("error") and not row.get("rounds"):  # one that failed some of its turns has been counted all the same
        return False
    return bool(row.get("of_samples")) and None not in (row.get("gets"), row.get("bytes_ratio"))


def _access(
    peer: str, layout: str, epochs: Mapping[str, Row], sample_bytes: float | None, workload: Workload
) -> Access:
    cold, warm = epochs["cold"], epochs.get("warm", epochs["cold"])
    by_sample = cold["gets"] >= _BY_SAMPLE * cold["of_samples"]
    larger = 1.0 if by_sample or sample_bytes is None else workload.sample_bytes / sample_bytes

    def scaled(row: Row) -> Requests:
        factor = workload.num_samples / row["of_samples"] * larger
        return Requests(gets=round(row["gets"] * factor), bytes=round(row["bytes_ratio"] * workload.num_bytes))

    notes = [
        f"{cold['of_samples']:,} samples measured at {cold['latency_ms']:g} ms",
        "scaled by " + _way(by_sample, larger),
    ]
    notes += ["opening is in the first epoch, lists and HEADs are not counted"]
    if "warm" not in epochs:
        notes.append("no warm epoch was measured")
    return Access(f"{peer}, {layout}", "measured", "; ".join(notes), Requests(), scaled(cold), scaled(warm))


def _way(by_sample: bool, larger: float) -> str:
    return "samples" if by_sample or larger == 1.0 else f"samples, each {larger:.3g} times as large"
