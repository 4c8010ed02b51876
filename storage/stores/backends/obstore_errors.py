"""obstore tells most failures in words only: they are read here, once.

The tests against scripted responses (tests/storage/stores/test_wire_faults.py) notice when the words change.
"""

from __future__ import annotations

import re

from obstore.exceptions import AlreadyExistsError, InvalidPathError, PreconditionError

from concurrent_loader.storage.errors import (
    AlreadyExists,
    ConfigurationError,
    DeadlineExceeded,
    NotFound,
    ObjectChanged,
    ProtocolViolation,
    StorageError,
    StoreError,
    TruncatedBody,
)
from concurrent_loader.storage.stores.backends.obstore_redirects import NOWHERE
from concurrent_loader.storage.stores.connection_errors import connection_error
from concurrent_loader.storage.stores.error_mapping import (
    is_redirect,
    parse_time,
    refusal,
    wrong_region_error,
)

__all__ = ["Redirected", "is_panic", "translate"]

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REGION = re.compile(r"<Region>([\w-]+)</Region>")
_TIMES = re.compile(r"<(RequestTime|ServerTime)>([\w:.+-]+)</")
_HTTP_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_BAD_PATH = re.compile(r'Error parsing Path "(.*?)": ', re.DOTALL)
# What a response lacks, or says in a form that cannot be read.
_VIOLATIONS = (
    "UnexpectedRange",
    "NoContentRange",
    "ParseContentRange",
    "NotPartial",
    "MissingContentLength",
    "InvalidContentLength",
    "MissingLastModified",
    "InvalidLastModified",
    "MissingEtag",
    "BadHeader",
    "InvalidListResponse",
)
# How a redirect ends that `concurrent_loader.storage.stores.backends.obstore_redirects` catches.
_CAUGHT = (NOWHERE, "kind: Redirect", "TunnelUnsuccessful", "redirect without LOCATION", "BareRedirect")
_URI = re.compile(r"https?://[^/\s]+")


class Redirected(ConfigurationError):
    """The bucket is elsewhere; obstore does not say where, though the response may have."""


def is_panic(error: BaseException) -> bool:
    """Whether Rust code gave up: in a coroutine that is an exception, elsewhere a BaseException, neither importable."""
    return type(error).__name__ in ("PanicException", "RustPanic")


def translate(error: BaseException, *, writing: bool) -> StorageError:
    """Translates what obstore raised into `concurrent_loader.storage.errors`; the caller fills in where it happened."""
    if is_panic(error):
        return ConfigurationError(
            "obstore cannot make a request of these options, this URL and this key; client='fsspec' may say more"
        )
    words = str(error)
    code = found[1] if (found := _CODE.search(words)) else ""
    status = _STATUS.search(words)
    if any(caught in words for caught in _CAUGHT) if status is None else is_redirect(int(status[1])):
        return Redirected(wrong_region_error(None, what="the store redirects, and redirects are not followed").what)
    if status is not None:
        region = found[1] if (found := _REGION.search(words)) else None
        times = {name: parse_time(time) for name, time in _TIMES.findall(words)}
        return refusal(
            int(status[1]),
            code,
            writing=writing,
            region=region,
            machine_time=times.get("RequestTime"),
            store_time=times.get("ServerTime"),
        )
    kind = found[1] if (found := _HTTP_KIND.search(words)) else None
    match error:
        case FileNotFoundError():
            return NotFound("no such key or bucket")
        case AlreadyExistsError():
            return AlreadyExists("the key exists")
        case PreconditionError():
            return ObjectChanged("the object has changed")
        case InvalidPathError():
            return StoreError("an object lies here under a key that obstore cannot name", got=_bad_key(words))
        case _ if any(violation in words for violation in _VIOLATIONS):
            return ProtocolViolation("the response is not one to this request")
        case _ if kind == "Timeout":
            return DeadlineExceeded("the store did not answer in time")
        # A kept connection that is reset before the response is "Interrupted" as well, but while sending.
        case _ if "response body error" in words or (kind in ("Interrupted", "Decode") and "SendRequest" not in words):
            return TruncatedBody("the body ended early")
        case _ if kind is not None:
            found = _URI.search(words)
            return connection_error(error, server=found[0] if found else None, words=words, got=kind)
        case _:
            return StoreError("the client failed", got=type(error).__name__)


def _bad_key(words: str) -> str | None:
    found = _BAD_PATH.search(words)
    return found[1] if found else None
