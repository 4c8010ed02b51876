"""Errors between verified bytes and a batch on the device: one tree, used by all of `concurrent_loader`.

::

    LoaderError
    ├── DecodeError        encoded bytes are not a complete image, or the image is too large
    ├── TooManyDecodeErrors  more undecodable images than ``max_errors`` allows
    ├── TransformError     the user's transform raised
    ├── CollateError       samples do not fit into one batch
    ├── DeviceError        the accelerator or its driver refused a request
    │   └── DeviceMemoryError  … because memory ran out
    ├── LoaderTimeout      no batch arrived in time
    ├── LoaderStateError   a saved state does not belong to this loader
    │   └── WorkerCountError   … because it was saved with another number of workers
    └── WorkerDied         a worker process ended too early

Errors of the bytes themselves are `concurrent_loader.StorageError`. Arguments that cannot work raise
`concurrent_loader.ConfigurationError`.
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
    """Base class of the loader's errors: what happened, at which stage, and to which sample.

    Args:
        what: Description of the failure: one sentence without a full stop.
        sample: Number of the sample in the dataset.
        column: Name of the column.
        key: Key of the shard or object that holds the sample.
        stage: Stage of the pipeline: ``"decode"``, ``"transform"``, ``"collate"`` …; default that of the class.
        expected: Expected value.
        got: Value received.

    Every argument is an attribute, and part of the message if it is not None. Pickling keeps all but ``__cause__``.
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
        """Fills in facts that are still None, which a deeper stage could not know, and returns self."""
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
    """Encoded bytes are not a complete image, or the image has more than ``max_pixels`` pixels."""

    default_stage = "decode"


class TooManyDecodeErrors(LoaderError):
    """More images than ``max_errors`` allows cannot be decoded. The message names the first one."""

    default_stage = "decode"


class TransformError(LoaderError):
    """The user's transform raised. Its exception is the cause."""

    default_stage = "transform"


class CollateError(LoaderError):
    """Samples do not fit into one batch."""

    default_stage = "collate"


class DeviceError(LoaderError):
    """The accelerator or its driver refused a request of the device stage. Its error is the cause."""

    default_stage = "device"


class DeviceMemoryError(DeviceError):
    """Memory on the device, or page-locked memory, does not suffice for a batch."""


class LoaderTimeout(LoaderError):
    """No batch arrived within the loader's ``timeout``. ``stage`` is the stage waited for."""

    default_stage = "wait"


class LoaderStateError(LoaderError, ValueError):
    """A saved state is damaged, or belongs to another dataset or another order."""

    default_stage = "state"


class WorkerCountError(LoaderStateError, AssertionError):
    """A saved state has one position per worker, and the loader has another number of workers.

    It is an ``AssertionError`` too, because torchdata's ``StatefulDataLoader`` raises one.
    """


class WorkerDied(LoaderError):
    """A worker process ended too early: killed, out of memory, or by a crash of native code.

    Args:
        what: Description of the failure.
        worker: Number of the worker, from 0.
        pid: Process id of the worker.
        exit_status: Exit status of the process; None if it is not known.
        signal: Signal that killed the process, such as ``"SIGKILL"``; None if no signal did.
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
    """Traceback of an error in the worker process, as text. It is the cause of the error that the loader raises."""
