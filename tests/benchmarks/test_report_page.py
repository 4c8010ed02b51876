from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import report_page
from benchmarks.report_page import RESULTS, SECTIONS, headline, readme_with, report, write
from benchmarks.reporting.results import Results

README = RESULTS.parent.parent / "README.md"
COMMITTED = Results(RESULTS)


def test_the_committed_report_is_what_the_committed_figures_make() -> None:
    told = "run python -m benchmarks.report_page and commit what it changes"
    assert (RESULTS / "REPORT.md").read_text(encoding="utf-8") == report(COMMITTED), told
    text = README.read_text(encoding="utf-8")
    assert text == readme_with(text, COMMITTED), told


def test_every_figure_file_has_a_section_and_its_plot() -> None:
    names = {file.name.removesuffix(".json").removesuffix(".failed") for file in RESULTS.glob("*.json")}
    sections = {section.name: section for section in SECTIONS}
    assert names <= set(sections)
    plots = {file.stem for file in (RESULTS / "plots").iterdir()}
    assert plots == {name for name in names if sections[name].plot and COMMITTED.figures(name)}


def test_links_of_the_report_lead_somewhere() -> None:
    text = report(COMMITTED)
    headings = {report_page._anchor(line[3:]) for line in text.splitlines() if line.startswith("## ")}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert {link[1:] for link in links if link.startswith("#")} <= headings
    assert all((RESULTS / link).exists() for link in links if not link.startswith(("#", "https://")))


def test_nothing_measured_is_said_section_by_section(tmp_path: Path) -> None:
    text = report(Results(tmp_path))
    assert text.count("\nNot measured. Command: `python -m benchmarks.") == len(SECTIONS)
    assert "0 of" in headline(Results(tmp_path))
    assert "**MISSED**" not in text


def test_a_failure_is_in_the_report_with_its_exact_error(tmp_path: Path) -> None:
    failure = {"command": "python -m benchmarks.tail", "began": "today", "error": "Traceback …\nOSError: [Errno 98]"}
    Results(tmp_path).failed_file("tail").write_text(json.dumps(failure))
    assert "**The last run failed** (today, `python -m benchmarks.tail`)" in report(Results(tmp_path))
    assert "OSError: [Errno 98]" in report(Results(tmp_path))


def test_a_plot_is_the_same_every_time(tmp_path: Path) -> None:
    figures = COMMITTED.figures("cache")
    section = next(section for section in SECTIONS if section.name == "cache")
    assert figures is not None
    assert section.plot is not None
    for name in ("one", "two"):
        section.plot(figures, tmp_path / "plots" / f"{name}.png")
    one, two = ((tmp_path / "plots" / f"{name}.png").read_bytes() for name in ("one", "two"))
    assert one == two
    assert one.startswith(b"\x89PNG")


def test_it_is_written_beside_the_figures(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "cache.json", tmp_path)
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "tail.png").write_bytes(b"of figures that are gone")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report_page._BEGIN}\nstale\n{report_page._END}\nafter\n")
    write(Results(tmp_path), readme)
    assert [file.name for file in (tmp_path / "plots").iterdir()] == ["cache.png"]
    assert "[cache.json](cache.json)" in (tmp_path / "REPORT.md").read_text()
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "stale" not in text
    assert headline(Results(tmp_path)) in text


def test_a_readme_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="marks"):
        readme_with("nothing", COMMITTED)
