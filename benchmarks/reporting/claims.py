"""What the figures are held to: targets, set before anything was measured, and whether they are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.figures import RAW_TARGETS, TRAINING_TARGETS
from benchmarks.reporting.markdown import Figures, number, percent
from benchmarks.reporting.peers import by_latency
from benchmarks.reporting.results import Results

__all__ = ["CLAIMS", "Claim", "Judged", "judge"]

_PERCENT = "%"


@dataclass(frozen=True, slots=True)
class Claim:
    """A target.

    Attributes:
        benchmark: Whose results.
        what: Is measured.
        figure: Finds it; None if it was not measured.
        bound: To reach.
        at_least: Whether more is better.
        unit: Behind the number; ``"%"`` makes a percentage of a share.
        headline: Whether it is one of the README's.
    """

    benchmark: str
    what: str
    figure: Callable[[Figures], float | None]
    bound: float
    at_least: bool = True
    unit: str = ""
    headline: bool = False

    def told(self, value: float | None) -> str:
        """A figure or the bound, as text."""
        if value is None:
            return "–"
        return percent(value) if self.unit == _PERCENT else number(value) + self.unit

    def met(self, value: float) -> bool:
        """Whether a figure reaches the bound."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Judged:
    """A target and what was measured; None if it was not."""

    claim: Claim
    value: float | None

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.value is None:
            return "not measured"
        return "met" if self.claim.met(self.value) else "**MISSED**"

    @property
    def target(self) -> str:
        """The bound, with its direction."""
        return f"{'≥' if self.claim.at_least else '≤'} {self.claim.told(self.claim.bound)}"


def judge(results: Results, claims: Sequence[Claim] | None = None) -> list[Judged]:
    """Holds the results against their targets."""
    found = []
    for claim in CLAIMS if claims is None else claims:
        figures = results.figures(claim.benchmark)
        found.append(Judged(claim, None if figures is None else claim.figure(figures)))
    return found


def _key(*path: str) -> Callable[[Figures], float | None]:
    def find(figures: Figures) -> float | None:
        found: object = figures
        for name in path:
            if not isinstance(found, dict):
                return None
            found = found.get(name)
        return float(found) if isinstance(found, int | float) else None

    return find


def _worst(key: str, *, at_least: bool = True) -> Callable[[Figures], float | None]:
    """Of a ratio that may be one a latency."""

    def find(figures: Figures) -> float | None:
        values = by_latency(figures.get(key)).values()
        return (min if at_least else max)(values, default=None)

    return find


def _far_from_optimum(figures: Figures) -> float:
    rates = {(row["budget"], row["policy"]): row["hit_rate"] for row in figures["rows"]}
    worst = max(rates[budget, "optimum"] - rate for (budget, policy), rate in rates.items() if policy == "ours")
    return round(float(worst), 3)


def _remote(benchmark: str, step: str, work: str) -> list[Claim]:
    words = {
        "cold_ratio": ("bucket, cold cache ÷ local drive", "", True),
        "warm_ratio": ("bucket, warm cache ÷ local drive", "", True),
        "cold_img_s": ("samples/s from the bucket, cold cache", "", True),
        "first_batch_s": ("first batch, cold cache", " s", False),
        "bytes_ratio": ("bytes fetched ÷ bytes of the data set", "", False),
        "rss_added_mb": ("memory added while 1 GB is read, cold cache", " MB", True),
    }
    targets = TRAINING_TARGETS if step == "training" else RAW_TARGETS
    return [
        Claim(benchmark, f"{work}: {what}", _key(step, target.key), target.bound, target.at_least, unit, shown)
        for target in targets
        for what, unit, shown in [words[target.key]]
    ]


