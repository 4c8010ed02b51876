"""The benchmarks that fit into half an hour, one after another, and the report: ``python -m benchmarks.suite``.

Also ``make bench``. Each is a program of its own, which writes its figures; the command, the start, the duration and
the share of other programs are added to them under ``run``. One that fails leaves the figures of an earlier run alone,
and its error is in the report; the others go on. At the end the report is made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console

from benchmarks import report_page
from benchmarks.catalogue import BENCHMARKS, Benchmark, chosen
from benchmarks.command import ends_with_one_line
from benchmarks.harness import ROOT, run_program
from benchmarks.machine import Bystanders
from benchmarks.report_page import Results

_PATIENCE = 4.0  # times the minutes that it should take, for machines that are slower
_LEAST_S = 600.0


async def run_one(benchmark: Benchmark, results: Results, *, folder: Path = ROOT) -> dict[str, str] | None:
    """Runs a benchmark, and keeps its figures or its failure among the results; returns the failure, or None."""
    command = " ".join(["python", *benchmark.command(benchmark.arguments)])
    began = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    others = Bystanders()
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        file = Path(temporary) / "figures.json"
        timeout_s = max(_LEAST_S, _PATIENCE * 60 * benchmark.minutes)
        arguments = benchmark.command([*benchmark.arguments, "--json", str(file)])
        ended = await run_program(arguments, folder=folder, timeout_s=timeout_s)
        run = {"command": command, "began": began, **others.facts()}
        failed_file = results.failed_file(benchmark.name)
        if ended.failure or not file.exists():
            failure = {"command": command, "began": began, "error": ended.failure or "it wrote no figures"}
            _write(failed_file, failure)
            return failure
        figures = json.loads(file.read_text(encoding="utf-8"))
    _write(results.file(benchmark.name), {**figures, "run": run})
    failed_file.unlink(missing_ok=True)
    return None


def _write(file: Path, figures: object) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)


async def _run_all(benchmarks: Sequence[Benchmark], results: Results, console: Console) -> list[str]:
    """Runs one after another, because they would be in each other's way; returns those that failed."""
    failed = []
    for benchmark in benchmarks:
        console.print(f"{benchmark.name}: about {benchmark.minutes:g} minutes …", highlight=False)
        began = perf_counter()
        failure = await run_one(benchmark, results)
        told = "done" if failure is None else f"FAILED\n{failure['error']}"
        console.print(f"{benchmark.name}: {told} ({perf_counter() - began:.0f} s)", markup=False, highlight=False)
        if failure is not None:
            failed.append(benchmark.name)
    return failed


def main(arguments: Sequence[str] | None = None, *, benchmarks: Sequence[Benchmark] = BENCHMARKS) -> int:
    """Runs the set; returns the exit status: 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    names = [benchmark.name for benchmark in benchmarks]
    add = parser.add_argument
    add("--only", nargs="+", choices=names, metavar="NAME", help=f"some of {', '.join(names)}")
    add("--minutes", type=float, default=30.0, help="take the first ones that fit (default 30)")
    told = "for figures and report, instead of benchmarks/results; leaves the README alone"
    add("--results", type=Path, default=report_page.RESULTS, metavar="DIR", help=told)
    options = parser.parse_args(arguments)
    failed: list[str] = []

    def run() -> None:
        console = Console()
        asked = [benchmark for benchmark in benchmarks if benchmark.name in (options.only or ())]
        if options.only is None:
            asked = chosen(benchmarks, minutes=options.minutes, has_gpu=torch.cuda.is_available())
        options.results.mkdir(parents=True, exist_ok=True)
        minutes = sum(benchmark.minutes for benchmark in asked)
        console.print(f"{len(asked)} benchmarks, about {minutes:g} minutes", highlight=False)
        failed.extend(asyncio.run(_run_all(asked, Results(options.results), console)))
        report_page.main(["--results", str(options.results)])
        console.print(f"Report: {options.results / 'REPORT.md'}", soft_wrap=True, highlight=False)
        if failed:
            console.print(f"FAILED: {', '.join(failed)}", highlight=False)

    return ends_with_one_line(run) or int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
