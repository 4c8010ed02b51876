"""What can go wrong between a bucket and a verified sample: one tree, raised everywhere in `storage`.

::

    StorageError
    ├── ConfigurationError (ValueError)    an option, URL or key that cannot work; a redirect
    ├── NotFound (KeyError-like)           no such bucket, key, dataset, snapshot
    ├── AlreadyExists                      put_if_absent lost; a dataset is in the way
    │   └── CommitConflict                 another writer committed this snapshot first; nothing was lost
    ├── AccessDenied                       credentials missing, wrong, or not allowed
    │   └── CredentialsExpired             expired, revoked or replaced; stores renew them once where they can
    ├── InvalidRange                       bytes were asked for that the object does not have
    ├── ObjectChanged                      the object is not the one that If-Match named
    │   └── DatasetChanged                 an object is not the one that the manifest pins
    ├── TransientError                     worth another attempt (``retryable``)
    │   ├── Throttled                      503 SlowDown, 429
    │   ├── ConnectionFailed               refused, reset, DNS, TLS
    │   ├── DeadlineExceeded               no answer, or not enough of it, in time
    │   ├── TruncatedBody                  fewer bytes than announced
    │   ├── ServerError                    500, 502, 504 and the like
    │   └── ProtocolViolation              an answer that contradicts the question (a wrong Content-Range, say)
    ├── CorruptData                        bytes that are not what was written
    │   ├── DigestMismatch                 a digest disagrees
    │   └── FormatError                    magic, version, lengths or structure do not hold
    ├── SchemaError (TypeError)            a sample or a request does not fit the columns
    ├── StoreClosed                        used after close, or from a forked process
    └── StoreError                         anything else that the vendor's client said

Whether another attempt can help is a property of the class (`retryable`), never of a message.
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
    "StorageError",
    "StoreClosed",
    "StoreError",
    "Throttled",
    "TransientError",
    "TruncatedBody",
]


class StorageError(Exception):
    """Root of the tree: what happened, and to which bytes.

    Args:
        what: One sentence without a full stop, for a person.
        url: The store's URL, without credentials.
        key: The object's key below that URL.
        start: First byte of the range in question.
        end: One past its last byte.
        shard: The shard's key, where a shard is concerned.
        sample: The sample's index in its shard or dataset.
        column: The column's name.
        expected: What should have been there.
        got: What was there.
        attempts: How often it was tried.

    All of them are attributes and stand in the message. Errors survive pickling, so they cross process borders whole.
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
        """Fills in facts that a deeper layer could not know, keeping those already there; returns self."""
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
    """An option, URL or key that cannot work: nothing was sent, or the store redirects elsewhere."""


class NotFound(StorageError):
    """No such bucket, key, dataset or snapshot."""


class AlreadyExists(StorageError):
    """Something is there that must not be overwritten."""


class CommitConflict(AlreadyExists):
    """Another writer committed this snapshot first; the shards written so far are kept and can be committed again."""


class AccessDenied(StorageError):
    """Credentials are missing, wrong, expired, or not allowed to do this."""


class CredentialsExpired(AccessDenied):
    """The store no longer takes these credentials: they have expired, or were revoked or replaced.

    A store whose credentials can be renewed does so and repeats the request once; this is what is left after that.
    """


class InvalidRange(StorageError):
    """Bytes were asked for that the object does not have."""


class ObjectChanged(StorageError):
    """The object is no longer the one that the caller's ETag named."""


class DatasetChanged(ObjectChanged):
    """An object in the bucket is not the one that the manifest pins: replaced under a reader, or damaged there."""


class TransientError(StorageError):
    """Another attempt may succeed."""

    retryable = True


class Throttled(TransientError):
    """The store asked for fewer requests (503 SlowDown, 429)."""


class ConnectionFailed(TransientError):
    """The connection was refused, reset, or never made (DNS and TLS included).

    Attributes:
        is_unreachable: Whether nobody listens at the address, or the host's name does not resolve. At first contact,
            before the endpoint has ever answered, that is given up within seconds.
    """

    is_unreachable: bool = False


class DeadlineExceeded(TransientError):
    """No answer, or not enough of it, came in time."""


class TruncatedBody(TransientError):
    """The body ended before the announced number of bytes."""


class ServerError(TransientError):
    """The store failed on its side (500, 502, 504 …)."""


class ProtocolViolation(TransientError):
    """The answer contradicts the question: a wrong Content-Range, a whole object for a range, an impossible length."""


class CorruptData(StorageError):
    """Bytes that are not what was written."""


class DigestMismatch(CorruptData):
    """A digest disagrees with the bytes that it covers.

    Attributes:
        is_steady: Whether fetching them again, over a new connection, brought the very same wrong bytes: then it is
            the object that is wrong, not the way that damages it.
    """

    is_steady: bool = False


class FormatError(CorruptData):
    """Magic, version, lengths or structure of a shard or manifest do not hold."""


class SchemaError(StorageError, TypeError):
    """A sample or a request does not fit the columns."""


class StoreClosed(StorageError):
    """Used after close, or in a process that was forked from the one that opened it."""


class StoreError(StorageError):
    """Anything else that the vendor's client said; the cause has the details."""