CLAIMS: tuple[Claim, ...] = (
    Claim("peers", "raw bytes, cold: ours ÷ best peer", _worst("cold_raw_vs_best"), 2, unit=" ×", headline=True),
    Claim("peers", "raw bytes, warm: ours ÷ best peer", _worst("warm_raw_vs_best"), 1.2, unit=" ×", headline=True),
    Claim("peers", "decoded, a core: ours ÷ best peer", _worst("decoded_vs_best"), 1.4, unit=" ×", headline=True),
    Claim(
        "peers",
        "time to the first batch: ours ÷ best peer",
        _worst("first_batch_vs_best", at_least=False),
        0.5,
        at_least=False,
        unit=" ×",
        headline=True,
    ),
    *_remote("remote_vs_local.train", "training", "training"),
    *_remote("remote_vs_local.none", "raw", "raw bytes"),
    Claim(
        "drop_in",
        "single objects, only the class name changed: ours ÷ torch's DataLoader (botocore, 2 workers)",
        _key("speedup"),
        12,
        unit=" ×",
        headline=True,
    ),
    Claim(
        "drop_in",
        "items that compute or lie in memory, only the class name changed: torch's time ÷ ours, worst cell",
        _key("never_slower_min"),
        0.97,
    ),
    Claim(
        "drop_in",
        "single objects, ours ÷ torch's DataLoader (obstore, 2 workers)",
        lambda figures: max(
            (row["speedup"] for row in figures["rows"] if row["client"] == "obstore" and row["num_workers"] == 2),
            default=None,
        ),
        25,
        unit=" ×",
    ),
    Claim(
        "inflight",
        '`in_flight="auto"` ÷ best fixed number, worst of 5, 30 and 130 ms',
        lambda figures: min(figures["auto_ratio"].values(), default=None),
        0.9,
        headline=True,
    ),
    Claim(
        "inflight",
        "requests/s ÷ what is possible, lowest of all numbers in flight, latencies and sizes",
        lambda figures: min((row["ratio"] for row in figures["rows"]), default=None),
        0.95,
    ),
    Claim("tail", "slowest batches: P99 without ÷ with hedging", _key("p99_drop"), 5, unit=" ×", headline=True),
    Claim("tail", "slowest batches: extra GETs for hedging", _key("extra_gets"), 0.06, at_least=False, unit=_PERCENT),
    Claim(
        "cache",
        "cache: hit rate below that of the best possible eviction, worst of all cache sizes",
        _far_from_optimum,
        0,
        at_least=False,
        unit=_PERCENT,
        headline=True,
    ),
    Claim(
        "decode",
        "decode, crop, flip, 110 KB: ours ÷ torchvision, a core",
        _key("ratio_110kb"),
        1.5,
        unit=" ×",
        headline=True,
    ),
    Claim("decode", "decode, crop, flip, 2000×1500: ours ÷ torchvision, a core", _key("ratio_large"), 2, unit=" ×"),
    Claim("decode", "decode, crop, flip: two threads ÷ one", _key("two_thread_scaling"), 1.9, unit=" ×"),
    Claim(
        "decode",
        "decode, crop, flip: mean difference from the reference, gray levels",
        _key("mean_error"),
        2,
        at_least=False,
    ),
    Claim("lossless", "lossless pictures: size ÷ PNG", _key("size_vs_png"), 0.85, at_least=False, headline=True),
    Claim(
        "lossless",
        "lossless pictures: decoding ÷ the fastest PNG decoder, a core",
        _key("decode_vs_png"),
        5,
        unit=" ×",
        headline=True,
    ),
    Claim(
        "lossless",
        "lossless pictures without the outer zstd: decoding ÷ the fastest PNG decoder",
        _key("decode_pack_vs_png"),
        7,
        unit=" ×",
    ),
    Claim("lossless", "lossless pictures: encoding, 10⁶ pixels/s a core", _key("encode_mpix_s"), 20),
    Claim(
        "lossless", "lossless pictures on a GPU: data preparation ÷ PNG's", _key("gpu_prepare_vs_png"), 20, unit=" ×"
    ),
    Claim(
        "gpu",
        "one GPU, ResNet-50: share of the time that it waits for data, cold cache",
        _key("training", "gpu_wait_share"),
        0.03,
        at_least=False,
        unit=_PERCENT,
        headline=True,
    ),
    Claim(
        "gpu",
        "one GPU, ResNet-50: images/s ÷ data that is on the device already",
        _key("training", "ratio_to_synthetic"),
        0.95,
    ),
    Claim(
        "gpu",
        "one GPU, ResNet-50: CPU time ÷ that of decoding on the CPU",
        _key("training", "cpu_ratio_to_torch"),
        0.2,
        at_least=False,
    ),
    Claim("soak", "wrong samples in half an hour of faults", _key("wrong_samples"), 0, at_least=False, headline=True),
)
