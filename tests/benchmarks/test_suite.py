from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import suite
from benchmarks.catalogue import Benchmark
from benchmarks.harness import Ended
from benchmarks.report_page import Results

CACHE = Benchmark("cache", "cache", 1, "")
TAIL = Benchmark("tail", "tail", 2, "")
FIGURES = {"rows": [], "machine": {"cpu": "abacus"}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Modules that were run: `benchmarks.tail` fails, the others write figures."""
    found: list[str] = []

    async def run(arguments: Sequence[str], *, folder: Path, timeout_s: float) -> Ended:
        found.append(arguments[1])
        if arguments[1] == "benchmarks.tail":
            return Ended(1, "Traceback …\nConnectionError: refused")
        Path(arguments[-1]).write_text(json.dumps(FIGURES))
        return Ended(0, "a table")

    monkeypatch.setattr(suite, "run_program", run)
    return found


async def test_figures_are_kept_with_what_is_known_of_the_run(asked: list[str], tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.failed_file("cache").write_text("{}")
    assert await suite.run_one(CACHE, results) is None
    found = results.figures("cache")
    assert found is not None
    assert {name: found[name] for name in FIGURES} == FIGURES
    assert found["run"]["command"] == "python -m benchmarks.cache"
    assert set(found["run"]) == {"command", "began", "took_s", "other_programs_share"}
    assert results.failure("cache") is None


async def test_a_failure_is_kept_and_older_figures_stay(asked: list[str], tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.file("tail").write_text('{"old": 1}')
    failure = await suite.run_one(TAIL, results)
    assert failure == results.failure("tail")
    assert failure is not None
    assert failure["error"].endswith("ConnectionError: refused")
    assert results.figures("tail") == {"old": 1}


def test_the_others_go_on_and_the_status_says_so(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    monkeypatch.setattr(suite.report_page, "main", made.append)
    both = [TAIL, CACHE]
    assert suite.main(["--results", str(tmp_path)], benchmarks=both) == 1
    assert asked == ["benchmarks.tail", "benchmarks.cache"]
    assert made == [["--results", str(tmp_path)]]
    assert "FAILED: tail" in capsys.readouterr().out
    assert suite.main(["--results", str(tmp_path), "--only", "cache"], benchmarks=both) == 0
    assert suite.main(["--results", str(tmp_path), "--minutes", "1"], benchmarks=both) == 0
    assert asked[2:] == ["benchmarks.cache"] * 2
