from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import smoke
from benchmarks.catalogue import Benchmark
from benchmarks.harness import Ended

GOOD = '{"machine": {}, "versions": {}, "speedup": 2}'
ONE = Benchmark("one", "one", 1, "speedup")


class FakePrograms:
    """Stands in for the benchmarks: ends as it is told, and writes a file if it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ended: Ended, written: str | None) -> None:
        self.asked: list[Sequence[str]] = []
        self._ended, self._written = ended, written
        monkeypatch.setattr(smoke, "run_program", self.run)

    async def run(self, arguments: Sequence[str], *, folder: Path, timeout_s: float) -> Ended:
        self.asked.append(arguments)
        assert folder.is_dir()
        if self._written is not None:
            Path(arguments[-1]).write_text(self._written)
        return self._ended


async def check(monkeypatch: pytest.MonkeyPatch, folder: Path, ended: Ended, written: str | None) -> str | None:
    FakePrograms(monkeypatch, ended, written)
    return await smoke.check(ONE, folder)


async def test_one_that_runs_and_has_its_keys_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs = FakePrograms(monkeypatch, Ended(0, "a table"), GOOD)
    assert await smoke.check(ONE, tmp_path) is None
    assert programs.asked == [["-m", "benchmarks.one", "--quick", "--json", str(tmp_path / "figures.json")]]


@pytest.mark.parametrize(
    ("ended", "written", "told"),
    [
        (Ended(1, "Traceback\nKeyError: 'x'"), None, "ended with status 1\nTraceback\nKeyError: 'x'"),
        (Ended(None, ""), None, "not done in time"),
        (Ended(0, ""), None, "cannot be read: FileNotFoundError"),
        (Ended(0, ""), "{", "cannot be read: JSONDecodeError"),
        (Ended(0, ""), '{"machine": {}, "versions": {}}', "its JSON has not: speedup"),
    ],
)
async def test_what_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: Ended, written: str | None, told: str
) -> None:
    assert told in str(await check(monkeypatch, tmp_path, ended, written))


async def test_the_report_has_to_bear_the_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakePrograms(monkeypatch, Ended(0, ""), GOOD)
    told = await smoke.check(Benchmark("drop_in", "drop_in", 1, "speedup"), tmp_path)
    assert told == "the report cannot be made of it: KeyError: 'rows'"


async def test_without_a_gpu_one_that_needs_it_has_to_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = Benchmark("gpu", "gpu", 1, "speedup", needs_gpu=True)
    FakePrograms(monkeypatch, Ended(2, "no CUDA device can be used here"), None)
    assert await smoke.check(gpu, tmp_path) is None
    assert await smoke.check(ONE, tmp_path) is not None
    FakePrograms(monkeypatch, Ended(2, "usage: …"), None)
    assert await smoke.check(gpu, tmp_path) is not None


@pytest.mark.slow
def test_the_long_ones_begin_first(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = FakePrograms(monkeypatch, Ended(0, ""), GOOD)
    assert (
        smoke.main([], benchmarks=[Benchmark("short", "short", 0.5, "speedup"), Benchmark("long", "long", 9, "")]) == 0
    )
    assert [asked[1] for asked in programs.asked] == ["benchmarks.long", "benchmarks.short"]


@pytest.mark.slow
def test_the_exit_status_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    two = Benchmark("two", "two", 1, "speedup")
    FakePrograms(monkeypatch, Ended(0, ""), GOOD)
    same = Benchmark("same", "two", 1, "another", quick=None)
    assert smoke.main([], benchmarks=[ONE, two, same]) == 0
    assert "2 benchmarks" in capsys.readouterr().out
    FakePrograms(monkeypatch, Ended(1, "KeyError: 'x'"), None)
    assert smoke.main(["--only", "two"], benchmarks=[ONE, two]) == 1
    out = capsys.readouterr().out
    assert "KeyError: 'x'" in out
    assert "FAILED: two" in out
    assert "one" not in out.replace("None", "")
