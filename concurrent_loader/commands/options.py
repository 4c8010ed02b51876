"""Options that several commands share: which store an address means, and with whose identity it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from storage.stores.protocol import Store

__all__ = [
    "Client",
    "EndpointUrl",
    "InFlight",
    "Json",
    "Profile",
    "Region",
    "StorageOption",
    "client_for",
    "open_for_command",
    "options_for",
    "store_options",
]

_STORE = "Object store"

EndpointUrl = Annotated[
    str | None, typer.Option(help="Address of the S3 server, if not the provider's own.", rich_help_panel=_STORE)
]
Region = Annotated[str | None, typer.Option(help="Region of the bucket.", rich_help_panel=_STORE)]
Profile = Annotated[
    str | None, typer.Option(help="Profile of the shared AWS configuration files.", rich_help_panel=_STORE)
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Any other option of the store, e.g. anonymous=true. Repeatable.",
        rich_help_panel=_STORE,
    ),
]
Client = Annotated[
    str, typer.Option(help="Client library: auto, obstore, aiobotocore or fsspec.", rich_help_panel=_STORE)
]
InFlight = Annotated[int, typer.Option(min=1, help="Requests at once.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]

_TEXT = frozenset({"id", "key", "name", "password", "profile", "region", "secret", "token"})  # even if all digits
_CLIENTS = ("auto", "obstore", "aiobotocore", "fsspec")
_WORDS = {"true": True, "false": False, "none": None}


def store_options(
    *, endpoint_url: str | None, region: str | None, profile: str | None, storage_option: list[str] | None
) -> dict[str, Any]:
    """Gathers what was given into options of `storage.open_store`.

    Raises:
        typer.BadParameter: A ``--storage-option`` that is no ``name=value``.
    """
    options: dict[str, Any] = {"endpoint_url": endpoint_url, "region": region, "profile": profile}
    options = {name: value for name, value in options.items() if value is not None}
    for text in storage_option or []:
        name, separator, value = text.partition("=")
        if not separator or not name:
            # The value is not repeated: it may be a secret.
            raise typer.BadParameter("a storage option looks like name=value", param_hint="--storage-option")
        name = name.replace("-", "_")
        options[name] = value if name.rpartition("_")[2] in _TEXT else _typed(value)
    return options


def options_for(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Keeps options from a place that has none: they are meant for the other end, source or destination."""
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    return {} if scheme in ("file", "memory") else options


def client_for(url: str, client: str) -> str:
    """Likewise for the client library.

    Raises:
        typer.BadParameter: No such client.
    """
    if client not in _CLIENTS:
        raise typer.BadParameter(f"{client!r} is not one of {', '.join(_CLIENTS)}", param_hint="--client")
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    return "auto" if scheme in ("file", "memory") else client


def open_for_command(url: str, *, client: str, options: dict[str, Any]) -> Store:
    """Opens a store that is read, with the options that apply to it.

    Raises:
        NotFound: A path that does not exist; perhaps ``s3://`` was forgotten.
    """
    from storage.checked_url import check_there, check_url
    from storage.stores.opening import open_store

    check_there(check_url(url))
    return open_store(url, client=client_for(url, client), **options_for(url, options))


def _typed(value: str) -> str | int | bool | None:
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    return int(value) if value.isascii() and value.isdigit() else value
