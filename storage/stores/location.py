"""Where a store is rooted: the URL taken apart once, and keys joined to it and cut off again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from storage.checked_url import check_url
from storage.errors import ConfigurationError

__all__ = ["Location"]


# Of S3's, Google's and Azure's rules together; what clients put into requests without quoting it.
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Location:
    """A bucket (or container, or name) and a prefix in it.

    URLs are read literally, as the AWS command line does: ``%20``, ``?`` and ``#`` in one are those characters.

    Attributes:
        scheme: In lower case, without ``://``.
        bucket: Never empty.
        prefix: Without slashes at its ends; may be empty.
    """

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Takes a URL apart.

        Raises:
            ConfigurationError: No scheme, no bucket, a bucket's name that cannot be one, credentials or control
                characters in the URL, or a prefix with an empty, ``.`` or ``..`` segment.
        """
        scheme, separator, rest = check_url(url).partition("://")
        bucket, _, prefix = rest.partition("/")
        if not separator or not bucket:
            raise ConfigurationError("a store's URL looks like 's3://bucket/prefix'", got=url)
        if re.search(r"[\x00-\x1f\x7f]", url):
            raise ConfigurationError("a store's URL must not hold control characters", got=url)
        if scheme.lower() != "memory" and not _BUCKET.fullmatch(bucket):
            raise ConfigurationError(
                f"a bucket's name has ASCII letters, digits, '.', '-' and '_', in {scheme}://BUCKET/prefix",
                got=url,
            )
        prefix = prefix.strip("/")
        if prefix and any(segment in ("", ".", "..") for segment in prefix.split("/")):
            raise ConfigurationError("a store's URL has no empty, '.' or '..' segment", got=url)
        return cls(scheme.lower(), bucket, prefix)

    @property
    def url(self) -> str:
        """The URL again, without a trailing slash."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}" if self.prefix else f"{self.scheme}://{self.bucket}"

    def full(self, key: str) -> str:
        """The key as the bucket knows it; also right for a list's prefix."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def relative(self, full_key: str) -> str:
        """The key as the store's user knows it; only for keys that `full` could have made."""
        return full_key[len(self.prefix) + 1 :] if self.prefix else full_key
