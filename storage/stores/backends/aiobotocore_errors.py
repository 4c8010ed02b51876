"""Translates what botocore and aiohttp raise into `concurrent_loader.storage.errors`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import aiohttp
import botocore.exceptions
import botocore.parsers

from concurrent_loader.storage.errors import (
    ConfigurationError,
    DeadlineExceeded,
    ProtocolViolation,
    StorageError,
    StoreError,
    TruncatedBody,
)
from concurrent_loader.storage.stores.aws.botocore_chain import translate_chain_error
from concurrent_loader.storage.stores.connection_errors import connection_error
from concurrent_loader.storage.stores.error_mapping import parse_time, refusal

__all__ = ["UNREADABLE", "error_code", "translate"]

# What parsing a response raises where the response is not what S3's model of it says.
UNREADABLE = (
    botocore.exceptions.PaginationError,
    botocore.parsers.ResponseParserError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
)


def error_code(error: Exception) -> str | None:
    """Returns S3's code of an error; None if the error is not a response of the server."""
    if not isinstance(error, botocore.exceptions.ClientError):
        return None
    return str(error.response.get("Error", {}).get("Code"))


def translate(error: Exception, *, writing: bool) -> StorageError:
    """Translates what botocore or aiohttp raised into `concurrent_loader.storage.errors`; the caller fills in where it
    happened.
    """
    if (known := translate_chain_error(error)) is not None:
        return known
    match error:
        case botocore.exceptions.HTTPClientError() if isinstance(inner := error.kwargs.get("error"), StorageError):
            return inner  # of `concurrent_loader.storage.stores.backends.aiobotocore_http`
        case botocore.exceptions.ClientError():
            response: Any = error.response
            said, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
            region = said.get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region")
            return refusal(
                meta.get("HTTPStatusCode", 0),
                str(said.get("Code", "")),
                writing=writing,
                region=region,
                machine_time=parse_time(said.get("RequestTime")) or datetime.now(UTC),
                store_time=parse_time(said.get("ServerTime") or meta.get("HTTPHeaders", {}).get("date")),
            )
        case botocore.exceptions.ReadTimeoutError() | botocore.exceptions.ConnectTimeoutError() | TimeoutError():
            return DeadlineExceeded("the store did not answer in time")
        case (
            aiohttp.ClientPayloadError()
            | botocore.exceptions.ResponseStreamingError()
            | botocore.exceptions.IncompleteReadError()
        ):
            return TruncatedBody("the body ended early")
        case (
            botocore.exceptions.ConnectionError()
            | botocore.exceptions.HTTPClientError()
            | aiohttp.ClientError()
            | OSError()
        ):
            # botocore's own errors carry the whole URL that was asked for.
            server = getattr(error, "kwargs", {}).get("endpoint_url")
            return connection_error(error, server=server if isinstance(server, str) else None)
        case botocore.exceptions.ParamValidationError() | botocore.exceptions.UnsupportedS3ConfigurationError():
            return ConfigurationError("the client refused the request", got=str(error))
        case _ if isinstance(error, UNREADABLE):
            return ProtocolViolation("the response cannot be read", got=type(error).__name__)
        case _:
            return StoreError("the client failed", got=type(error).__name__)
