"""A pytest plugin that fails every test that prints a secret.

Import the fixture and the hook into a ``conftest.py``, or load the module as a plugin (``-p
concurrent_loader.storage.testing.checks.secret_leaks``).
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

__all__ = ["Canary", "canary", "pytest_runtest_makereport"]


class Canary:
    """The secrets that no test may print."""

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}

    def watch(self, *secrets: str | None) -> None:
        """Adds secrets for the rest of the session."""
        self._secrets.update(dict.fromkeys(secret for secret in secrets if secret))

    def is_in(self, text: str) -> bool:
        """Returns whether a text contains a secret."""
        return any(secret in text for secret in self._secrets)

    def mask(self, text: str) -> str:
        """Returns the text with all secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, "(a secret)")
        return text

    def inspect(self, report: pytest.TestReport) -> None:
        """Fails a report whose output or failure shows a secret, and masks the secret."""
        # The reports of later phases repeat the sections of earlier ones.
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
    """Canary of the session, to which tests add their own secrets."""
    return _canary


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Inspects the report of every phase of every test."""
    report = yield
    _canary.inspect(report)
    return report
