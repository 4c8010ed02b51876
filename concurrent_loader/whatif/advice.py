"""Finds the cheapest changes that make a run faster: replays it with each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from concurrent_loader.storage.sizes import format_size
from concurrent_loader.whatif.run_trace import RunTrace
from concurrent_loader.whatif.simulation import Prediction, Scenario, predict

__all__ = ["PRICES", "Advice", "advise"]

# US dollars, us-east-1, without discounts. Core and S3 Express are from worked examples of AWS; gp3 and S3 Standard are
# what others quote, not confirmed on a page of AWS. They change: check them.
PRICES = {
    "core": 0.0425,  # an hour; c5.4xlarge, 16 cores
    "drive": 0.08,  # a GB and month; gp3
    "near": 0.11 - 0.023,  # a GB and month; S3 Express One Zone beyond S3 Standard
}
_MONTH_H = 730
_NEAR_S = 0.005  # first byte of a store in the same zone
_LEAST_GAIN = 0.05
_MOST = 3


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that helps.

    Attributes:
        change: The change in words.
        samples_s: Samples per second with it.
        gain: By how much of the rate without it that is more.
        dollars_h: Dollars an hour that it costs more.
    """

    change: str
    samples_s: float
    gain: float
    dollars_h: float


def advise(trace: RunTrace, scenario: Scenario, base: Prediction) -> list[Advice]:
    """Returns the cheapest changes that make a scenario at least 5 % faster, three at most, the cheapest first.

    Args:
        trace: Recording of a run.
        scenario: What is to be improved.
        base: Its prediction.
    """
    found = []
    for change, other, dollars_h in _changes(trace, scenario):
        rate = predict(trace, other).samples_s
        gain = rate / base.samples_s - 1
        if gain >= _LEAST_GAIN:
            found.append(Advice(change, rate, gain, dollars_h))
    return sorted(found, key=lambda advice: (advice.dollars_h, -advice.gain))[:_MOST]


def _changes(trace: RunTrace, scenario: Scenario) -> Iterator[tuple[str, Scenario, float]]:
    gigabytes = sum(trace.unit_bytes) / 1e9
    batches, ahead_bytes = 4 * scenario.prefetch_batches, 4 * scenario.prefetch_bytes
    yield f"prefetch_batches={batches}", replace(scenario, prefetch_batches=batches), 0.0
    yield f'prefetch_bytes="{format_size(ahead_bytes)}"', replace(scenario, prefetch_bytes=ahead_bytes), 0.0
    if scenario.num_threads != scenario.cores:
        yield f"num_threads={scenario.cores}", replace(scenario, num_threads=scenario.cores), 0.0
    if scenario.in_flight is not None:
        yield 'in_flight="auto"', replace(scenario, in_flight=None), 0.0
    if scenario.cached < 1:
        dollars_h = gigabytes * (1 - scenario.cached) * PRICES["drive"] / _MONTH_H
        yield "everything in the cache", replace(scenario, cached=1.0), dollars_h
    if scenario.latency_s > _NEAR_S:
        near = replace(scenario, latency_s=_NEAR_S)
        yield "a store with 5 ms to the first byte", near, gigabytes * PRICES["near"] / _MONTH_H
    cores = 2 * scenario.cores
    yield f"{cores} cores", scenario.with_cores(cores), scenario.cores * PRICES["core"]
