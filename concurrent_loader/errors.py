"""What can go wrong between verified bytes and a batch on the device: one tree, raised all over `concurrent_loader`.

::

    LoaderError
    ├── DecodeError        encoded bytes that are no picture, or not the whole of one, or too large a one
    ├── TooManyDecodeErrors  more of them than ``max_errors`` allows
    ├── TransformError     the user's transform raised
    ├── CollateError       samples that do not fit into one batch
    ├── DeviceError        the accelerator or its driver refused something
    │   └── DeviceMemoryError  … for want of memory
    ├── LoaderTimeout      no batch arrived in time
    ├── LoaderStateError   a saved state that does not belong to this loader
    │   └── WorkerCountError   … because it has a place for each of another number of workers
    └── WorkerDied         a worker process ended before its work did

Errors of the bytes themselves are `storage.errors.StorageError`; options that cannot work are
`storage.errors.ConfigurationError` in both packages.
"""

from __future__ import annotations

from typing import ClassVar, Self

__all__ = [
    "CollateError",
    "DecodeError",
    "DeviceError",
    "DeviceMemoryError",
    "LoaderError",
    "LoaderStateError",
    "LoaderTimeout",
    "TooManyDecodeErrors",
    "TransformError",
    "WorkerCountError",
    "WorkerDied",
    "WorkerTraceback",
]


class LoaderError(Exception):
    """Root of the tree: what happened, at which stage, and to which sample.

    Args:
        what: One sentence without a full stop, for a person.
        sample: The sample's number in the data set.
        column: The column's name.
        key: Of the shard or object that the sample lies in.
        stage: Where on the data's way: ``"decode"``, ``"transform"``, ``"collate"`` …; each class has its own.
        expected: What should have been there.
        got: What was there.

    All of them are attributes and stand in the message. Errors survive pickling; ``__cause__``, as ever, does not.
    """

    default_stage: ClassVar[str | None] = None
    _FACTS: ClassVar[tuple[str, ...]] = ("stage", "key", "sample", "column", "expected", "got")

    def __init__(
        self,
        what: str,
        *,
        sample: int | None = None,
        column: str | None = None,
        key: str | None = None,
        stage: str | None = None,
        expected: object = None,
        got: object = None,
    ) -> None:
        self.what = what
        self.sample = sample
        self.column = column
        self.key = key
        self.stage = self.default_stage if stage is None else stage
        self.expected = expected
        self.got = got
        super().__init__(what)

    def __str__(self) -> str:
        facts = [f"{name}={getattr(self, name)!r}" for name in self._FACTS if getattr(self, name) is not None]
        return f"{self.what} ({', '.join(facts)})" if facts else self.what

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.what, {**self.__dict__})

    def locate(self, **facts: object) -> Self:
        """Fills in facts that a deeper stage could not know, keeping those already there; returns self."""
        for name, value in facts.items():
            if name not in self._FACTS:
                raise AttributeError(name)
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self


def _restore(cls: type[LoaderError], what: str, state: dict[str, object]) -> LoaderError:
    error = cls(what)
    error.__dict__.update(state)
    return error


class DecodeError(LoaderError):
    """Encoded bytes that are no picture, or not the whole of one, or a picture beyond the cap on its pixels."""

    default_stage = "decode"


class TooManyDecodeErrors(LoaderError):
    """More pictures are broken than the loader is to put up with; the message names the first, the cause is one."""

    default_stage = "decode"


class TransformError(LoaderError):
    """The user's transform raised; the cause is what it raised."""

    default_stage = "transform"


class CollateError(LoaderError):
    """Samples that do not fit into one batch."""

    default_stage = "collate"


class DeviceError(LoaderError):
    """The accelerator, or its driver, refused something that the device stage asked for; the cause is what it said."""

    default_stage = "device"


class DeviceMemoryError(DeviceError):
    """There is not enough memory on the device, or not enough that can be page-locked, for a batch."""


class LoaderTimeout(LoaderError):
    """No batch arrived within the loader's ``timeout``; the stage is what it waited for."""

    default_stage = "wait"


class LoaderStateError(LoaderError, ValueError):
    """A saved state that is damaged, or that belongs to another data set or another order."""

    default_stage = "state"


class WorkerCountError(LoaderStateError, AssertionError):
    """A saved state that has a place in a stateful dataset for each of another number of workers.

    It is an ``AssertionError`` too, as torchdata's ``StatefulDataLoader`` raises one.
    """


class WorkerDied(LoaderError):
    """A worker process ended before its work did: killed, out of memory, or by a crash of native code.

    Args:
        what: As for all.
        worker: Its number, from 0.
        pid: Of the process that was.
        exit_status: As it ended; None where nobody knows.
        signal: What killed it, such as ``"SIGKILL"``; None if nothing did.
    """

    default_stage = "worker"
    _FACTS = (*LoaderError._FACTS, "worker", "pid", "exit_status", "signal")

    def __init__(
        self,
        what: str,
        *,
        worker: int | None = None,
        pid: int | None = None,
        exit_status: int | None = None,
        signal: str | None = None,
    ) -> None:
        super().__init__(what)
        self.worker = worker
        self.pid = pid
        self.exit_status = exit_status
        self.signal = signal


class WorkerTraceback(Exception):
    """The cause of an error that came from a worker process: what its traceback looked like there."""
