"""Defines the options that several commands share: the object store, its credentials, and JSON output."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from concurrent_loader.storage.shards.manifest.snapshots import SnapshotName
    from concurrent_loader.storage.stores.store import Store

__all__ = [
    "Client",
    "EndpointUrl",
    "InFlight",
    "Json",
    "Profile",
    "Region",
    "Snapshot",
    "StorageOption",
    "StoreFlags",
    "client_for",
    "open_for_command",
    "options_for",
    "parse_duration",
    "parse_snapshot",
    "store_options",
    "takes_store",
]

_STORE = "Object store"

EndpointUrl = Annotated[
    str | None, typer.Option(help="URL of the S3 server. Default: the server of the provider.", rich_help_panel=_STORE)
]
Region = Annotated[str | None, typer.Option(help="Region of the bucket.", rich_help_panel=_STORE)]
Profile = Annotated[
    str | None, typer.Option(help="Profile in the shared AWS configuration files.", rich_help_panel=_STORE)
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Another option of the store, such as anonymous=true. May be repeated.",
        rich_help_panel=_STORE,
    ),
]
Client = Annotated[
    str, typer.Option(help="Client library: auto, native, aiobotocore, obstore or fsspec.", rich_help_panel=_STORE)
]
InFlight = Annotated[int, typer.Option(min=1, help="Maximum number of requests in flight.")]
Snapshot = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|TAG|TIME",
        help="Number of the snapshot, a tag, or an ISO 8601 time (UTC without a zone). Default: the newest.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]

_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_TEXT = frozenset({"id", "key", "name", "password", "profile", "region", "secret", "token"})  # text even if all digits
_CLIENTS = ("auto", "native", "aiobotocore", "obstore", "fsspec")
_WORDS = {"true": True, "false": False, "none": None}


def store_options(
    *, endpoint_url: str | None, region: str | None, profile: str | None, storage_option: list[str] | None
) -> dict[str, Any]:
    """Combines command-line options into options of `concurrent_loader.storage.open_store`.

    Raises:
        typer.BadParameter: A ``--storage-option`` is not of the form ``name=value``.
    """
    options: dict[str, Any] = {"endpoint_url": endpoint_url, "region": region, "profile": profile}
    options = {name: value for name, value in options.items() if value is not None}
    for text in storage_option or []:
        name, separator, value = text.partition("=")
        if not separator or not name:
            # The message does not repeat the text, because it may be a secret.
            raise typer.BadParameter("a storage option must have the form name=value", param_hint="--storage-option")
        name = name.replace("-", "_")
        options[name] = value if name.rpartition("_")[2] in _TEXT else _parse_value(value)
    return options


@dataclass(frozen=True, slots=True)
class StoreFlags:
    """The options of a command for the object store.

    Attributes:
        options: Options of `concurrent_loader.storage.open_store`.
        client: Name of the client library.
    """

    options: dict[str, Any]
    client: str


_STORE_FLAGS: dict[str, tuple[Any, Any]] = {
    "endpoint_url": (EndpointUrl, None),
    "region": (Region, None),
    "profile": (Profile, None),
    "storage_option": (StorageOption, None),
    "client": (Client, "auto"),
}


def takes_store(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of the object store in place of its parameter ``store_flags``."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        if each.name != "store_flags":
            parameters.append(each.replace(annotation=hints[each.name]))
            continue
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
            for name, (hint, default) in _STORE_FLAGS.items()
        ]

    def run(**arguments: Any) -> None:
        flags = {name: arguments.pop(name, default) for name, (_, default) in _STORE_FLAGS.items()}
        client = flags.pop("client")
        command(**arguments, store_flags=StoreFlags(store_options(**flags), client))

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def options_for(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Drops the options for a local folder or memory, which has none: they are meant for the other end of a copy."""
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    return {} if scheme in ("file", "memory") else options


def client_for(url: str, client: str) -> str:
    """Returns the client library for a URL; ``"auto"`` for a local folder or memory.

    Raises:
        typer.BadParameter: The client is unknown.
    """
    if client not in _CLIENTS:
        raise typer.BadParameter(f"{client!r} is not one of {', '.join(_CLIENTS)}", param_hint="--client")
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    return "auto" if scheme in ("file", "memory") else client


def open_for_command(url: str, *, client: str, options: dict[str, Any]) -> Store:
    """Opens a store for reading, with the options that apply to its URL.

    Raises:
        NotFound: The path does not exist; perhaps ``s3://`` is missing.
    """
    from concurrent_loader.storage.checked_url import check_there, check_url
    from concurrent_loader.storage.stores.backends.open_store import open_store

    check_there(check_url(url))
    return open_store(url, client=client_for(url, client), **options_for(url, options))


def parse_duration(text: str, *, name: str) -> timedelta:
    """Returns a duration such as ``"30d"``.

    Raises:
        typer.BadParameter: The text is not a number followed by w, d, h, m or s.
    """
    match = re.fullmatch(r"(\d{1,6})([wdhms])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration such as 30d or 12h (w, d, h, m, s)", param_hint=name)
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


def parse_snapshot(text: str | None) -> SnapshotName | None:
    """Returns what `load_manifest` takes: a number, a tag, or a time.

    Raises:
        typer.BadParameter: The text looks like a time, but is none.
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    if not re.match(r"\d{4}-\d\d-\d\d(?:[T ]|\Z)", text):
        return text
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"not a time: {error}", param_hint="snapshot") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _parse_value(value: str) -> str | int | bool | None:
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    return int(value) if value.isascii() and value.isdigit() else value
