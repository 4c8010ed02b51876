"""A canary for test suites: a test that prints a secret fails, whatever else it proves.

Import the fixture and the hook into a ``conftest.py``, or load the module as a plugin (``-p storage.testing.canary``).
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

__all__ = ["Canary", "canary", "pytest_runtest_makereport"]


class Canary:
    """Secrets that nothing may print."""

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}

    def watch(self, *secrets: str | None) -> None:
        """Adds secrets; for the rest of the session."""
        self._secrets.update(dict.fromkeys(secret for secret in secrets if secret))

    def is_in(self, text: str) -> bool:
        """Whether one of them is somewhere in a text."""
        return any(secret in text for secret in self._secrets)

    def mask(self, text: str) -> str:
        """The text without them."""
        for secret in self._secrets:
            text = text.replace(secret, "(a secret)")
        return text

    def inspect(self, report: pytest.TestReport) -> None:
        """Fails a report that shows a secret, in what the test printed or in how it failed; masks it there."""
        # Later phases' reports repeat the sections of earlier ones.
        places = [title for title, text in report.sections if title.endswith(report.when) and self.is_in(text)]
        if self.is_in(report.longreprtext):
            places.append("how it failed")
        if places:
            report.outcome = "failed"
            lines = [f"a secret was shown: {', '.join(places)}", self.mask(report.longreprtext)]
            report.longrepr = "\n".join(lines).rstrip()
        report.sections = [(title, self.mask(text)) for title, text in report.sections]


_canary = Canary()


@pytest.fixture(scope="session")
def canary() -> Canary:
    """The session's; a test that makes secrets of its own has them watched."""
    return _canary


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Inspects every report of every phase of every test."""
    report = yield
    _canary.inspect(report)
    return report
