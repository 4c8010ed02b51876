"""The report and the README's table, from the committed JSON files alone: ``python -m benchmarks.report_page``.

Nothing is measured. Reads ``NAME.json`` (and ``NAME.failed.json``), ``targets.csv`` and ``report.md.jinja``; writes
``REPORT.md`` and ``plots/NAME.png`` beside the JSON files, and the text between two marks in the README,
docs/explanation/order.md, docs/how-to/ingest_at_scale.md and docs/how-to/whatif.md. A test compares these pages with
what this program makes of the JSON files: no figure in them is typed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import ChainableUndefined, Environment, FileSystemLoader, StrictUndefined

from benchmarks.catalogue import BENCHMARKS
from benchmarks.harness import ROOT
from benchmarks.report_text import DASH, FILTERS, number, percent

RESULTS = ROOT / "benchmarks" / "results"
_PARTS = (  # page, its marks, the macro that makes what lies between them, the benchmark whose figures that gets
    ("README.md", "measured", "headline", None),
    ("docs/explanation/order.md", "nodes", "order_nodes", "scale"),
    ("docs/explanation/order.md", "growth", "order_growth", "scale"),
    ("docs/how-to/ingest_at_scale.md", "plan", "ingest_plan", "ingest"),
    ("docs/how-to/whatif.md", "runs", "whatif_runs", "whatif"),
)


# -- the committed files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """A folder with ``NAME.json``, and ``NAME.failed.json`` where the last run failed; any file may be absent."""

    folder: Path
    found: Mapping[str, dict[str, Any]] | None = None  # figures in memory, in place of the files

    def file(self, name: str) -> Path:
        """Returns the path of a benchmark's figures."""
        return self.folder / f"{name}.json"

    def failed_file(self, name: str) -> Path:
        """Returns the path of the record of a benchmark's failed run."""
        return self.folder / f"{name}.failed.json"

    def figures(self, name: str) -> dict[str, Any] | None:
        """Reads what a benchmark measured; None without a file."""
        return _read(self.file(name)) if self.found is None else self.found.get(name)

    def failure(self, name: str) -> dict[str, str] | None:
        """Reads the command, the begin and the last lines (``error``) of a benchmark's last run if it failed."""
        return _read(self.failed_file(name))


def _read(file: Path) -> dict[str, Any] | None:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


# -- targets -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A line of targets.csv, and the figure that was measured; None without one."""

    benchmark: str
    what: str
    bound: float
    at_least: bool
    unit: str
    value: float | None

    def told(self, value: float | None) -> str:
        """Writes a figure or the bound with its unit."""
        if value is None:
            return DASH
        return percent(value) if self.unit == "%" else f"{number(value)} {self.unit}".rstrip()

    @property
    def bounded(self) -> str:
        """The bound with its direction."""
        return f"{'≥' if self.at_least else '≤'} {self.told(self.bound)}"

    @property
    def verdict(self) -> str:
        """``met``, ``**MISSED**`` or ``not measured``."""
        if self.value is None:
            return "not measured"
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        return "met" if met else "**MISSED**"


def _worst(value: object, at_least: bool = True) -> float | None:
    """Returns the worst of a ratio that may be one number, or one for each latency."""
    values = [value] if isinstance(value, int | float) else list(value.values()) if isinstance(value, dict) else []
    return (min if at_least else max)((each for each in values if each is not None), default=None)


def _below_optimum(rows: object) -> float | None:
    """Returns how far the hit rate is below that of the best possible eviction, at the worst cache size."""
    if not isinstance(rows, list):
        return None
    rates = pd.DataFrame(rows).pivot(index="budget", columns="policy", values="hit_rate")
    return round(float((rates["optimum"] - rates["ours"]).max()), 3)


_PATHS = Environment(undefined=ChainableUndefined, autoescape=False)  # noqa: S701 - no HTML
_PATHS.filters |= {"worst": _worst, "below_optimum": _below_optimum}


def targets(results: Results) -> list[Target]:
    """Compares the results with targets.csv; ``path`` there is a Jinja expression over a benchmark's JSON."""
    lines = pd.read_csv(Path(__file__).with_name("targets.csv"), keep_default_na=False)
    found = []
    for line in lines.to_dict("records"):
        figures = results.figures(line["benchmark"])
        value = None if figures is None else _PATHS.compile_expression(line["path"])(**figures)
        found.append(
            Target(
                line["benchmark"], line["what"], float(line["bound"]), line["direction"] == "at least",
                line["unit"], float(value) if isinstance(value, int | float) else None,
            )
        )  # fmt: skip
    return found


# -- what a table needs beyond the JSON --------------------------------------------------------------------------------


def _command(name: str) -> str:
    benchmark = next(benchmark for benchmark in BENCHMARKS if benchmark.name == name)
    return " ".join(["python", *benchmark.command(benchmark.arguments), "--json", "FILE"])


def anchor(title: str) -> str:
    """Makes a heading's link target as GitHub does."""
    return "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_").replace(" ", "-")


# -- pages -------------------------------------------------------------------------------------------------------------


def _part(macro: str, results: Results, *arguments: object) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, extensions=["jinja2.ext.do"],
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False,  # noqa: S701 - no HTML
    )  # fmt: skip
    environment.filters |= FILTERS | {"anchor": anchor}
    names = {"results": results, "targets": targets(results), "command": _command}
    module = environment.get_template("report.md.jinja").make_module(names)
    return str(getattr(module, macro)(*arguments)).strip()


def report(results: Results) -> str:
    """Makes REPORT.md."""
    return _part("report", results) + "\n"


def section(name: str, figures: dict[str, Any]) -> str:
    """Makes the section of one benchmark, for the terminal: without its plot and its links."""
    parts = report(Results(Path("-"), {name: figures})).split("\n## ")
    found = next(part for part in parts if f"]({name}.json)" in part)
    return "## " + "\n".join(line for line in found.splitlines() if not line.startswith(("![", "- Figures: [")))


def headline(results: Results) -> str:
    """Makes the README's part: three rows, and how many targets are met."""
    return _part("headline", results)


def with_part(text: str, name: str, part: str) -> str:
    """Replaces the text between the two marks of a name."""
    marks = re.compile(rf"(<!-- {name}: begin[^>]*-->).*(<!-- {name}: end[^>]*-->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"the page lacks the marks of the part {name!r}")
    return marks.sub(lambda found: f"{found[1]}\n\n{part}\n\n{found[2]}", text)


def pages(results: Results) -> dict[Path, str]:
    """Makes the README and the pages of the documentation with their measured parts."""
    found: dict[Path, str] = {}
    for name, mark, macro, benchmark in _PARTS:
        figures = [] if benchmark is None else [results.figures(benchmark)]
        page = ROOT / name
        found.setdefault(page, page.read_text(encoding="utf-8"))
        if None not in figures:
            found[page] = with_part(found[page], mark, _part(macro, results, *figures))
    return found


def write(results: Results, *, with_pages: bool) -> None:
    """Writes the report and its plots, and the README's and the docs' parts if asked for."""
    from benchmarks.report_plots import PLOTS, save

    for name in PLOTS:
        figures, file = results.figures(name), results.folder / "plots" / f"{name}.png"
        if figures is None:
            file.unlink(missing_ok=True)
        else:
            save(name, figures, file)
    (results.folder / "REPORT.md").write_text(report(results), encoding="utf-8")
    for page, text in pages(results).items() if with_pages else ():
        page.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_page", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="another folder; leaves README and docs alone"
    )
    folder = parser.parse_args(arguments).results.resolve()
    write(Results(folder), with_pages=folder == RESULTS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
