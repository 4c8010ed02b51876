"""What every benchmark's program has: its options, a progress bar, and what becomes of its figures."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, TypeVar

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import Bystanders, versions

Load = TypeVar("Load")
Side = TypeVar("Side")
Result = TypeVar("Result")

_INTERRUPTED = 130  # as a shell reports SIGINT


def command_line(name: str, description: str | None) -> argparse.ArgumentParser:
    """Makes a parser with the options of every benchmark, ``--json FILE`` and ``--quick``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs; no figures to quote")
    return parser


def program(
    name: str,
    description: str | None,
    measure: Callable[[Load, Console], Mapping[str, Any]],
    full: Load,
    quick: Load,
    *options: str,
    **lists: Collection[str],
) -> Callable[..., int]:
    """Makes the main function of a benchmark that has two sizes; it returns the exit status.

    ``options`` are those fields of the sizes, numbers, texts and switches, that the command line may set; ``lists`` are
    texts of several names with commas, each with the names that there are.
    """  # fmt: skip

    def main(arguments: Sequence[str] | None = None) -> int:
        parser = command_line(name, description)
        for option in options:
            default = getattr(full, option)
            how: Any = {"action": "store_true"} if isinstance(default, bool) else {"type": type(default)}
            parser.add_argument(f"--{option.replace('_', '-')}", default=None, help=f"default {default}", **how)
        for option, names in lists.items():
            parser.add_argument(f"--{option}", metavar="NAME,…", help=f"of {', '.join(names)}")
        parsed = vars(parser.parse_args(arguments))
        given = {option: parsed[option] for option in (*options, *lists) if parsed[option] is not None}
        for option, names in lists.items():
            if unknown := set(filter(None, given.get(option, "").split(","))) - {*names}:
                parser.error(f"--{option}: there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        if any(not isinstance(value, str) and value <= 0 for value in given.values()):
            parser.error("numbers must be positive")
        load: Any = quick if parsed["quick"] else full
        load = replace(load, **given) if given else load
        return publish(name, lambda console: measure(load, console), parsed["json"])

    return main


def publish(name: str, measure: Callable[[Console], Mapping[str, Any]], file: Path | None) -> int:
    """Measures, writes the JSON file if one is given, and prints the section of the report; returns the exit status.

    The machine, the versions, the duration and the share of other programs are added to the figures.
    """

    def run() -> None:
        from benchmarks.report_page import section

        console, others = Console(), Bystanders()
        measured = measure(console)
        figures = {
            **measured,
            **others.facts(),
            "machine": others.machine,
            "versions": {**versions(), **measured.get("versions", {})},
        }
        text = json.dumps(figures, indent=2) + "\n"
        if file is not None:
            file.write_text(text, encoding="utf-8")
        console.print(Markdown(section(name, json.loads(text))))

    return ends_with_one_line(run)


def in_turns(sides: Sequence[Side], num_rounds: int) -> Iterator[tuple[int, Side]]:
    """Yields every side in every round; odd rounds go backwards, so that a machine that slows down slows all alike."""
    for number in range(num_rounds):
        for side in sides[:: -1 if number % 2 else 1]:
            yield number, side


def rounds(
    console: Console, name: str, sides: Iterable[Side], num_rounds: int, measure: Callable[[Side], Result]
) -> dict[Side, list[Result]]:
    """Measures all sides in turns, with a progress bar; returns each side's results, one per round."""
    found: dict[Side, list[Result]] = {side: [] for side in sides}
    with bar(console, name, len(found) * num_rounds) as progress:
        for _, side in in_turns(list(found), num_rounds):
            found[side].append(measure(side))
            progress.advance()
    return found


def in_turns_by_item(
    calls: Mapping[str, Callable[[int], object]], num_items: int, num_rounds: int, tick: Callable[[], object]
) -> dict[str, list[float]]:
    """Returns each call's processor seconds for each item: medians over the rounds, of which the first warms up.

    Calls take turns item by item, in another order each time, so that whatever else the machine does befalls all alike.
    """
    took: dict[str, list[list[float]]] = {name: [[] for _ in range(num_items)] for name in calls}
    names = list(calls)
    for turn in range(num_rounds + 1):
        for item in range(num_items):
            first = (turn + item) % len(names)
            for name in names[first:] + names[:first]:
                began = thread_time()
                calls[name](item)
                if turn:
                    took[name][item].append(thread_time() - began)
        tick()
    return {name: [median(times) for times in each] for name, each in took.items()}


class Bar:
    """A progress bar that can be advanced by one or set to a count."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def advance(self) -> None:
        """Adds one."""
        self._progress.advance(self._task)

    def reach(self, count: int) -> None:
        """Sets the count."""
        self._progress.update(self._task, completed=count)


@contextlib.contextmanager
def bar(console: Console, name: str, total: int) -> Iterator[Bar]:
    """Shows a bar during the block, on a terminal; elsewhere nothing."""
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bar(progress, name, total)


def ends_with_one_line(run: Callable[[], object]) -> int:
    """Runs a program so that Ctrl-C and SIGTERM leave one line instead of a traceback; returns the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        Console(stderr=True).print("\ninterrupted: what was started has been stopped")
        return _INTERRUPTED
    return 0
