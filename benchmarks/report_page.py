"""The report and the README's table, from the committed JSON files alone: ``python -m benchmarks.report_page``.

Nothing is measured. Reads ``NAME.json`` (and ``NAME.failed.json``), ``targets.csv`` and ``report.md.jinja``; writes
``REPORT.md`` and ``plots/NAME.png`` beside the JSON files, and the text between two marks in the README and in
docs/explanation/order.md. A test compares these pages with what this program makes of the JSON files: no figure in them
is typed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import ChainableUndefined, Environment, FileSystemLoader, StrictUndefined, Template

from benchmarks.catalogue import BENCHMARKS
from benchmarks.program import ROOT

Figures = Mapping[str, Any]
RESULTS = ROOT / "benchmarks" / "results"
_README = ROOT / "README.md"
_ORDER = ROOT / "docs" / "explanation" / "order.md"
_DASH = "–"


# -- the committed files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed."""

    command: str  # command as it is typed
    began: str  # time at which the run began
    error: str  # last lines of its output


@dataclass(frozen=True)
class Results:
    """A folder of results; any file may be absent."""

    folder: Path  # folder with ``NAME.json``, and ``NAME.failed.json`` where the last run failed

    def file(self, name: str) -> Path:
        """Returns the path of a benchmark's figures."""
        return self.folder / f"{name}.json"

    def failed_file(self, name: str) -> Path:
        """Returns the path of the record of a benchmark's failed run."""
        return self.folder / f"{name}.failed.json"

    def figures(self, name: str) -> dict[str, Any] | None:
        """Reads what a benchmark measured; None without a file."""
        file = self.file(name)
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    def failure(self, name: str) -> Failure | None:
        """Reads how a benchmark's last run failed; None if it did not."""
        file = self.failed_file(name)
        return Failure(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


# -- numbers as text ---------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Writes three digits, or all digits before the point: 0.194, 41,515; a dash for None."""
    if value is None:
        return _DASH
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    if rounded != 0 and abs(rounded) < 0.0001:
        return f"{rounded:.2e}"
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.10g}"


def percent(value: float | None) -> str:
    """Writes a share as a percentage with one decimal."""
    return _DASH if value is None else f"{100 * value:.1f} %"


def ranged(value: float | None, extremes: Sequence[float] | None) -> str:
    """Writes a median with its extremes, where they are known."""
    if value is None or not extremes:
        return number(value)
    return f"{number(value)} ({number(min(extremes))} … {number(max(extremes))})"


def seconds(value: float) -> str:
    """Writes a time with its unit."""
    scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "µs")
    return f"{value * scale:.3g} {unit}"


def size(num_bytes: float) -> str:
    """Writes a number of bytes with its unit."""
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.3g} KB"


def _cell(row: Figures, spec: str) -> str:
    """A cell: ``key``, ``key %``, ``key ±`` (extremes in ``spread``), ``key ± extremes``, or a format of the row."""
    if "{" in spec:
        return spec.format(**row)
    key, _, mark = spec.partition(" ")
    value: Any = row
    for name in key.split("."):
        value = None if value is None else value.get(name)
    if mark == "%":
        return percent(value)
    if mark.startswith("±"):
        other = mark.removeprefix("±").strip()
        return ranged(value, row[other] if other else row.get("spread", {}).get(key))
    return number(value) if value is None or isinstance(value, int | float) else str(value)


