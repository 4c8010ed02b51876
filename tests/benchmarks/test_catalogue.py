from __future__ import annotations

import importlib.util

import pytest

from benchmarks.catalogue import BENCHMARKS, Benchmark, chosen, missing_keys
from benchmarks.report_page import RESULTS, Results, report


def benchmark_command(benchmark: Benchmark) -> str:
    return " ".join(["python", *benchmark.command(benchmark.arguments), "--json", "FILE"])


def test_every_benchmark_exists_and_has_a_section() -> None:
    assert all(importlib.util.find_spec(f"benchmarks.{benchmark.module}") for benchmark in BENCHMARKS)
    names = [benchmark.name for benchmark in BENCHMARKS]
    assert len(set(names)) == len(names)
    text = report(Results(RESULTS / "none"))
    assert all(benchmark_command(benchmark) in text for benchmark in BENCHMARKS)


def test_every_program_has_a_tiny_run() -> None:
    tiny = {benchmark.module for benchmark in BENCHMARKS if benchmark.quick is not None}
    assert tiny == {benchmark.module for benchmark in BENCHMARKS}


def test_what_is_typed() -> None:
    train = next(benchmark for benchmark in BENCHMARKS if benchmark.name == "remote_vs_local.train")
    assert train.command(train.arguments) == ["-m", "benchmarks.remote_vs_local", "--step", "train"]


def test_those_that_fit_are_taken_in_order() -> None:
    first, long, gpu, last = (
        Benchmark("first", "x", 10, ""),
        Benchmark("long", "x", 25, ""),
        Benchmark("gpu", "x", 1, "", needs_gpu=True),
        Benchmark("last", "x", 20, ""),
    )
    everything = [first, long, gpu, last]
    assert chosen(everything, minutes=30, has_gpu=False) == [first, last]
    assert chosen(everything, minutes=31, has_gpu=True) == [first, gpu, last]
    assert chosen(everything, minutes=5, has_gpu=False) == []


def test_the_usual_set_takes_half_an_hour() -> None:
    assert 25 <= sum(benchmark.minutes for benchmark in chosen(BENCHMARKS, minutes=30, has_gpu=False)) <= 30


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ("a b.c", []),
        ("d[].e", []),
        ("x", ["x"]),
        ("b.x", ["b.x"]),
        ("a.c", ["a.c"]),
        ("d[].e d[].f", ["d[].f"]),
        ("empty[].e a[].e", ["empty[].e", "a[].e"]),
    ],
)
def test_missing_keys(keys: str, missing: list[str]) -> None:
    figures = {"a": 1, "b": {"c": None}, "d": [{"e": 1, "f": 2}, {"e": 3}], "empty": [], "machine": {}, "versions": {}}
    assert missing_keys(figures, keys) == missing


def test_machine_and_versions_are_always_wanted() -> None:
    assert missing_keys({}, "") == ["machine", "versions"]
    assert missing_keys([], "a") == ["machine", "versions", "a"]
