"""The main function that benchmarks with two sizes share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks import command


@dataclass(frozen=True)
class Load:
    minutes: float = 30.0
    samples: int = 100
    place: str = ""


def measured(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Load:
    found: list[Load] = []
    monkeypatch.setattr(command, "publish", lambda name, measure, file: measure(None))

    def measure(load: Load, console: object) -> int:
        found.append(load)
        return 0

    main = command.program("x", "words", measure, Load(), Load(0.1, 1), "minutes", "place")
    assert main(arguments) == 0
    return found[0]


def test_two_sizes_and_what_the_command_line_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch) == Load()
    assert measured(monkeypatch, "--quick") == Load(0.1, 1)
    assert measured(monkeypatch, "--quick", "--minutes", "2.5", "--place", "here") == Load(2.5, 1, "here")


def test_a_list_of_names_is_checked_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main = command.program("x", "words", lambda load, console: {}, Load(), Load(), place=("here", "there"))
    with pytest.raises(SystemExit):
        main(["--place", "here,nowhere"])
    assert "--place: there is no nowhere; there are here, there" in capsys.readouterr().err


def test_a_list_of_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(command, "publish", lambda name, run, file: run(None))
    main = command.program(
        "x", "words", lambda load, console: found.append(load.place), Load(), Load(), place=("here", "there")
    )
    main(["--place", "there,here"])
    main(["--place", ""])
    main([])
    assert found == ["there,here", "", Load().place]


@pytest.mark.parametrize("wrong", [["--minutes", "0"], ["--samples", "3"], ["--minutes", "some"]])
def test_impossible_options(
    monkeypatch: pytest.MonkeyPatch, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        measured(monkeypatch, *wrong)
    assert "error" in capsys.readouterr().err


def test_items_take_turns_and_the_first_round_warms_up() -> None:
    asked: list[tuple[str, int]] = []
    calls = {name: lambda item, name=name: asked.append((name, item)) for name in "ab"}
    ticks: list[int] = []
    took = command.in_turns_by_item(calls, 2, 3, lambda: ticks.append(1))
    assert asked[:6] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("b", 0), ("a", 0)]
    assert (len(asked), len(ticks)) == (16, 4)
    assert {name: len(times) for name, times in took.items()} == {"a": 2, "b": 2}
