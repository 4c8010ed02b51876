"""Options of the stores behind a network, checked once, before anything is sent; secrets never show in a repr."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from storage.checked_url import endpoint_error, text_error
from storage.errors import ConfigurationError
from storage.secrets import Secret, hide, is_lost, reveal
from storage.sizes import Size, parse_size

__all__ = ["AzureOptions", "CloudOptions", "GoogleOptions", "S3Options", "parse_options"]

MIB = 1 << 20
_SECRET = {"secret": True}  # a field that is neither shown nor pickled; text that is put there is wrapped
_SENT = {"sent": True}  # text that goes into requests as it is
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
    """Makes typed options of what a user wrote.

    Raises:
        ConfigurationError: An unknown option, one of the wrong type or with characters that no request can carry, or
            options that contradict each other. It lists the valid names and never repeats a value, which may be a
            secret.
    """
    known = {option.name: option for option in fields(kind)}
    options = hide(dict(options))  # a traceback shows the variables of this frame and of those below
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
    """What is wrong with an option's value; returned and not raised, for here the value stands bare."""
    value, kind = reveal(value), str(option.type)
    if kind not in _TYPES:
        if value is None or callable(value):
            return None
        return ConfigurationError(
            f"option {option.name!r} takes a function without arguments", got=type(value).__name__
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
    """What all object stores have in common.

    Attributes:
        endpoint_url: ``http://`` or ``https://`` address of a server other than the provider's own.
        anonymous: Send no credentials.
        verify_tls: Check the server's certificate.
        max_connections: Connections kept open for the next request; with aiobotocore also the most at a time.
        connect_s: Seconds for making a connection; one of the deadlines of docs/fetching.md.
        multipart_bytes: Objects larger than this go up in parts.
        part_bytes: Size of a part, at least 5 MiB (S3's minimum).
        parts_in_flight: Parts of one object uploaded at a time.
        list_page_keys: Keys a page of a listing, at most 1,000; for S3 only.
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
            raise ConfigurationError("part_bytes is at least 5 MiB", got=self.part_bytes)
        if self.num_multipart_bytes > 5 * 1024 * MIB:
            raise ConfigurationError("multipart_bytes is at most 5 GiB", got=self.multipart_bytes)
        if self.max_connections < 1 or self.parts_in_flight < 1:
            raise ConfigurationError("max_connections and parts_in_flight are at least 1")
        if not self.connect_s > 0:
            raise ConfigurationError("connect_s must be positive", got=self.connect_s)
        if not 1 <= self.list_page_keys <= 1000:
            raise ConfigurationError("list_page_keys is 1 to 1000", got=self.list_page_keys)

    @property
    def num_multipart_bytes(self) -> int:
        """`multipart_bytes` as a number."""
        return int(self.multipart_bytes)

    @property
    def num_part_bytes(self) -> int:
        """`part_bytes` as a number."""
        return int(self.part_bytes)

    def part_bytes_for(self, size: int) -> int:
        """The part size for an object: as asked for, or larger where that would make more than S3's 10,000 parts."""
        return max(self.num_part_bytes, -(-size // 10_000))


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Options(CloudOptions):
    """Options of the S3 stores, the same for every client.

    Without keys, profile or ``anonymous`` the standard AWS chain applies: environment, shared files, SSO, container and
    instance roles; ``AWS_ENDPOINT_URL`` and a region from there too.

    Attributes:
        region: Name of the bucket's region.
        profile: Of the shared AWS configuration files.
        access_key_id: Needs ``secret_access_key``.
        secret_access_key: Never shown.
        session_token: With temporary keys; never shown.
        credentials: Instead of keys, a function that gets them, from a vault or an STS: it takes nothing, may block,
            and returns `S3Credentials` or a mapping of the same names. It is asked again before they expire. To pickle
            the options it must be picklable itself, and it should hold no secret.
        path_style: ``endpoint/bucket/key`` instead of ``bucket.endpoint/key``; None: if there is an endpoint_url.
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
            raise ConfigurationError("access_key_id and secret_access_key go together")
        if self.session_token is not None and self.access_key_id is None:
            raise ConfigurationError("session_token needs access_key_id and secret_access_key")
        ways = {
            "keys": self.access_key_id is not None,
            "credentials": self.credentials is not None,
            "profile": self.profile is not None,
            "anonymous": self.anonymous,
        }
        if sum(ways.values()) > 1:
            raise ConfigurationError("only one of access_key_id, credentials, profile and anonymous can be given")

    @property
    def region_or_environment(self) -> str | None:
        """The region given, or ``AWS_REGION``, which botocore alone of all AWS clients does not read."""
        return self.region or os.environ.get("AWS_REGION") or None


@dataclass(frozen=True, kw_only=True, slots=True)
class GoogleOptions(CloudOptions):
    """Options of ``gs://``; without any the application default credentials apply.

    Attributes:
        service_account: Path of a service account's JSON file.
        service_account_key: That JSON itself; never shown.
        bearer_token: An access token; never shown.
    """

    service_account: str | None = None
    service_account_key: str | Secret | None = field(default=None, repr=False, metadata=_SECRET)
    bearer_token: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureOptions(CloudOptions):
    """Options of ``az://``; without any the standard ``AZURE_*`` variables and managed identities apply.

    Attributes:
        account_name: Storage account.
        account_key: Never shown.
        sas_key: Shared access signature; never shown.
        bearer_token: An access token; never shown.
        tenant_id: Of a service principal.
        client_id: Of a service principal.
        client_secret: Of a service principal; never shown.
        use_azure_cli: Take the token of the ``az`` command line.
    """

    account_name: str | None = field(default=None, metadata=_SENT)
    account_key: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    sas_key: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    bearer_token: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    tenant_id: str | None = field(default=None, metadata=_SENT)
    client_id: str | None = field(default=None, metadata=_SENT)
    client_secret: str | Secret | None = field(default=None, repr=False, metadata=_SECRET | _SENT)
    use_azure_cli: bool = False
