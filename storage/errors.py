"""The errors of `storage`: one tree, from the bucket to a verified sample.

::

    StorageError
    ├── ConfigurationError (ValueError)    an invalid option, URL or key; a redirect
    ├── NotFound (KeyError-like)           a bucket, key, dataset or snapshot does not exist
    │   └── SnapshotDeleted                the snapshot existed and was deleted
    ├── AlreadyExists                      put_if_absent lost; a dataset exists already
    │   └── CommitConflict                 another writer committed this snapshot first; nothing is lost
    ├── AccessDenied                       credentials are missing, wrong, or not allowed
    │   └── CredentialsExpired             credentials expired, were revoked or replaced; stores renew them once
    ├── InvalidRange                       the object does not have the requested bytes
    ├── ObjectChanged                      the object is not the one that If-Match named
    │   └── DatasetChanged                 an object is not the one that the manifest pins
    ├── TransientError                     another attempt may succeed (``retryable``)
    │   ├── Throttled                      503 SlowDown, 429
    │   ├── ConnectionFailed               refused, reset, DNS, TLS
    │   ├── DeadlineExceeded               the response did not arrive in time
    │   ├── TruncatedBody                  fewer bytes than announced
    │   ├── ServerError                    500, 502, 504 and the like
    │   └── ProtocolViolation              a response contradicts the request (wrong Content-Range)
    ├── CorruptData                        bytes differ from what was written
    │   ├── DigestMismatch                 a digest does not match
    │   └── FormatError                    magic, version, lengths or structure are invalid
    ├── SchemaError (TypeError)            a sample or a request does not fit the columns
    ├── StoreClosed                        used after close, or from a forked process
    └── StoreError                         any other error of the vendor's client

Whether a retry can help is a property of the class (`retryable`), never of the message.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "CommitConflict",
    "ConfigurationError",
    "ConnectionFailed",
    "CorruptData",
    "CredentialsExpired",
    "DatasetChanged",
    "DeadlineExceeded",
    "DigestMismatch",
    "FormatError",
    "InvalidRange",
    "NotFound",
    "ObjectChanged",
    "ProtocolViolation",
    "SchemaError",
    "ServerError",
    "SnapshotDeleted",
    "StorageError",
    "StoreClosed",
    "StoreError",
    "Throttled",
    "TransientError",
    "TruncatedBody",
]


class StorageError(Exception):
    """The base class of all errors of `storage`.

    All arguments are attributes and part of the message. Errors can be pickled, so they cross process boundaries.

    Args:
        what: Description in one sentence, without a full stop.
        url: URL of the store, without credentials.
        key: Key of the object, relative to that URL.
        start: First byte of the range.
        end: One past the last byte of the range.
        shard: Key of the shard.
        sample: Index of the sample in its shard or dataset.
        column: Name of the column.
        expected: Expected value.
        got: Actual value.
        attempts: Number of attempts.

    Example:
        >>> from concurrent_loader.storage import StorageError
        >>> str(StorageError("the object is too large", key="a.jpg", got=9))
        "the object is too large (key='a.jpg', got=9)"
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self,
        what: str,
        *,
        url: str | None = None,
        key: str | None = None,
        start: int | None = None,
        end: int | None = None,
        shard: str | None = None,
        sample: int | None = None,
        column: str | None = None,
        expected: object = None,
        got: object = None,
        attempts: int | None = None,
    ) -> None:
        self.what = what
        self.url = url
        self.key = key
        self.start = start
        self.end = end
        self.shard = shard
        self.sample = sample
        self.column = column
        self.expected = expected
        self.got = got
        self.attempts = attempts
        super().__init__(what)

    _FACTS: ClassVar[tuple[str, ...]] = ("url", "key", "shard", "sample", "column", "expected", "got", "attempts")

    def __str__(self) -> str:
        facts = [f"{name}={getattr(self, name)!r}" for name in self._FACTS if getattr(self, name) is not None]
        if self.start is not None or self.end is not None:
            facts.append(f"range=[{self.start}, {self.end})")
        return f"{self.what} ({', '.join(facts)})" if facts else self.what

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.what, {**self.__dict__})

    def locate(self, **facts: object) -> StorageError:
        """Sets attributes that a lower layer could not know, unless they are set already; returns self."""
        for name, value in facts.items():
            if name not in (*self._FACTS, "start", "end"):
                raise AttributeError(name)
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self


def _restore(cls: type[StorageError], what: str, state: dict[str, object]) -> StorageError:
    error = cls(what)
    error.__dict__.update(state)
    return error


class ConfigurationError(StorageError, ValueError):
    """An invalid option, URL or key, or a store that redirects elsewhere; no data was sent.

    Example:
        >>> from concurrent_loader.storage import ConfigurationError
        >>> ConfigurationError.retryable
        False
    """


class NotFound(StorageError):
    """A bucket, key, dataset or snapshot does not exist.

    Example:
        >>> from concurrent_loader.storage import NotFound
        >>> NotFound.retryable
        False
    """


