"""The report and the README's tables, from the committed JSON files alone: ``python -m benchmarks.report_page``.

Nothing is measured. Reads ``NAME.json`` (and ``NAME.failed.json``), writes ``REPORT.md`` and ``plots/NAME.png`` beside
them, and what lies between two marks in the README. A test holds REPORT.md and README to what this makes of the JSON
files, so that no figure in them is typed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.catalogue import BENCHMARKS
from benchmarks.program import ROOT
from benchmarks.reporting.claims import Judged, judge
from benchmarks.reporting.decoding import DECODE, GPU, LOSSLESS, PIPELINES, SCALING
from benchmarks.reporting.fetching import CACHE, CLIENTS, INFLIGHT, SOAK, TAIL
from benchmarks.reporting.forerunners import FORERUNNERS
from benchmarks.reporting.growing import COST, RESUME, SCALE, SHUFFLE
from benchmarks.reporting.markdown import bulleted, table
from benchmarks.reporting.peers import PEERS
from benchmarks.reporting.remote import DROP_IN, RAW_AND_DECODED, TRAINING, short_table
from benchmarks.reporting.results import Results, circumstances
from benchmarks.reporting.section import Section

__all__ = ["RESULTS", "SECTIONS", "headline", "main", "readme_with", "report", "write"]

RESULTS = ROOT / "benchmarks" / "results"
_README = ROOT / "README.md"
_BEGIN = "<!-- measured: begin; made by python -m benchmarks.report_page, do not edit -->"
_END = "<!-- measured: end -->"

SECTIONS: tuple[Section, ...] = (
    PEERS,
    TRAINING,
    RAW_AND_DECODED,
    DROP_IN,
    FORERUNNERS,
    INFLIGHT,
    TAIL,
    CACHE,
    DECODE,
    LOSSLESS,
    PIPELINES,
    SCALING,
    SHUFFLE,
    RESUME,
    SCALE,
    COST,
    CLIENTS,
    GPU,
    SOAK,
)
_PREFACE = """\
# What was measured

Made by `python -m benchmarks.report_page` from the JSON files in this folder; nothing in it is typed. First all
targets, met or missed; then, for each benchmark, what was done, where and when, the figures with their spread, and the
command that repeats it. Figures of one table were measured in one run, the sides taking turns. Most were measured on a
virtual machine with two cores, where client, server and proxy share the processors; how much other programs had is
said wherever it was recorded. What was not measured is said, too.

`make bench` runs the set that fits into half an hour and writes this page anew; `python -m benchmarks.suite
--only NAME` runs one. In plots blue is ours, gray is others, orange is the local drive, black is the best possible.
"""


def report(results: Results) -> str:
    """REPORT.md."""
    judged = judge(results)
    parts = [_PREFACE, "## Targets", _counted(judged), _claims_table(judged, link=True)]
    for section in SECTIONS:
        parts += _section(section, results)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def headline(results: Results) -> str:
    """What the README shows: the targets that matter most, and the bucket beside the local drive."""
    judged = judge(results)
    shown = [each for each in judged if each.claim.headline]
    parts = [
        _claims_table(shown, link=False),
        _counted(judged)
        + " All of them, with spread, machine, versions and the commands: "
        + "[benchmarks/results/REPORT.md](benchmarks/results/REPORT.md).",
    ]
    train, none = results.figures(TRAINING.name), results.figures(RAW_AND_DECODED.name)
    if train is not None and none is not None:
        parts.append(short_table(train, none))
    return "\n\n".join(parts)


def readme_with(text: str, results: Results) -> str:
    """The README, with the part between its marks made anew.

    Raises:
        ValueError: It has not both marks.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("the README lacks the marks between which measured figures are written")
    return f"{before}{begin}\n\n{headline(results)}\n\n{end}{after}"


def write(results: Results, readme: Path | None) -> None:
    """Writes the report, its plots and the README's part.

    Args:
        results: Where figures are, and the report will be.
        readme: To be made anew; None leaves it.
    """
    for section in SECTIONS:
        figures = results.figures(section.name)
        file = _plot_file(section, results)
        if figures is None or section.plot is None:
            file.unlink(missing_ok=True)
        else:
            section.plot(figures, file)
    (results.folder / "REPORT.md").write_text(report(results), encoding="utf-8")
    if readme is not None:
        readme.write_text(readme_with(readme.read_text(encoding="utf-8"), results), encoding="utf-8")


def _plot_file(section: Section, results: Results) -> Path:
    return results.folder / "plots" / f"{section.name}.png"


def _section(section: Section, results: Results) -> list[str]:
    name = section.name
    parts = [f"## {section.title}", section.what]
    failure = results.failure(name)
    if failure is not None:
        parts.append(
            f"**The last run failed** ({failure.began}, `{failure.command}`):\n\n```text\n{failure.error}\n```"
        )
    figures = results.figures(name)
    command = _command(name)
    if figures is None:
        return [*parts, f"Not measured. Command: `{command}`"]
    if section.plot is not None:
        parts.append(f"![{section.alt}](plots/{name}.png)")
    facts = [("Latency", section.latency(figures)), ("Cache", section.cache), *circumstances(figures)]
    again = [("Figures", f"[{name}.json]({name}.json)"), ("Again", f"`{command}`")]
    return [*parts, section.body(figures), bulleted([*facts, *again])]


def _command(name: str) -> str:
    found = [benchmark for benchmark in BENCHMARKS if benchmark.name == name]
    arguments = found[0].command(found[0].arguments) if found else ["-m", f"benchmarks.{name}"]
    return " ".join(["python", *arguments, "--json", "FILE"])


def _claims_table(judged: Sequence[Judged], *, link: bool) -> str:
    titles = {section.name: section.title for section in SECTIONS}
    rows = []
    for each in judged:
        claim = each.claim
        what = f"[{claim.what}](#{_anchor(titles[claim.benchmark])})" if link else claim.what
        rows.append([what, claim.told(each.value), each.target, each.verdict])
    return table(["", "measured", "target", ""], rows)


def _anchor(title: str) -> str:
    """Of a heading, as GitHub makes it."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _counted(judged: Sequence[Judged]) -> str:
    missed = [each.claim.what for each in judged if each.value is not None and not each.claim.met(each.value)]
    unmeasured = sum(each.value is None for each in judged)
    met = len(judged) - len(missed) - unmeasured
    told = f"{met} of {len(judged)} targets are met, {len(missed)} missed"
    told += f", {unmeasured} not measured." if unmeasured else "."
    return told + (f" Missed: {'; '.join(missed)}." if missed else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_page", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="of another folder; leaves the README alone"
    )
    folder = parser.parse_args(arguments).results.resolve()
    write(Results(folder), _README if folder == RESULTS else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
