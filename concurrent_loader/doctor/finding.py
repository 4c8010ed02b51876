"""Defines the result of one check: its level, a message, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "Level", "is_healthy"]


class Level(StrEnum):
    """Ranks the result of a check."""

    OK = "ok"
    WARN = "warn"  # works, but slower or less safely than possible
    FAIL = "fail"  # training will not work


@dataclass(frozen=True, slots=True)
class Finding:
    """Stores the result of one check. Never contains a secret.

    Attributes:
        name: Fixed name of the check.
        level: Level of the result.
        message: One sentence for a person, without a full stop.
        advice: Next step; empty exactly if the level is OK.
        facts: Figures for programs, with units in their names.
    """

    name: str
    level: Level
    message: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.level is Level.OK) == bool(self.advice):
            raise ValueError(f"a finding needs advice exactly if its level is not OK: {self.name}")

    def as_json(self) -> dict[str, Any]:
        """Returns plain values, as ``--json`` prints them."""
        return {**asdict(self), "level": self.level.value, "facts": dict(self.facts)}


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Returns whether no check failed; warnings do not count."""
    return all(finding.level is not Level.FAIL for finding in findings)
