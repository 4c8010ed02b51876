"""Makes a command of `concurrent-loader ingest` from each entry of `concurrent_loader.storage.importers.FORMATS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from concurrent_loader.cli.ingest_options import (
    Address,
    Again,
    Append,
    Dst,
    EngineOption,
    OnError,
    OnErrorOption,
    Overwrite,
    Part,
    Resume,
    ShardSize,
    SrcEndpointUrl,
    SrcProfile,
    SrcRegion,
    SrcStorageOption,
    Token,
    UploadsInFlight,
    Workers,
)
from concurrent_loader.cli.ingest_run import run_import
from concurrent_loader.cli.options import (
    Client,
    EndpointUrl,
    Json,
    Profile,
    Region,
    StorageOption,
    client_for,
    options_for,
    store_options,
)
from concurrent_loader.storage.importers import FORMATS, ImportFormat

__all__ = ["add_formats"]

_OPTIONS = "Options of this format"


def add_formats(app: typer.Typer) -> None:
    """Registers a command for each format."""
    for row in FORMATS:
        app.command(row.name, help=row.help)(_command(row))


def _command(row: ImportFormat) -> Callable[..., None]:
    """Returns the function of a command, whose signature has the options of the format."""

    def command(
        src: str,
        dst: Dst,
        *,
        column: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME=TYPE", help="Type of a column, such as label=int64. May be repeated."),
        ] = None,
        drop: Annotated[
            list[str] | None, typer.Option(metavar="NAME", help="Column to leave out. May be repeated.")
        ] = None,
        shard_size: ShardSize = "8MiB",
        on_error: OnErrorOption = OnError.FAIL,
        append: Append = False,
        again: Again = False,
        token: Token = None,
        overwrite: Overwrite = False,
        uploads_in_flight: UploadsInFlight = 4,
        workers: Workers = None,
        engine: EngineOption = "local",
        address: Address = None,
        part: Part = None,
        resume: Resume = True,
        endpoint_url: EndpointUrl = None,
        region: Region = None,
        profile: Profile = None,
        storage_option: StorageOption = None,
        client: Client = "auto",
        src_endpoint_url: SrcEndpointUrl = None,
        src_region: SrcRegion = None,
        src_profile: SrcProfile = None,
        src_storage_option: SrcStorageOption = None,
        as_json: Json = False,
        **own: Any,
    ) -> None:
        options = store_options(
            endpoint_url=endpoint_url, region=region, profile=profile, storage_option=storage_option
        )
        other = store_options(
            endpoint_url=src_endpoint_url, region=src_region, profile=src_profile, storage_option=src_storage_option
        )
        importer = _importer(row, src, column, drop, client, {**options, **other}, own)
        run_import(
            importer, dst, noun="sample", as_json=as_json, on_error=on_error.value, append=append, overwrite=overwrite,
            shard_size=shard_size, uploads_in_flight=uploads_in_flight, token=token, again=again,
            workers=workers, engine=engine, address=address, part=part, resume=resume,
            client=client_for(dst, client), storage_options=options_for(dst, options),
        )  # fmt: skip

    signature = inspect.signature(command, eval_str=True)
    parameters = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters[0] = parameters[0].replace(
        annotation=Annotated[str, typer.Argument(metavar=row.metavar, help=row.source)]
    )
    parameters += [_parameter(option.name, option.help, is_list=option.is_list) for option in row.options]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(name: str, text: str, *, is_list: bool) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel=_OPTIONS)
    kind: Any = list[str] | None if is_list else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _importer(
    row: ImportFormat,
    src: str,
    column: list[str] | None,
    drop: list[str] | None,
    client: str,
    options: dict[str, Any],
    own: dict[str, Any],
) -> Any:
    from concurrent_loader.storage.checked_url import check_there, check_url
    from concurrent_loader.storage.importers.column_types import parse_column_types
    from concurrent_loader.storage.stores.backends.open_store import takes_no_options

    if row.is_stored:
        check_there(check_url(src))
    importer = getattr(import_module(f"concurrent_loader.storage.importers.{row.module}"), row.class_name)
    given = {name: value for name, value in own.items() if value is not None}
    places = [given[option.name] for option in row.options if option.is_stored and option.name in given]
    places += [src] if row.is_stored else []
    at = next((place for place in places if not takes_no_options(place)), "")  # a bucket, if there is one
    return importer(
        src, columns=parse_column_types(column or []), drop=drop or [], client=client_for(at, client),
        storage_options=options_for(at, options), **given,
    )  # fmt: skip
