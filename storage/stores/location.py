"""Parses the URL of a store, and converts between keys of the store and keys of the bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from concurrent_loader.storage.checked_url import check_url
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Location"]


# Union of the rules of S3, Google and Azure. Clients put bucket names into requests unquoted.
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Location:
    """A bucket (or container, or name) and a prefix in it.

    URLs are read literally, as by the AWS command line: ``%20``, ``?`` and ``#`` stand for themselves.

    Attributes:
        scheme: URL scheme in lower case, without ``://``.
        bucket: Name of the bucket; never empty.
        prefix: Prefix of all keys, without slashes at its ends; may be empty.
    """

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parses a URL.

        Raises:
            ConfigurationError: The URL has no scheme or bucket, an invalid bucket name, credentials or control
                characters, or a prefix with an empty, ``.`` or ``..`` segment.
        """
        scheme, separator, rest = check_url(url).partition("://")
        bucket, _, prefix = rest.partition("/")
        if not separator or not bucket:
            raise ConfigurationError("a store's URL must look like 's3://bucket/prefix'", got=url)
        if re.search(r"[\x00-\x1f\x7f]", url):
            raise ConfigurationError("a store's URL must not contain control characters", got=url)
        if scheme.lower() != "memory" and not _BUCKET.fullmatch(bucket):
            raise ConfigurationError(
                f"a bucket name must consist of ASCII letters, digits, '.', '-' and '_', in {scheme}://BUCKET/prefix",
                got=url,
            )
        prefix = prefix.strip("/")
        if prefix and any(segment in ("", ".", "..") for segment in prefix.split("/")):
            raise ConfigurationError("a store's URL must have no empty, '.' or '..' segment", got=url)
        return cls(scheme.lower(), bucket, prefix)

    @property
    def url(self) -> str:
        """Normalized URL, without a trailing slash."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}" if self.prefix else f"{self.scheme}://{self.bucket}"

    def full_key(self, key: str) -> str:
        """Returns a key (or list prefix) of the store as a key of the bucket."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def relative_key(self, full_key: str) -> str:
        """Returns a key of the bucket as a key of the store. The key must lie below the prefix."""
        return full_key[len(self.prefix) + 1 :] if self.prefix else full_key
