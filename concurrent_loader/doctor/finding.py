"""What doctor found about one thing: how it stands, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "Level", "is_healthy"]


class Level(StrEnum):
    """How a thing stands."""

    OK = "ok"
    WARN = "warn"  # it works, slower or less safely than it could
    FAIL = "fail"  # training will not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result. Nothing in it is secret.

    Attributes:
        name: Of the check, always the same.
        level: How the thing stands.
        said: One sentence without a full stop, for a person.
        advice: What to do, where there is something to do: of all levels but OK.
        facts: Figures with their units in their names, for programs.
    """

    name: str
    level: Level
    said: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.level is Level.OK) == bool(self.advice):
            raise ValueError(f"advice belongs to what is not well, and only there: {self.name}")

    def as_json(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        return {**asdict(self), "level": self.level.value, "facts": dict(self.facts)}


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing failed; warnings do not count."""
    return all(finding.level is not Level.FAIL for finding in findings)