def grid(titles: Sequence[object], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Writes a Markdown table; the first ``left`` columns are aligned to the left."""
    marks = ["---"] * left + ["---:"] * (len(titles) - left)
    cells = [
        [number(cell) if cell is None or isinstance(cell, float | int) else str(cell) for cell in row] for row in rows
    ]
    lines = [[str(title) for title in titles], marks, *cells]
    return "\n".join(f"| {' | '.join(_flat(cell) for cell in line)} |" for line in lines)


def _flat(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def table(rows: Iterable[Figures], columns: Mapping[str, str], left: int = 1) -> str:
    """Writes rows as a Markdown table; ``columns`` has a cell's rule under its title (see `_cell`).

    A column that has no value in any row is left out.
    """
    rows = list(rows)
    found = [list(row) for row in zip(*([_cell(row, spec) for row in rows] for spec in columns.values()), strict=True)]
    kept = [at for at in range(len(columns)) if at < left or any(row[at] != _DASH for row in found)]
    titles = list(columns)
    return grid([titles[at] for at in kept], ([row[at] for at in kept] for row in found), left)


def pivot(rows: Iterable[Figures], index: Sequence[str], over: str, spec: str, titles: Sequence[str]) -> str:
    """Writes one line for each ``index`` and one column for each value of ``over``."""
    frame = pd.DataFrame([{**{key: row[key] for key in (*index, over)}, "cell": _cell(row, spec)} for row in rows])
    wide = frame.pivot_table(index=list(index), columns=over, values="cell", aggfunc="first", sort=False).reset_index()
    found = wide.astype(object).where(wide.notna(), _DASH)
    return grid([*titles, *(str(name) for name in found.columns[len(index) :])], found.values.tolist(), len(index))


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
            return _DASH
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
    """The worst of a ratio that may be one number, or one for each latency."""
    values = [value] if isinstance(value, int | float) else list(value.values()) if isinstance(value, dict) else []
    return (min if at_least else max)((each for each in values if each is not None), default=None)


def _below_optimum(rows: object) -> float | None:
    """How far the hit rate is below that of the best possible eviction, at the worst cache size."""
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


def circumstances(figures: Figures) -> list[tuple[str, str]]:
    """Returns where and when figures were measured, and the share of other programs if it was recorded."""
    machine, run = figures.get("machine", {}), figures.get("run", {})
    what = when = others = "not recorded"
    if machine:
        what = f"{machine['cpu']}, {machine['num_cores']} cores, {number(machine['memory_gb'])} GB; {machine['system']}"
    if "device" in figures:
        what += f"; device: {figures['device']}"
    when = run.get("began") or machine.get("measured_at") or when
    if took := run.get("took_s", figures.get("took_s")):
        when += f"; took {took:,.0f} s"
    key = "other_programs_share"
    shares = {f" ({name})": part[key] for name, part in figures.items() if isinstance(part, dict) and key in part}
    whole = shares.pop(" (run)", None)
    shares = {"": figures[key]} | shares if key in figures else shares
    if whole is not None and not shares:
        shares = {"": whole}
    others = ", ".join(f"{percent(share)}{name}" for name, share in shares.items()) or others
    if "load_before" in machine:
        others += f"; load of the minute before: {machine['load_before']}"
    versions = ", ".join(f"{name} {version}" for name, version in figures.get("versions", {}).items())
    return [
        ("Machine", what),
        ("Versions", versions or "not recorded"),
        ("When", when),
        ("Other programs had", others),
        *(("Remark", remark) for remark in figures.get("remarks", ())),
    ]


def unfinished(row: Figures, load: Figures) -> str | None:
    """Returns why the median turn of a loader did not finish its epoch; None if it finished.

    The time limit of an epoch is checked at each batch: a loader whose first batch comes late is cut off there.
    """
    if row["complete"] is not False or row["samples"] >= row["of_samples"]:
        return None
    limit_s = load["objects_limit_s" if row["layout"] == "objects" else "limit_s"]
    late = f"first batch after {number(row['first_batch_s'])} s; "
    return f"did not finish ({late}limit {limit_s:g} s: {row['samples']:,} of {row['of_samples']:,} samples)"


def peer_rows(figures: Figures) -> list[dict[str, Any]]:
    """The measured rows of `benchmarks.peers` with a name, the cell's words, and the rate as it may be shown."""
    found = []
    for row in figures["rows"]:
        if row["samples_s"] is None:
            continue
        ours = str(row["peer"]).startswith("ours")
        where = "local drive" if row["latency_ms"] is None else f"{number(row['latency_ms'])} ms"
        why = unfinished(row, figures.get("load", {}))
        cut = " (some turns were cut off)" if row.get("complete") is False and why is None else ""
        rate = ranged(row["samples_s"], row.get("spread", {}).get("samples_s")) + cut
        cpu = ranged(row["cpu_s_per_1000"], row.get("spread", {}).get("cpu_s_per_1000"))
        name = "ours" if ours else row.get("title", row["peer"])
        found.append(
            {
                **row, "ours": ours, "name": name, "shown_name": f"**{name}**" if ours else name, "where": where,
                "label": f"{name}, {row['layout']}", "unfinished": why, "rate": why or rate,
                "cpu": _DASH if why else cpu, "workers": row.get("workers"),
                "cell": ", ".join([row["kind"], row["epoch"], where, _workers(row.get("workers"))]).rstrip(", "),
            }
        )  # fmt: skip
    local = [row["latency_ms"] is None for row in found]
    order = sorted(range(len(found)), key=lambda at: (
        found[at]["kind"] != "raw", local[at], found[at]["latency_ms"] or math.inf, found[at]["epoch"],
        found[at]["unfinished"] is not None, -found[at]["samples_s"]))  # fmt: skip
    return [found[at] for at in order]


def _workers(count: int | None) -> str:
    return "" if count is None else f"{count} worker{'s' * (count > 1)}"


def by_cell(rows: Sequence[Figures]) -> list[list[str]]:
    """Divides ours over shards by the best of the others, in each cell that both were measured in.

    ``†`` marks a ratio whose best rival did not finish: its rate is that of the part before the limit.
    """
    found = []
    for cell in dict.fromkeys(row["cell"] for row in rows if row["latency_ms"] is not None):
        there = [row for row in rows if row["cell"] == cell]
        mine = next((row for row in there if row["peer"] == "ours"), None)
        others = [row for row in there if not row["ours"]]
        if mine is None or not others:
            continue
        fastest = max(others, key=lambda row: float(row["samples_s"]))
        thrifty = min(others, key=lambda row: row["cpu_s_per_1000"] or math.inf)
        first = min(others, key=lambda row: row["first_batch_s"] or math.inf)
        mark, cpu_mark = (" †" if row["unfinished"] else "" for row in (fastest, thrifty))
        found.append([
            cell, f"{mine['samples_s'] / fastest['samples_s']:.2f}{mark}",
            f"{thrifty['cpu_s_per_1000'] / mine['cpu_s_per_1000']:.2f}{cpu_mark}",
            f"{mine['first_batch_s'] / first['first_batch_s']:.2f}",
        ])  # fmt: skip
    return found


def _command(name: str) -> str:
    found = [benchmark for benchmark in BENCHMARKS if benchmark.name == name]
    arguments = found[0].command(found[0].arguments) if found else ["-m", f"benchmarks.{name}"]
    return " ".join(["python", *arguments, "--json", "FILE"])


def anchor(title: str) -> str:
    """Makes a heading's link target as GitHub does."""
    return "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_").replace(" ", "-")


