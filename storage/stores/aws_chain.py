"""The standard AWS chain, asked once for all clients: which endpoint, region and keys hold where none were given."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import botocore.configprovider
import botocore.credentials
import botocore.exceptions
import botocore.loaders
import botocore.session

from storage.errors import AccessDenied, ConfigurationError, StorageError
from storage.stores.options import S3Options

__all__ = ["AwsSettings", "CredentialSource", "chain_error", "with_shared_models"]

# botocore refreshes keys that have less than 10 minutes left, so what it hands out holds for that long.
_KEYS_HOLD_FOR = timedelta(minutes=10)


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
def _chain_errors(url: str) -> Iterator[None]:
    """Translates by `chain_error`; lets everything else pass."""
    try:
        yield
    except botocore.exceptions.BotoCoreError as error:
        if (known := chain_error(error)) is None:
            raise
        raise known.locate(url=url) from error


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Where a bucket is, after the options, the environment and the shared files had their say.

    Attributes:
        endpoint_url: None is AWS itself.
        region: None where nobody says.
        ca_bundle: Path of certificates to trust, as AWS_CA_BUNDLE names it.
    """

    endpoint_url: str | None
    region: str | None
    ca_bundle: str | None

    @classmethod
    def resolve(cls, options: S3Options, *, url: str) -> AwsSettings:
        """Reads the environment and the shared files, in botocore's order; nothing is sent."""
        with _chain_errors(url):
            session = with_shared_models(botocore.session.Session(profile=options.profile))
            chain = botocore.configprovider.ConfiguredEndpointProvider(
                full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
            )
            return cls(
                endpoint_url=options.endpoint_url or chain.provide(),
                region=options.region_or_environment or session.get_config_variable("region"),
                ca_bundle=session.get_config_variable("ca_bundle"),
            )


class CredentialSource:
    """Keys for obstore, from the options or from botocore's chain.

    obstore calls it on a thread of its own runtime, so that a slow metadata service never holds up an event loop, and
    caches what it returns. Thread-safe; one refresh at a time.
    """

    def __init__(self, options: S3Options, *, url: str) -> None:
        self._options = options
        self._url = url
        self._lock = threading.Lock()
        self._found: Any = None  # botocore's Credentials
        self.failure: StorageError | None = None
        """Why the last call gave no keys: obstore passes on no more than the words of an exception."""

    def __call__(self) -> dict[str, object]:
        """Returns keys in obstore's form."""
        with self._lock:
            try:
                keys = self._keys()
            except StorageError as error:
                self.failure = error
                raise
            self.failure = None
            return keys

    def _keys(self) -> dict[str, object]:
        options = self._options
        if options.access_key_id is not None:
            return _in_obstores_form(options.access_key_id, options.secret_access_key, options.session_token, None)
        with _chain_errors(self._url):
            if self._found is None:
                session = with_shared_models(botocore.session.Session(profile=options.profile))
                self._found = session.get_credentials()
            if self._found is None:
                raise botocore.exceptions.NoCredentialsError
            keys = self._found.get_frozen_credentials()
        expiring = isinstance(self._found, botocore.credentials.RefreshableCredentials)
        expires_at = datetime.now(UTC) + _KEYS_HOLD_FOR if expiring else None
        return _in_obstores_form(keys.access_key, keys.secret_key, keys.token, expires_at)


def _in_obstores_form(
    access_key_id: str, secret_access_key: str | None, token: str | None, expires_at: datetime | None
) -> dict[str, object]:
    return {
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "token": token,
        "expires_at": expires_at,
    }