class SnapshotDeleted(NotFound):
    """The snapshot existed, and was purged or collected as garbage; the newest snapshot can be opened.

    Example:
        >>> from concurrent_loader.storage import SnapshotDeleted
        >>> SnapshotDeleted.retryable
        False
    """


class AlreadyExists(StorageError):
    """An object or dataset exists and must not be overwritten.

    Example:
        >>> from concurrent_loader.storage import AlreadyExists
        >>> AlreadyExists.retryable
        False
    """


class CommitConflict(AlreadyExists):
    """Another writer committed this snapshot first; the written shards are kept and can be committed again.

    Example:
        >>> from concurrent_loader.storage import CommitConflict
        >>> CommitConflict.retryable
        False
    """


class AccessDenied(StorageError):
    """Credentials are missing, wrong, expired, or not allowed to do this.

    Example:
        >>> from concurrent_loader.storage import AccessDenied
        >>> AccessDenied.retryable
        False
    """


class CredentialsExpired(AccessDenied):
    """The store no longer accepts the credentials: they expired, were revoked, or were replaced.

    A store with renewable credentials renews them and repeats the request once before it raises this error.

    Example:
        >>> from concurrent_loader.storage import AccessDenied, CredentialsExpired
        >>> issubclass(CredentialsExpired, AccessDenied)
        True
    """


class InvalidRange(StorageError):
    """The object does not have the requested bytes.

    Example:
        >>> from concurrent_loader.storage import InvalidRange
        >>> InvalidRange.retryable
        False
    """


class ObjectChanged(StorageError):
    """The object is no longer the one with the caller's ETag.

    Example:
        >>> from concurrent_loader.storage import ObjectChanged
        >>> ObjectChanged.retryable
        False
    """


class DatasetChanged(ObjectChanged):
    """An object in the bucket differs from the manifest: it was replaced during reading, or damaged in storage.

    Example:
        >>> from concurrent_loader.storage import DatasetChanged
        >>> DatasetChanged.retryable
        False
    """


class TransientError(StorageError):
    """A failure after which another attempt may succeed.

    Example:
        >>> from concurrent_loader.storage import TransientError
        >>> TransientError.retryable
        True
    """

    retryable = True


class Throttled(TransientError):
    """The store asked for fewer requests (503 SlowDown, 429).

    Example:
        >>> from concurrent_loader.storage import Throttled
        >>> Throttled.retryable
        True
    """


class ConnectionFailed(TransientError):
    """The connection was refused, reset, or could not be opened (including DNS and TLS).

    Attributes:
        is_unreachable: Whether no server listens at the address, or the host name does not resolve. If the endpoint
            has never responded, such a failure is given up within seconds.

    Example:
        >>> from concurrent_loader.storage import ConnectionFailed
        >>> ConnectionFailed.retryable
        True
    """

    is_unreachable: bool = False


class DeadlineExceeded(TransientError):
    """The response, or enough of its body, did not arrive in time.

    Example:
        >>> from concurrent_loader.storage import DeadlineExceeded
        >>> DeadlineExceeded.retryable
        True
    """


class TruncatedBody(TransientError):
    """The body ended before the announced number of bytes.

    Example:
        >>> from concurrent_loader.storage import TruncatedBody
        >>> TruncatedBody.retryable
        True
    """


class ServerError(TransientError):
    """The store failed (500, 502, 504 and similar).

    Example:
        >>> from concurrent_loader.storage import ServerError
        >>> ServerError.retryable
        True
    """


class ProtocolViolation(TransientError):
    """The response contradicts the request: wrong Content-Range, whole object for a range, impossible length.

    Example:
        >>> from concurrent_loader.storage import ProtocolViolation
        >>> ProtocolViolation.retryable
        True
    """


class CorruptData(StorageError):
    """Bytes differ from what was written.

    Example:
        >>> from concurrent_loader.storage import CorruptData
        >>> CorruptData.retryable
        False
    """


class DigestMismatch(CorruptData):
    """A digest does not match the bytes that it covers.

    Attributes:
        is_steady: Whether a second fetch over a new connection returned the same wrong bytes, which means that the
            object itself is damaged.

    Example:
        >>> from concurrent_loader.storage import CorruptData, DigestMismatch
        >>> issubclass(DigestMismatch, CorruptData)
        True
    """

    is_steady: bool = False


class FormatError(CorruptData):
    """Magic, version, lengths or structure of a shard or manifest are invalid.

    Example:
        >>> from concurrent_loader.storage import FormatError
        >>> FormatError.retryable
        False
    """


class SchemaError(StorageError, TypeError):
    """A sample or a request does not fit the columns.

    Example:
        >>> from concurrent_loader.storage import SchemaError
        >>> SchemaError.retryable
        False
    """


class StoreClosed(StorageError):
    """A store was used after it was closed, or in a process forked from the one that opened it.

    Example:
        >>> from concurrent_loader.storage import StoreClosed
        >>> StoreClosed.retryable
        False
    """


class StoreError(StorageError):
    """Any other error of the vendor's client; the cause has the details.

    Example:
        >>> from concurrent_loader.storage import StoreError
        >>> StoreError.retryable
        False
    """