# -- pages -------------------------------------------------------------------------------------------------------------


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, extensions=["jinja2.ext.do"],
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False,  # noqa: S701 - no HTML
    )  # fmt: skip
    makers = (number, percent, ranged, seconds, size, grid, table, pivot, circumstances, peer_rows, by_cell, anchor)
    environment.filters |= {maker.__name__: maker for maker in makers}
    return environment.get_template("report.md.jinja")


def _part(macro: str, results: Results, *arguments: object) -> str:
    module = _template().make_module({"results": results, "targets": targets(results), "command": _command})
    return str(getattr(module, macro)(*arguments)).strip()


def report(results: Results) -> str:
    """Makes REPORT.md."""
    return _part("report", results) + "\n"


class _One(Results):
    """The figures of one run, in memory."""

    def __init__(self, name: str, figures: dict[str, Any]) -> None:
        super().__init__(Path("-"))
        object.__setattr__(self, "_found", {name: figures})

    def figures(self, name: str) -> dict[str, Any] | None:
        found: dict[str, dict[str, Any]] = self._found  # type: ignore[attr-defined]
        return found.get(name)


def section(name: str, figures: dict[str, Any]) -> str:
    """Makes the section of one benchmark, for the terminal: without its plot and its links."""
    parts = report(_One(name, figures)).split("\n## ")
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
    """Makes the README and docs/explanation/order.md with their measured parts."""
    readme = with_part(_README.read_text(encoding="utf-8"), "measured", headline(results))
    order, figures = _ORDER.read_text(encoding="utf-8"), results.figures("scale")
    for name in ("nodes", "growth") if figures is not None else ():
        order = with_part(order, name, _part(f"order_{name}", results, figures))
    return {_README: readme, _ORDER: order}


def write(results: Results, *, with_pages: bool) -> None:
    """Writes the report and its plots, and the README's and the docs' parts if asked for."""
    from benchmarks.report_plots import PLOTS

    for name, plot in PLOTS.items():
        figures, file = results.figures(name), results.folder / "plots" / f"{name}.png"
        if figures is None:
            file.unlink(missing_ok=True)
        else:
            plot(figures, file)
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
    sys.exit(main())
