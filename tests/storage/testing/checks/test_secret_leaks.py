from __future__ import annotations

import subprocess
import sys

import pytest

from concurrent_loader.storage.testing.checks.secret_leaks import Canary

SECRET = "sing-no-more"


def report(*, sections=(), longrepr=None, outcome="passed"):
    return pytest.TestReport("test", ("file", 1, "test"), {}, outcome, longrepr, "call", sections)


@pytest.fixture
def watching():
    watching = Canary()
    watching.watch(SECRET, None, "")
    return watching


@pytest.mark.parametrize(
    "shown",
    [
        report(sections=[("Captured stdout call", f"x {SECRET} y"), ("Captured log call", "fine")]),
        report(sections=[("Captured log call", f"x {SECRET} y")]),
        report(longrepr=f"AssertionError: {SECRET}", outcome="failed"),
    ],
)
def test_a_report_with_a_secret_fails_and_is_masked(watching, shown):
    watching.inspect(shown)
    assert shown.failed
    assert "a secret was shown" in shown.longreprtext
    assert SECRET not in shown.longreprtext + str(shown.sections)


def test_other_reports_stay_as_they_are(watching):
    clean = report(sections=[("Captured stdout call", "x")])
    watching.inspect(clean)
    assert clean.passed
    assert clean.sections == [("Captured stdout call", "x")]


@pytest.mark.processes
def test_the_hook_sees_what_tests_print_log_and_raise(tmp_path):
    (tmp_path / "test_it.py").write_text(
        f"""
import logging, os, sys
import pytest

@pytest.fixture(autouse=True)
def watched(canary):
    canary.watch({SECRET!r})

def test_silent(): pass
def test_out(): print({SECRET!r})
def test_err(): print({SECRET!r}, file=sys.stderr)
def test_descriptor(): os.write(1, {SECRET!r}.encode())
def test_log(): logging.getLogger("x").warning("%s", {SECRET!r})
def test_error(): raise ValueError({SECRET!r})

@pytest.fixture
def late():
    yield
    print({SECRET!r})

def test_teardown(late): pass
"""
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "concurrent_loader.storage.testing.checks.secret_leaks",
        "-p",
        "no:cacheprovider",
        "-ra",
    ]
    done = subprocess.run([*command, "test_it.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "5 failed, 2 passed, 1 error" in done.stdout, done.stdout
    for name in ("out", "err", "descriptor", "log", "error"):
        assert f"FAILED test_it.py::test_{name} - a secret was shown" in done.stdout
    assert "ERROR test_it.py::test_teardown - a secret was shown" in done.stdout
