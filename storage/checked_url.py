"""Checks URLs from users, for all clients: they must not contain secrets or lack a scheme."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from concurrent_loader.storage.errors import ConfigurationError, NotFound
from concurrent_loader.storage.redaction import redact_url

__all__ = ["check_there", "check_url", "endpoint_error", "remote_meant", "secret_in_url", "text_error"]

# Schemes of fsspec in which the part before "@" is an address (a container, a repository), not a user name.
_ADDRESSES = frozenset({"abfs", "abfss", "adl", "git", "github", "wasb", "wasbs"})
# Schemes whose URL may name a user; only a password is rejected.
_ACCOUNTS = frozenset({"arrow_hdfs", "ftp", "hdfs", "sftp", "smb", "ssh", "webhdfs"})
_USER_ALONE = re.compile(r"(?<=://)[^/@:\s]+@")
_IS_URL = re.compile(r"[A-Za-z][\w+.-]*(?:://|::)")
_FORGOTTEN = re.compile(r"(s3a?|gs|gcs|az|azure|https?|hf|file|memory)(?::/*|//+)(?=[^/])", re.IGNORECASE)
_ENDPOINT_ADVICE = "give access_key_id and secret_access_key as storage options, or set up the standard AWS chain"
_URL_ADVICE = (
    "give the credentials as storage options (access_key_id and secret_access_key for S3, username and password for "
    "ftp://), or use the standard chain of the store"
)


def secret_in_url(url: str) -> ConfigurationError | None:
    """Returns the error for a URL that contains a password, key, token or signature, or None.

    The error shows the URL without the secret. It is returned, not raised, so that the caller can delete the URL first,
    because tracebacks may show the variables of their frames.
    """
    if "://" not in url and (scheme := _FORGOTTEN.match(url)) is not None:
        url = f"{scheme[1]}://{url[scheme.end() :]}"
    if not _IS_URL.match(url):
        return None
    shown = "::".join(_address_alone(part) for part in url.split("::"))
    if redact_url(shown) == shown:
        return None
    what = "credentials" if redact_url(_without_query(shown)) != _without_query(shown) else "a signature or token"
    return ConfigurationError(f"a URL must not hold {what}: {_URL_ADVICE}", url=redact_url(url))


def check_url(url: str) -> str:
    """Returns the URL unchanged if it contains no secret.

    Raises:
        ConfigurationError: The URL contains a secret; the error shows the URL without it.
    """
    if (refused := secret_in_url(url)) is not None:
        del url
        raise refused
    return url


def endpoint_error(endpoint_url: str, *, name: str) -> ConfigurationError | None:
    """Returns the error for an invalid server address, or None.

    Args:
        endpoint_url: URL such as ``http://host`` or ``https://host:port``, with or without a path.
        name: Name of the option or variable, for the error.
    """
    shown = redact_url(endpoint_url)
    if shown != endpoint_url:
        return ConfigurationError(f"{name} must not hold credentials: {_ENDPOINT_ADVICE}", got=shown)
    if (problem := _problem(endpoint_url)) is None:
        return None
    # Without "://" an address cannot be told from credentials, so the error omits the value.
    return ConfigurationError(f"{name} {problem}, such as http://127.0.0.1:9000", got=None if "@" in shown else shown)


def text_error(value: str, *, name: str) -> ConfigurationError | None:
    """Returns the error for an invalid key, token or region that goes into a request's headers, or None.

    The error omits the value, which may be a secret.
    """
    if value != value.strip():
        return ConfigurationError(f"{name} begins or ends with white space, such as a newline: strip it")
    if re.search(r"[^\x20-\x7e]", value):
        return ConfigurationError(f"{name} must be printable ASCII, because it is sent in a header")
    return None


def remote_meant(path: str, *, reading: bool = False) -> str | None:
    """Returns the URL that a text without ``://`` probably means, or None if it is a path.

    A text is a path if it exists, if it begins with ``/``, ``.`` or ``~``, or if it is a new folder in an existing one.

    Args:
        path: Text from the user.
        reading: Whether the path must exist, so that a single name may also mean a bucket.
    """
    if "://" in path or os.path.lexists(path):
        return None
    if (scheme := _FORGOTTEN.match(path)) is not None:
        return f"{scheme[1].lower()}://{path[scheme.end() :]}"
    first, slash, _ = path.partition("/")
    if not first or first[0] in ".~" or (not slash and not reading) or os.path.lexists(first):
        return None
    return f"s3://{path}"


def check_there(path: str) -> None:
    """Checks that a path to read is not a URL without its scheme.

    Raises:
        NotFound: The path does not exist, and may mean a bucket.
    """
    meant = remote_meant(path, reading=True)
    if meant is not None:
        raise NotFound(f"no such folder: did you mean {redact_url(meant)!r}?", got=path)


def _address_alone(url: str) -> str:
    """Removes the part before "@" if it is not a secret."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() in _ADDRESSES:
        return scheme + separator + rest.rpartition("@")[2]
    return _USER_ALONE.sub("", url) if scheme.lower() in _ACCOUNTS else url


def _without_query(url: str) -> str:
    return url.partition("?")[0]


def _problem(endpoint_url: str) -> str | None:
    if not endpoint_url.startswith(("http://", "https://")):
        return "must begin with http:// or https://"
    if re.search(r"[\x00-\x20\x7f\\^`{|}<>\"]", endpoint_url):
        return "must not contain spaces, quotes or control characters"
    if not endpoint_url.isascii():
        return "must be ASCII (write an international host name in its xn-- form)"
    try:
        parts = urlsplit(endpoint_url)
        port = parts.port
    except ValueError:
        return "must be a valid address"
    if not parts.hostname or port == 0 or parts.netloc.endswith(":"):
        return "must name a host, and a port from 1 to 65535 if any"
    if parts.query or parts.fragment:
        return "must not have a query or fragment"
    return None
