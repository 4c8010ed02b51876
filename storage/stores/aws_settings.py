"""Where a bucket is, after options, environment and shared files had their say: what obstore's clients are made with.

botocore reads the files, and takes a tenth of a second to load. Where there are none, the environment alone speaks, and
that is read here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from storage.checked_url import endpoint_error, text_error
from storage.errors import ConfigurationError
from storage.stores.options import S3Options

__all__ = ["DEFAULT_REGION", "AwsSettings", "BucketAddress"]

DEFAULT_REGION = "us-east-1"
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
_PROFILES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Where requests for a bucket go.

    Attributes:
        server_url: ``https://endpoint`` in path style, otherwise ``https://bucket.endpoint``.
        bucket_url: The bucket's URL: in path style ``https://endpoint/bucket``.
        path_style: Whether the bucket stands in the path.
    """

    server_url: str
    bucket_url: str
    path_style: bool


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Endpoint, region and certificates.

    Attributes:
        endpoint_url: None is AWS itself.
        region: None where nobody says.
        ca_bundle: Path of certificates to trust, as AWS_CA_BUNDLE names it.
    """

    endpoint_url: str | None
    region: str | None
    ca_bundle: str | None

    @classmethod
    def resolve(cls, options: S3Options, *, url: str | None) -> Self:
        """Finds them, in botocore's order; nothing is sent.

        Raises:
            ConfigurationError: The profile or the files do not work, or what they say cannot be: an endpoint with
                credentials in it, say.
        """
        if _may_files_speak(options):
            from storage.stores.aws_chain import chain_settings

            settings = cls(*chain_settings(options, url=url))
        else:
            said = os.environ.get
            settings = cls(
                options.endpoint_url or said("AWS_ENDPOINT_URL_S3") or said("AWS_ENDPOINT_URL") or None,
                options.region_or_environment or said("AWS_DEFAULT_REGION"),
                said("AWS_CA_BUNDLE"),
            )
        if (refused := settings._error()) is not None:
            del settings
            raise refused.locate(url=url)
        return settings

    def _error(self) -> ConfigurationError | None:
        if self.endpoint_url is not None:
            error = endpoint_error(self.endpoint_url, name="AWS_ENDPOINT_URL (or endpoint_url in a profile)")
            if error is not None:
                return error
        return None if self.region is None else text_error(self.region, name="AWS_REGION (or region in a profile)")

    def address(self, bucket: str, *, path_style: bool | None) -> BucketAddress:
        """Returns where requests for a bucket go.

        Args:
            bucket: Name of the bucket.
            path_style: See `S3Options`.
        """
        endpoint = (self.endpoint_url or f"https://s3.{self.region or DEFAULT_REGION}.amazonaws.com").rstrip("/")
        if path_style is None:
            # A bucket's name with a dot in it fits no wildcard certificate.
            path_style = self.endpoint_url is not None or "." in bucket
        if path_style:
            return BucketAddress(endpoint, f"{endpoint}/{bucket}", True)
        parts = urlsplit(endpoint)
        server_url = parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()
        return BucketAddress(server_url, server_url, False)

    def certificates(self, *, url: str) -> bytes | None:
        """Reads the certificates to trust; None for the system's.

        Raises:
            ConfigurationError: They cannot be read.
        """
        if not self.ca_bundle:
            return None
        try:
            return Path(self.ca_bundle).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                "the certificates that AWS_CA_BUNDLE or ca_bundle names cannot be read",
                url=url,
                got=f"{self.ca_bundle}: {error.strerror}",
            ) from error


def _may_files_speak(options: S3Options) -> bool:
    """Whether there is a shared file, or a profile that one should have."""
    if options.profile is not None or any(name in os.environ for name in _PROFILES):
        return True
    paths = (os.path.expandvars(os.environ.get(name, place)) for name, place in _FILES.items())
    try:
        return any(Path(path).expanduser().exists() for path in paths)
    except (OSError, RuntimeError):  # not to be looked at, or nobody's home: botocore knows what that means
        return True
