"""Reads endpoint, region and credentials from the standard AWS chain, for all clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import botocore.configprovider
import botocore.exceptions
import botocore.loaders
import botocore.session

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError, StorageError
from concurrent_loader.storage.stores.aws.credentials import S3Credentials
from concurrent_loader.storage.stores.options import S3Options

__all__ = ["chain_credentials", "chain_settings", "translate_chain_error", "use_cached_models"]

# Service descriptions, parsed once per process: a client then costs 3 ms instead of 60.
_models = botocore.loaders.create_loader()
SessionT = TypeVar("SessionT", bound=botocore.session.Session)


def use_cached_models(session: SessionT) -> SessionT:
    """Makes a session read botocore's service descriptions from the process's cache, and returns it."""
    session.register_component("data_loader", _models)
    return session


def translate_chain_error(error: BaseException) -> StorageError | None:
    """Translates botocore's errors about configuration and credentials. Returns None for any other error."""
    match error:
        case (
            botocore.exceptions.NoCredentialsError()
            | botocore.exceptions.PartialCredentialsError()
            | botocore.exceptions.CredentialRetrievalError()
            | botocore.exceptions.TokenRetrievalError()
            | botocore.exceptions.SSOError()
            | botocore.exceptions.MetadataRetrievalError()
        ):
            return AccessDenied(
                "no usable AWS credentials: pass access_key_id and secret_access_key, a profile, or anonymous=True, "
                "or set up the standard AWS chain",
                got=type(error).__name__,
            )
        case botocore.exceptions.ProfileNotFound():
            return ConfigurationError("the AWS profile does not exist")
        case (
            botocore.exceptions.NoRegionError()
            | botocore.exceptions.InvalidRegionError()
            | botocore.exceptions.ConfigParseError()
            | botocore.exceptions.InvalidConfigError()
            | botocore.exceptions.UnknownEndpointError()
        ):
            return ConfigurationError("the AWS configuration is invalid", got=str(error))
        case _:
            return None


@contextlib.contextmanager
def _chain_errors(url: str | None) -> Iterator[None]:
    """Translates errors by `translate_chain_error`; raises others unchanged."""
    try:
        yield
    except botocore.exceptions.BotoCoreError as error:
        if (known := translate_chain_error(error)) is None:
            raise
        raise known.locate(url=url) from error


def chain_settings(options: S3Options, *, url: str | None) -> tuple[str | None, str | None, str | None]:
    """Reads the environment and the shared files, in botocore's order. Sends no request.

    Returns:
        Endpoint, region and certificate bundle, as in `concurrent_loader.storage.stores.aws.settings.AwsSettings`.

    Raises:
        ConfigurationError: The profile or the files are invalid.
    """
    with _chain_errors(url):
        session = use_cached_models(botocore.session.Session(profile=options.profile))
        chain = botocore.configprovider.ConfiguredEndpointProvider(
            full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
        )
        return (
            options.endpoint_url or chain.provide(),
            options.region_or_environment or session.get_config_variable("region"),
            session.get_config_variable("ca_bundle"),
        )


def chain_credentials(profile: str | None, *, url: str) -> S3Credentials:
    """Reads credentials from the standard chain: environment, shared files, SSO, container and instance roles. Blocks.

    Args:
        profile: Name of a profile in the shared files.
        url: URL of the store, for errors.

    Raises:
        AccessDenied: No member of the chain has credentials, or fetching them failed.
        ConfigurationError: The profile or the files are invalid.
    """
    with _chain_errors(url):
        found = use_cached_models(botocore.session.Session(profile=profile)).get_credentials()
        if found is None:
            raise botocore.exceptions.NoCredentialsError
        keys = found.get_frozen_credentials()
        # botocore has no public attribute for the expiry.
        expires_at = getattr(found, "_expiry_time", None)
    return S3Credentials(keys.access_key, keys.secret_key, keys.token, expires_at)
