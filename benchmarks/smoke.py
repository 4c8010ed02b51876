"""Whether every benchmark still runs: ``python -m benchmarks.smoke [--only NAME …]``, or ``make bench-smoke``.

Each is run with tiny sizes, as a program and in a folder of its own, one more at a time than there are cores: what they
measure means nothing. What counts is that it ends well, that its JSON has the keys that others read, and that the
report can be made of it. One that needs a GPU is run, too: without one it has to say so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from jinja2 import TemplateError
from rich.console import Console

from benchmarks.catalogue import BENCHMARKS, Benchmark, missing_keys
from benchmarks.command import ends_with_one_line
from benchmarks.harness import run_program
from benchmarks.machine import num_cores
from benchmarks.report_page import Results, write

_TIMEOUT_S = 600.0  # for machines that do other work, too
_NO_GPU = 2
_SAYS_NO_GPU = "no CUDA device can be used"


async def check(benchmark: Benchmark, folder: Path) -> str | None:
    """Runs a benchmark in a folder, where its files stay; returns what is wrong, or None."""
    assert benchmark.quick is not None
    file = folder / "figures.json"
    arguments = benchmark.command([*benchmark.quick, "--json", str(file)])
    ended = await run_program(arguments, folder=folder, timeout_s=_TIMEOUT_S)
    if benchmark.needs_gpu and ended.status == _NO_GPU and _SAYS_NO_GPU in ended.said:
        return None
    if ended.failure:
        return ended.failure
    try:
        figures = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"its JSON cannot be read: {type(error).__name__}"
    missing = missing_keys(figures, benchmark.keys)
    if missing:
        return f"its JSON has not: {', '.join(missing)}"
    return _reported(benchmark, figures, folder)


def _reported(benchmark: Benchmark, figures: dict[str, Any], folder: Path) -> str | None:
    """Returns why the report cannot be made of these figures, or None."""
    results = Results(folder / "report")
    results.folder.mkdir()
    results.file(benchmark.name).write_text(json.dumps(figures), encoding="utf-8")
    try:
        write(results, with_pages=False)
    except (KeyError, IndexError, TypeError, ValueError, TemplateError) as error:
        return f"the report cannot be made of it: {type(error).__name__}: {error}"
    return None


async def check_all(benchmarks: Sequence[Benchmark], folder: Path, console: Console) -> list[str]:
    """Runs them, some at a time, the long ones first; returns the names of those that something is wrong with."""
    places = asyncio.Semaphore(num_cores() + 1)
    wrong = []

    async def one(benchmark: Benchmark) -> None:
        async with places:
            began = perf_counter()
            home = folder / benchmark.name
            home.mkdir()
            told = await check(benchmark, home)
            took_s = perf_counter() - began
            console.print(f"{benchmark.name:24} {took_s:5.1f} s  {'ok' if told is None else 'FAILED'}", highlight=False)
            if told is not None:
                wrong.append(benchmark.name)
                console.print(told, markup=False, highlight=False, soft_wrap=True)

    async with asyncio.TaskGroup() as group:
        for benchmark in sorted(benchmarks, key=lambda benchmark: -benchmark.minutes):
            group.create_task(one(benchmark))
    return wrong


def main(arguments: Sequence[str] | None = None, *, benchmarks: Sequence[Benchmark] = BENCHMARKS) -> int:
    """Runs the check; returns the exit status: 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smoke", description=__doc__)
    names = [benchmark.name for benchmark in benchmarks]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help=f"some of {', '.join(names)}")
    only = parser.parse_args(arguments).only
    wrong: list[str] = []

    def run() -> None:
        console, began = Console(), perf_counter()
        asked = [one for one in benchmarks if one.quick is not None and (only is None or one.name in only)]
        with tempfile.TemporaryDirectory(prefix="bench-smoke-") as folder:
            wrong.extend(asyncio.run(check_all(asked, Path(folder), console)))
        told = f"FAILED: {', '.join(wrong)}" if wrong else "all of them run"
        console.print(f"{len(asked)} benchmarks, {perf_counter() - began:.0f} s: {told}", highlight=False)

    return ends_with_one_line(run) or int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
