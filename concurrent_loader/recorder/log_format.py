"""Format of a rank's log: lines of text, each of which ends with the head of a hash chain. No I/O.

::

    S {"format":1,"rank":0,"time":1764000000.0,"torn":0,"world_size":2} HEAD    a session: one process records
    B 3 40 ORDER PARENT HEAD                 an iteration begins at epoch 3, step 40
    40 256 HEAD                              step 40 delivered 256 samples, padding aside
    41 ? HEAD                                step 41 delivered a batch that does not carry sample numbers
    42 255 {"failed":[7],"ids":[…],"padded":0,"sources":[]} HEAD    a batch with skipped or replaced samples
    E 3 HEAD                                 epoch 3 ended

A head is the hash of the head before, the line's text, and the step's sample numbers. The numbers themselves follow
from the order, so they are not stored. ORDER is the digest of an `order-….json`. PARENT is the head in the restored
state, ``none`` for a restored state without a head, or ``new`` if no state was restored.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FIRST_HEAD", "HEAD_LENGTH", "Begin", "End", "Line", "Session", "Step", "is_head", "next_head", "parse_line"]

FIRST_HEAD = "0" * 32
HEAD_LENGTH = 32
FORMAT = 1

_HEAD = re.compile(r"[0-9a-f]{32}")
_NUMBER = r"(?:0|[1-9]\d{0,17})"
_STEP = re.compile(rf"({_NUMBER}) ({_NUMBER}|\?)(?: (\{{.*\}}))?")
_BEGIN = re.compile(rf"B ({_NUMBER}) ({_NUMBER}) ([0-9a-f]{{32}}) (new|none|[0-9a-f]{{32}})")
_END = re.compile(rf"E ({_NUMBER})")


@dataclass(frozen=True, slots=True)
class Session:
    """The part of a log that one process has written.

    Attributes:
        rank: Rank of the process.
        world_size: Number of ranks.
        time: Time of the first line, in seconds since 1970.
        torn: Number of bytes of an incomplete last line that were cut off before this session.
    """

    rank: int
    world_size: int
    time: float
    torn: int = 0

    def text(self) -> str:
        facts = {
            "format": FORMAT, "rank": self.rank, "time": self.time, "torn": self.torn, "world_size": self.world_size,
        }  # fmt: skip
        return f"S {json.dumps(facts, separators=(',', ':'))}"


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of an iteration.

    Attributes:
        epoch: Epoch of the iteration.
        step: First step.
        order: Digest of the file with the order of the epoch.
        parent: Head in the restored state, ``"none"``, or ``"new"``.
    """

    epoch: int
    step: int
    order: str
    parent: str

    def text(self) -> str:
        return f"B {self.epoch} {self.step} {self.order} {self.parent}"


@dataclass(frozen=True, slots=True)
class Repair:
    """The samples of a batch in which some were skipped or replaced.

    Attributes:
        failed: Numbers of the samples that could not be decoded.
        ids: Numbers of the delivered samples.
        padded: Number of padding samples at the end.
        sources: Number of each sample's dataset in a mixture; empty without a mixture.
    """

    failed: list[int]
    ids: list[int]
    padded: int
    sources: list[int]

    def text(self) -> str:
        facts = {"failed": self.failed, "ids": self.ids, "padded": self.padded, "sources": self.sources}
        return json.dumps(facts, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Step:
    """A delivered batch.

    Attributes:
        step: Number of the step.
        count: Number of samples without padding; None if the batch does not carry sample numbers.
        repair: Samples of the batch, if some were skipped or replaced; otherwise None.
    """

    step: int
    count: int | None
    repair: Repair | None = None

    def text(self) -> str:
        end = "" if self.repair is None else f" {self.repair.text()}"
        return f"{self.step} {'?' if self.count is None else self.count}{end}"


@dataclass(frozen=True, slots=True)
class End:
    """The end of an epoch, after its last batch."""

    epoch: int

    def text(self) -> str:
        return f"E {self.epoch}"


Line = Session | Begin | Step | End


def next_head(head: str, text: str, *arrays: npt.NDArray[np.int64], num_padded: int = 0) -> str:
    """Returns the head after a line.

    Args:
        head: Head before the line.
        text: The line without its head.
        *arrays: Numbers that the line stands for: sample numbers and sources.
        num_padded: Number of padding samples.

    Example:
        >>> from concurrent_loader.recorder.log_format import FIRST_HEAD, next_head
        >>> next_head(FIRST_HEAD, "E 0") == next_head(FIRST_HEAD, "E 1")
        False
    """
    lengths = [len(array) for array in arrays]
    hashed = blake2b(f"{head} {text}\n{lengths} {num_padded}\n".encode(), digest_size=HEAD_LENGTH // 2)
    for array in arrays:
        if len(array):
            hashed.update(np.ascontiguousarray(array, "<i8").data)
    return hashed.hexdigest()


def is_head(text: object) -> bool:
    """Returns whether a value is a head."""
    return isinstance(text, str) and _HEAD.fullmatch(text) is not None


def parse_line(line: str) -> tuple[Line, str]:
    """Returns the content and the head of a line, which is given without its line break.

    Raises:
        ValueError: The line does not have the format, or has it in another spelling.
    """
    text, _, head = line.rpartition(" ")
    if not is_head(head):
        raise ValueError("the line does not end with a hash")
    parsed = _parse(text)
    if parsed is None or parsed.text() != text:
        raise ValueError("the line does not have the format of a flight recorder")
    return parsed, head


def _parse(text: str) -> Line | None:
    if text.startswith("S "):
        facts = _json(text[2:], {"format": int, "rank": int, "time": float, "torn": int, "world_size": int})
        if facts.pop("format") != FORMAT:
            raise ValueError("the log was written by a newer release")
        return Session(**facts) if 0 <= facts["rank"] < facts["world_size"] else None
    if match := _BEGIN.fullmatch(text):
        return Begin(int(match[1]), int(match[2]), match[3], match[4])
    if match := _END.fullmatch(text):
        return End(int(match[1]))
    if match := _STEP.fullmatch(text):
        repair = None
        if match[3]:
            repair = Repair(**_json(match[3], {"failed": list, "ids": list, "padded": int, "sources": list}))
            if any(type(number) is not int for each in (repair.failed, repair.ids, repair.sources) for number in each):
                return None
        return Step(int(match[1]), None if match[2] == "?" else int(match[2]), repair)
    return None


def _json(text: str, types: dict[str, type]) -> dict[str, Any]:
    facts = json.loads(text)
    if not isinstance(facts, dict) or {name: type(value) for name, value in facts.items()} != types:
        raise ValueError("the line has missing or unknown entries")
    return facts
