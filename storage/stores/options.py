"""Options of network stores, validated before the first request. Secrets never show in a repr."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from concurrent_loader.storage.checked_url import endpoint_error, text_error
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.secret import Secret, hide, is_lost, reveal
from concurrent_loader.storage.sizes import Size, parse_size

__all__ = ["AzureOptions", "CloudOptions", "GoogleOptions", "S3Options", "parse_options"]

MIB = 1 << 20
_SECRET = {"secret": True}  # a field that is never shown or pickled; its text is wrapped
_SENT = {"sent": True}  # text that is sent unmodified in requests
_TYPES: dict[str, tuple[type, ...]] = {
    "str | None": (str, type(None)),
    "str | Secret | None": (str, type(None)),
    "bool": (bool,),
    "bool | None": (bool, type(None)),
    "int": (int,),
    "float": (int, float),
    "Size": (int, str),
}
OptionsT = TypeVar("OptionsT", bound="CloudOptions")


def parse_options(kind: type[OptionsT], options: Mapping[str, Any], *, url: str) -> OptionsT:
    """Validates options from a user.

    Raises:
        ConfigurationError: An option is unknown, has the wrong type or contains invalid characters, or options
            contradict each other. The error lists the valid names. It never repeats a value, which may be a secret.
    """
    known = {option.name: option for option in fields(kind)}
    options = hide(dict(options))  # a traceback may show the variables of this frame and of its callees
    for name, value in options.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigurationError(
                f"unknown option {name!r}{hint}; the options are {', '.join(sorted(known))}", url=url
            )
        if not is_lost(value) and (refused := _refusal(known[name], value)) is not None:
            raise refused.locate(url=url)
    try:
        return kind(**{k: v if known[k].metadata.get("secret") else reveal(v) for k, v in options.items()})
    except ConfigurationError as error:
        error.locate(url=url)
        raise


def _refusal(option: Field[Any], value: object) -> ConfigurationError | None:
    """Returns an error for an invalid value. Raising it here would put the bare value into the traceback."""
    value, kind = reveal(value), str(option.type)
    if kind not in _TYPES:
        if value is None or callable(value):
            return None
        return ConfigurationError(
            f"option {option.name!r} must be a function without arguments", got=type(value).__name__
        )
    types = _TYPES[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return ConfigurationError(
            f"option {option.name!r} has the wrong type",
            expected=kind.replace("Secret | ", ""),
            got=type(value).__name__,
        )
    if not isinstance(value, str):
        return None
    if option.name == "endpoint_url":
        return endpoint_error(value, name=f"option {option.name!r}")
    return text_error(value, name=f"option {option.name!r}") if option.metadata.get("sent") else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudOptions:
    """Options of all object stores.

    Attributes:
        endpoint_url: ``http://`` or ``https://`` URL of the server. Default: the provider's own endpoint.
        anonymous: Whether to send requests without credentials. Default: False.
        verify_tls: Whether to check the server's certificate. Default: True.
        max_connections: Maximum number of idle connections; for S3, of all connections. Default: 256.
        connect_s: Timeout for a new connection, in seconds. Default: 5. See docs/explanation/fetching.md for other
            deadlines.
        multipart_bytes: Size above which objects are uploaded in parts. Default: 64 MiB.
        part_bytes: Size of a part, at least 5 MiB (S3's minimum). Default: 16 MiB.
        parts_in_flight: Maximum number of parts of one object that are uploaded at a time. Default: 4.
        list_page_keys: Maximum number of keys per page of a listing, up to 1,000; S3 only. Default: 1,000.
    """

    endpoint_url: str | None = None
    anonymous: bool = False
    verify_tls: bool = True
    max_connections: int = 256
    connect_s: float = 5.0
    multipart_bytes: Size = 64 * MIB
    part_bytes: Size = 16 * MIB
    parts_in_flight: int = 4
    list_page_keys: int = 1000

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not is_lost(value) and (refused := _refusal(option, value)) is not None:
                del value
                raise refused
            if option.metadata.get("secret") and isinstance(value, str):
                object.__setattr__(self, option.name, Secret(value))
        for name in ("multipart_bytes", "part_bytes"):
            object.__setattr__(self, name, parse_size(getattr(self, name), name=name))
        if self.num_part_bytes < 5 * MIB:
            raise ConfigurationError("part_bytes must be at least 5 MiB", got=self.part_bytes)
        if self.num_multipart_bytes > 5 * 1024 * MIB:
            raise ConfigurationError("multipart_bytes must be at most 5 GiB", got=self.multipart_bytes)
        if self.max_connections < 1 or self.parts_in_flight < 1:
            raise ConfigurationError("max_connections and parts_in_flight must be at least 1")
        if not self.connect_s > 0:
            raise ConfigurationError("connect_s must be positive", got=self.connect_s)
        if not 1 <= self.list_page_keys <= 1000:
            raise ConfigurationError("list_page_keys must be 1 to 1000", got=self.list_page_keys)

    @property
    def num_multipart_bytes(self) -> int:
        """`multipart_bytes` in bytes."""
        return int(self.multipart_bytes)

    @property
    def num_part_bytes(self) -> int:
        """`part_bytes` in bytes."""
        return int(self.part_bytes)

    def part_bytes_for(self, size: int) -> int:
        """Returns the part size for an object: `part_bytes`, or more to stay within S3's limit of 10,000 parts."""
        return max(self.num_part_bytes, -(-size // 10_000))


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Options(CloudOptions):
    """Options of S3 stores, the same for every client.

    Without keys, profile or ``anonymous``, the standard AWS chain applies: environment, shared files, SSO, container
    and instance roles. ``AWS_ENDPOINT_URL`` and the region are read from there as well.

    Attributes:
        region: Name of the bucket's region.
        profile: Name of a profile in the shared AWS configuration files.
        access_key_id: ID of the access key; requires ``secret_access_key``.
        secret_access_key: Secret of the access key; never shown.
        session_token: Token of temporary credentials; never shown.
        credentials: Function that fetches credentials, for example from a vault or an STS, instead of keys. It takes no
            arguments, may block, and returns `S3Credentials` or a mapping with the same names. It is called again
            before the credentials expire. It must be picklable if the options are pickled, and should hold no secret.
        path_style: Whether URLs are ``endpoint/bucket/key`` instead of ``bucket.endpoint/key``. Default: only with an
            ``endpoint_url``.
    """

    region: str | None = field(default=None, metadata=_SENT)
    profile: str | None = None
    access_key_id: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    secret_access_key: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    session_token: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    credentials: Callable[[], Any] | None = field(default=None, repr=False)
    path_style: bool | None = None

    def __post_init__(self) -> None:
        CloudOptions.__post_init__(self)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigurationError("pass both access_key_id and secret_access_key, or neither")
        if self.session_token is not None and self.access_key_id is None:
            raise ConfigurationError("session_token requires access_key_id and secret_access_key")
        ways = {
            "keys": self.access_key_id is not None,
            "credentials": self.credentials is not None,
            "profile": self.profile is not None,
            "anonymous": self.anonymous,
        }
        if sum(ways.values()) > 1:
            raise ConfigurationError("pass only one of access_key_id, credentials, profile and anonymous")

    @property
    def region_or_environment(self) -> str | None:
        """``region``, or ``AWS_REGION``, which botocore does not read, unlike other AWS clients."""
        return self.region or os.environ.get("AWS_REGION") or None


@dataclass(frozen=True, kw_only=True, slots=True)
class GoogleOptions(CloudOptions):
    """Options of ``gs://`` stores. Default: the application default credentials.

    Attributes:
        service_account: Path of a service account's JSON file.
        service_account_key: Content of a service account's JSON file; never shown.
        bearer_token: Access token; never shown.
    """

    service_account: str | None = None
    service_account_key: str | Secret | None = field(default=None, repr=False, metadata=_SECRET)
    bearer_token: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureOptions(CloudOptions):
    """Options of ``az://`` stores. Default: the standard ``AZURE_*`` variables and managed identities.

    Attributes:
        account_name: Name of the storage account.
        account_key: Key of the storage account; never shown.
        sas_key: Shared access signature; never shown.
        bearer_token: Access token; never shown.
        tenant_id: Tenant ID of a service principal.
        client_id: Client ID of a service principal.
        client_secret: Secret of a service principal; never shown.
        use_azure_cli: Whether to use the token of the ``az`` command line. Default: False.
    """

    account_name: str | None = field(default=None, metadata=_SENT)
    account_key: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    sas_key: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    bearer_token: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    tenant_id: str | None = field(default=None, metadata=_SENT)
    client_id: str | None = field(default=None, metadata=_SENT)
    client_secret: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    use_azure_cli: bool = False
