"""Resolves endpoint, region and certificates from options, environment and shared AWS files.

botocore reads the shared files, and takes a tenth of a second to load. Without them, this module reads the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from concurrent_loader.storage.checked_url import endpoint_error, text_error
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.stores.options import S3Options

__all__ = ["DEFAULT_REGION", "AwsSettings", "BucketAddress", "botocore_certificates"]

DEFAULT_REGION = "us-east-1"
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
_PROFILES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Address of a bucket for requests.

    Attributes:
        server_url: ``https://endpoint`` in path style, otherwise ``https://bucket.endpoint``.
        bucket_url: URL of the bucket; in path style ``https://endpoint/bucket``.
        path_style: Whether the path contains the bucket.
    """

    server_url: str
    bucket_url: str
    path_style: bool


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Endpoint, region and certificates of S3.

    Attributes:
        endpoint_url: URL of the server; None for AWS.
        region: Name of the region; None if unknown.
        ca_bundle: Path of certificates to trust, from ``AWS_CA_BUNDLE``; None for the system's.
    """

    endpoint_url: str | None
    region: str | None
    ca_bundle: str | None

    @classmethod
    def resolve(cls, options: S3Options, *, url: str | None) -> Self:
        """Resolves the settings, in botocore's order. Sends no request.

        Raises:
            ConfigurationError: The profile, the files or their values are invalid, such as an endpoint with
                credentials in it.
        """
        if _may_have_files(options):
            from concurrent_loader.storage.stores.aws.botocore_chain import chain_settings

            settings = cls(*chain_settings(options, url=url))
        else:
            env = os.environ.get
            settings = cls(
                options.endpoint_url or env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL") or None,
                options.region_or_environment or env("AWS_DEFAULT_REGION"),
                env("AWS_CA_BUNDLE"),
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
        """Returns the address of a bucket.

        Args:
            bucket: Name of the bucket.
            path_style: Option of the same name in `S3Options`.
        """
        region = self.region or DEFAULT_REGION
        china = ".cn" if region.startswith("cn-") else ""
        endpoint = (self.endpoint_url or f"https://s3.{region}.amazonaws.com{china}").rstrip("/")
        if path_style is None:
            # A bucket name with a dot matches no wildcard certificate.
            path_style = self.endpoint_url is not None or "." in bucket
        if path_style:
            return BucketAddress(endpoint, f"{endpoint}/{bucket}", True)
        parts = urlsplit(endpoint)
        server_url = parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()
        return BucketAddress(server_url, server_url, False)

    def check_ca_bundle(self, *, url: str) -> None:
        """Checks that ``ca_bundle`` can be opened, if one is set.

        Raises:
            ConfigurationError: The file is missing, or may not be read.
        """
        if not self.ca_bundle:
            return
        try:
            Path(self.ca_bundle).open("rb").close()
        except OSError as error:
            raise ConfigurationError(
                "the certificate bundle cannot be read; check the path in AWS_CA_BUNDLE or ca_bundle",
                url=url,
                got=f"{self.ca_bundle}: {error.strerror}",
            ) from error


def botocore_certificates() -> str | None:
    """Returns the path of the certificates that botocore ships; None without botocore. Does not import botocore."""
    spec = find_spec("botocore")
    paths = [Path(place) / "cacert.pem" for place in (spec.submodule_search_locations or ())] if spec else []
    return next((str(path) for path in paths if path.exists()), None)


def _may_have_files(options: S3Options) -> bool:
    """Returns whether a shared file exists, or a profile requires one."""
    if options.profile is not None or any(name in os.environ for name in _PROFILES):
        return True
    paths = (os.path.expandvars(os.environ.get(name, place)) for name, place in _FILES.items())
    try:
        return any(Path(path).expanduser().exists() for path in paths)
    except (OSError, RuntimeError):  # unreadable, or no home folder: botocore reports it
        return True
