"""The common S3 options in s3fs's names, so that a user changes the client and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from concurrent_loader.storage.checked_url import endpoint_error
from concurrent_loader.storage.secret import reveal
from concurrent_loader.storage.stores.backends.aiobotocore_http import GuardedSession
from concurrent_loader.storage.stores.options import S3Options, parse_options

__all__ = ["s3fs_options"]


def s3fs_options(options: Mapping[str, Any], *, url: str) -> tuple[dict[str, Any], S3Options]:
    """Returns what s3fs takes, credentials aside, and the options of ours; names that are not ours pass as they are.

    Raises:
        ConfigurationError: Options of ours that cannot work.
    """
    common = {option.name for option in fields(S3Options)}
    known = parse_options(S3Options, {k: v for k, v in options.items() if k in common}, url=url)
    others = {name: value for name, value in options.items() if name not in common}
    endpoint_url = reveal(others.get("client_kwargs", {})).get("endpoint_url")
    refused = None if endpoint_url is None else endpoint_error(endpoint_url, name="client_kwargs['endpoint_url']")
    del endpoint_url
    if refused is not None:
        raise refused.locate(url=url)
    config = {
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": known.max_connections,
        "connect_timeout": known.connect_s,
        "http_session_cls": GuardedSession,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        **(
            {"s3": {"addressing_style": "path" if known.path_style else "virtual"}}
            if known.path_style is not None
            else {}
        ),
        **others.pop("config_kwargs", {}),
    }
    client = {
        **({"region_name": known.region_or_environment} if known.region_or_environment else {}),
        **({} if known.verify_tls else {"verify": False}),
        **others.pop("client_kwargs", {}),
    }
    translated = {
        "endpoint_url": known.endpoint_url,
        "anon": known.anonymous or None,
    }
    given = {name: value for name, value in translated.items() if value is not None}
    return {**given, "config_kwargs": config, "client_kwargs": client, **others}, known
