"""All benchmarks, from catalogue.toml: what is run, with which arguments, for how long, and which keys its JSON has.

`benchmarks.suite` runs those that fit into half an hour, `benchmarks.smoke` all of them with tiny sizes, and
`benchmarks.report_page` makes a section of each. A new benchmark is an entry there and a section in report.md.jinja.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ALL_HAVE = "machine versions"
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An entry of catalogue.toml."""

    name: str
    module: str
    minutes: float
    keys: str
    arguments: Sequence[str] = ()
    quick: Sequence[str] | None = ("--quick",)
    needs_gpu: bool = False

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Returns what is typed after ``python``."""
        return ["-m", f"benchmarks.{self.module}", *arguments]


BENCHMARKS = tuple(
    Benchmark(**{"module": entry["name"], "quick": None, **entry})
    for entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["benchmark"]
)


def chosen(benchmarks: Sequence[Benchmark], *, minutes: float, has_gpu: bool) -> list[Benchmark]:
    """Returns those that fit into so many minutes, the first ones first; a long one makes room for later ones."""
    found = []
    for benchmark in benchmarks:
        if benchmark.minutes <= minutes and (has_gpu or not benchmark.needs_gpu):
            found.append(benchmark)
            minutes -= benchmark.minutes
    return found


def missing_keys(figures: object, keys: str) -> list[str]:
    """Returns the keys that a JSON should have and lacks; catalogue.toml explains their syntax."""
    return [key for key in f"{_ALL_HAVE} {keys}".split() if not _has(figures, key)]


def _has(figures: object, key: str) -> bool:
    name, _, rest = key.partition(".")
    found = figures.get(name.removesuffix("[]"), _ABSENT) if isinstance(figures, dict) else _ABSENT
    if name.endswith("[]"):
        return isinstance(found, list) and bool(found) and all(_has(element, rest) for element in found)
    return found is not _ABSENT and (not rest or _has(found, rest))
