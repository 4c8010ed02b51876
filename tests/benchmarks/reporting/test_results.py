from __future__ import annotations

from pathlib import Path

from benchmarks.reporting.results import Results, circumstances

MACHINE = {"cpu": "abacus", "num_cores": 2, "memory_gb": 25.3, "system": "Linux", "load_before": 0.4}


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert Results(tmp_path).figures("tail") is None
    assert Results(tmp_path).failure("tail") is None


def test_where_and_when() -> None:
    figures = {
        "machine": {**MACHINE, "measured_at": "yesterday"},
        "versions": {"python": "3.11", "torch": "2.15"},
        "device": "H200",
        "other_programs_share": 0.012,
        "took_s": 1234.0,
    }
    assert circumstances(figures) == [
        ("Machine", "abacus, 2 cores, 25.3 GB; Linux; device: H200"),
        ("Versions", "python 3.11, torch 2.15"),
        ("When", "yesterday; took 1,234 s"),
        ("Other programs had", "1.2 %; load of the minute before: 0.4"),
    ]


def test_the_suite_knows_more_and_parts_have_shares_of_their_own() -> None:
    run = {"command": "…", "began": "today", "took_s": 60.0, "other_programs_share": 0.5}
    whole = dict(circumstances({"machine": MACHINE, "versions": {}, "run": run}))
    assert whole["When"] == "today; took 60 s"
    assert whole["Other programs had"].startswith("50.0 %;")
    parts = dict(circumstances({"machine": MACHINE, "run": run, "raw": {"other_programs_share": 0.1}}))
    assert parts["Other programs had"].startswith("10.0 % (raw);")


def test_what_was_not_recorded_is_said() -> None:
    assert {told for _, told in circumstances({})} == {"not recorded"}


def test_what_a_person_noted_of_a_run_is_told() -> None:
    told = circumstances({"remarks": ["a slow day", "two others at work"]})
    assert told[-2:] == [("Remark", "a slow day"), ("Remark", "two others at work")]
