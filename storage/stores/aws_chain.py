"""The standard AWS chain, asked once for all clients: which endpoint, region and keys hold where none were given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import botocore.configprovider
import botocore.exceptions
import botocore.loaders
import botocore.session

from storage.errors import AccessDenied, ConfigurationError, StorageError
from storage.stores.credentials import S3Credentials
from storage.stores.options import S3Options

__all__ = ["chain_credentials", "chain_error", "chain_settings", "with_shared_models"]

# Service descriptions, parsed once a process: a client costs 3 ms instead of 60 then.
_models = botocore.loaders.create_loader()
SessionT = TypeVar("SessionT", bound=botocore.session.Session)


def with_shared_models(session: SessionT) -> SessionT:
    """Returns the session, reading botocore's service descriptions from the process's cache."""
    session.register_component("data_loader", _models)
    return session


def chain_error(error: BaseException) -> StorageError | None:
    """Says in `storage.errors`'s words what botocore has against configuration or credentials, if that is it."""
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
                "no usable AWS credentials: give access_key_id and secret_access_key, a profile, or anonymous=True, "
                "or set up the standard AWS chain",
                got=type(error).__name__,
            )
        case botocore.exceptions.ProfileNotFound():
            return ConfigurationError("no such AWS profile")
        case (
            botocore.exceptions.NoRegionError()
            | botocore.exceptions.InvalidRegionError()
            | botocore.exceptions.ConfigParseError()
            | botocore.exceptions.InvalidConfigError()
            | botocore.exceptions.UnknownEndpointError()
        ):
            return ConfigurationError("the AWS configuration does not work", got=str(error))
        case _:
            return None


@contextlib.contextmanager
def _chain_errors(url: str | None) -> Iterator[None]:
    """Translates by `chain_error`; lets everything else pass."""
    try:
        yield
    except botocore.exceptions.BotoCoreError as error:
        if (known := chain_error(error)) is None:
            raise
        raise known.locate(url=url) from error


def chain_settings(options: S3Options, *, url: str | None) -> tuple[str | None, str | None, str | None]:
    """Reads the environment and the shared files, in botocore's order; nothing is sent.

    Returns:
        Endpoint, region and path of certificates, as in `storage.stores.aws_settings.AwsSettings`.

    Raises:
        ConfigurationError: The profile or the files do not work.
    """
    with _chain_errors(url):
        session = with_shared_models(botocore.session.Session(profile=options.profile))
        chain = botocore.configprovider.ConfiguredEndpointProvider(
            full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
        )
        return (
            options.endpoint_url or chain.provide(),
            options.region_or_environment or session.get_config_variable("region"),
            session.get_config_variable("ca_bundle"),
        )


def chain_credentials(profile: str | None, *, url: str) -> S3Credentials:
    """Asks the standard chain anew: environment, shared files, SSO, container and instance roles. It blocks.

    Args:
        profile: Of the shared files.
        url: The store's, for errors.

    Raises:
        AccessDenied: Nobody in the chain has keys, or the one who should have could not get them.
        ConfigurationError: The profile or the files do not work.
    """
    with _chain_errors(url):
        found = with_shared_models(botocore.session.Session(profile=profile)).get_credentials()
        if found is None:
            raise botocore.exceptions.NoCredentialsError
        keys = found.get_frozen_credentials()
        # botocore keeps the date to itself.
        expires_at = getattr(found, "_expiry_time", None)
    return S3Credentials(keys.access_key, keys.secret_key, keys.token, expires_at)
