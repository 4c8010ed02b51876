"""All benchmarks: what is run, with which arguments, for how long, and which keys its JSON has.

`benchmarks.suite` runs those that fit into half an hour, `benchmarks.smoke` all of them with tiny sizes, and
`benchmarks.report_page` makes a section of each. A new benchmark is a line here and a section in report.md.jinja.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One of them."""

    name: str  # of its results, ``NAME.json``
    module: str  # in this package
    minutes: float  # that a whole run takes on two cores, about
    keys: str  # of its JSON; see `missing_keys`
    arguments: tuple[str, ...] = ()  # of a whole run
    quick: tuple[str, ...] | None = ("--quick",)  # of a tiny one; None where that of another one runs the same program
    needs_gpu: bool = False  # without one it ends with status 2 and measures nothing

    def command(self, arguments: Sequence[str]) -> list[str]:
        """What is typed after ``python``."""
        return ["-m", f"benchmarks.{self.module}", *arguments]


_REMOTE = (
    "local_img_s cold_img_s warm_img_s cold_ratio warm_ratio first_batch_s gets bytes_ratio cpu_s_per_1000 "
    "peak_rss_mb rss_added_mb client spread other_programs_share"
)


def _remote_keys(*steps: str) -> str:
    return " ".join(["latency_ms", "server", *(f"{step}.{key}" for step in steps for key in _REMOTE.split())])


PEERS = Benchmark(
    "peers",
    "peers",
    90,
    "rows[].peer rows[].layout rows[].kind rows[].epoch rows[].latency_ms rows[].samples_s rows[].cpu_s_per_1000 "
    "rows[].peak_rss_mb rows[].first_batch_s rows[].gets rows[].bytes_ratio rows[].error cold_raw_vs_best "
    "warm_raw_vs_best decoded_vs_best first_batch_vs_best other_programs_share",
    # The others need environments of their own.
    quick=("--quick", "--peer", "ours"),
)
FORERUNNERS = Benchmark(
    "forerunners",
    "forerunners",
    6,
    "compared[].forerunner compared[].what compared[].theirs compared[].ours differences layers[].layer layers[].side "
    "layers[].batch_load_s batch_load_speedup heat_map.cells heat_map.workers heat_map.in_flight sequential[].reader "
    "pipelines lossless latency cache_state other_programs_share",
)

# In the order in which half an hour takes them: those that say most, and those that are short.
BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "remote_vs_local.train",
        "remote_vs_local",
        5,
        _remote_keys("training"),
        ("--step", "train"),
        quick=None,
    ),
    Benchmark(
        "remote_vs_local.none",
        "remote_vs_local",
        6,
        _remote_keys("raw", "decoded"),
        ("--step", "none"),
        quick=("--step", "none", "--quick"),
    ),
    Benchmark(
        "tail",
        "tail",
        3,
        "p99_drop extra_gets rows[].hedging rows[].p99_s batch_s.off batch_s.on first_byte_ms",
    ),
    Benchmark("cache", "cache", 1.5, "rows[].budget rows[].policy rows[].hit_rate rows[].bytes_ratio load"),
    Benchmark(
        "decode",
        "decode",
        1,
        "rows[].set rows[].recipe rows[].images_s_core rows[].cpu_s_per_1000 ratio_110kb ratio_35kb ratio_large "
        "two_thread_scaling mean_error other_programs_share",
    ),
    Benchmark(
        "lossless",
        "lossless",
        1,
        "rows[].set rows[].codec size_vs_png decode_vs_png decode_pack_vs_png crop_vs_full encode_mpix_s "
        "gpu_prepare_vs_png other_programs_share",
    ),
    Benchmark(
        "shuffle_quality",
        "shuffle_quality",
        0.2,
        "rows[].window_shards rows[].default rows[].sorted_distance rows[].random_distance rows[].same_shard "
        "share_of_shards options",
    ),
    Benchmark(
        "resume",
        "resume",
        1,
        "rows[].sample rows[].first_batch_s rows[].spread_s rows[].gets rows[].shards ratio",
    ),
    Benchmark(
        "cost",
        "cost",
        0.5,
        "workload measured[].system rows[].system rows[].kind rows[].run rows[].usd prices_as_of prices",
        # Peers that were measured are counted as they were seen; without the file, as their formats ask.
        ("--peers", "benchmarks/results/peers.json"),
    ),
    Benchmark(
        "drop_in",
        "drop_in",
        14,
        "never_slower_min local.rows[].kind local.rows[].ratio "
        "vanilla_batch_s ours_batch_s speedup in_flight num_workers rows[].client rows[].speedup rows[].ours_cpu_ms "
        "batch_s[].batch_s measured_latency_ms other_programs_share",
    ),
    Benchmark(
        "pipelines",
        "pipelines",
        5,
        "rows[].source rows[].place rows[].operations rows[].epoch_s rows[].spread_s reader_change_few "
        "device_change_few reader_change_many device_change_many zolnouri other_programs_share",
    ),
    Benchmark(
        "inflight",
        "inflight",
        10,
        "rows[].kind rows[].latency_ms rows[].in_flight rows[].per_s rows[].limit_per_s rows[].ratio rows[].cpu_ms "
        "auto_ratio auto[].converge_s measured_latency_ms other_programs_share",
    ),
    Benchmark(
        "scaling",
        "scaling",
        4,
        "rows[].mode rows[].n rows[].transform rows[].samples_s rows[].cpu_s_per_1000 rows[].peak_rss_mb "
        "rows[].start_s ratios load",
    ),
    Benchmark(
        "scale",
        "scale",
        6,
        "samples[].num_samples samples[].open_s samples[].resume_s samples[].rss_added_mb shards[].num_shards "
        "shards[].samples_s nodes[].nodes nodes[].gets sample_bytes[].sample_bytes sample_bytes[].mb_s slopes load",
    ),
    Benchmark("clients", "clients", 2, "clients load server"),
    Benchmark(
        "gpu",
        "gpu",
        10,
        "device decode[].images_s training.rows[].images_s training.gpu_wait_share training.ratio_to_synthetic "
        "training.cpu_ratio_to_torch training.targets",
        needs_gpu=True,
    ),
    PEERS,
    FORERUNNERS,
    Benchmark(
        "soak",
        "soak",
        30.5,
        "seconds epochs samples wrong_samples spells faults errors fd_before fd_after max_threads rss_drift_mb",
    ),
)
_ALL_HAVE = "machine versions"


def chosen(benchmarks: Sequence[Benchmark], *, minutes: float, has_gpu: bool) -> list[Benchmark]:
    """Those that fit into so many minutes, the first ones first; one that is too long makes room for later ones."""
    found = []
    for benchmark in benchmarks:
        if benchmark.minutes <= minutes and (has_gpu or not benchmark.needs_gpu):
            found.append(benchmark)
            minutes -= benchmark.minutes
    return found


def missing_keys(figures: object, keys: str) -> list[str]:
    """The keys that a JSON should have and has not."""
    return [key for key in f"{_ALL_HAVE} {keys}".split() if not _has(figures, key)]


def _has(figures: object, key: str) -> bool:
    # Names may have dots only as the last of a path: "a.b" is looked up level by level.
    name, _, rest = key.partition(".")
    many = name.endswith("[]")
    name = name.removesuffix("[]")
    if not isinstance(figures, dict) or name not in figures:
        return False
    found = figures[name]
    if many:
        return isinstance(found, list) and bool(found) and all(_has(element, rest) for element in found)
    return not rest or _has(found, rest)
