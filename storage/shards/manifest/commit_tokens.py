"""Names of commits in a manifest's metadata, by which a repeated commit is recognized. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.shards.manifest.manifest import SAME_SAMPLES_AS, Manifest, plain_metadata

__all__ = ["COMMIT_TOKENS", "MAX_TOKENS", "check_token", "snapshot_of", "user_metadata", "with_token"]

COMMIT_TOKENS = "commit_tokens"
"""Metadata key of the tokens: a mapping of tokens to the snapshots of their commits."""

MAX_TOKENS = 1000
_MAX_LENGTH = 200


def check_token(token: str | None) -> str | None:
    """Returns a valid token.

    Raises:
        ConfigurationError: The token is not a printable text of 1 to 200 characters.
    """
    if token is not None and not (isinstance(token, str) and 0 < len(token) <= _MAX_LENGTH and token.isprintable()):
        raise ConfigurationError("a token must be a printable text of 1 to 200 characters", got=token)
    return token


def user_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a caller's metadata as it will be read back.

    Raises:
        ConfigurationError: The metadata is not JSON, or uses a key that is reserved for the writer.
    """
    plain = plain_metadata(metadata)
    if COMMIT_TOKENS in plain:
        raise ConfigurationError(f"the metadata key {COMMIT_TOKENS!r} is reserved for the writer; pass token= instead")
    if SAME_SAMPLES_AS in plain:  # it would give this dataset the other one's loader states
        raise ConfigurationError(f"the metadata key {SAME_SAMPLES_AS!r} is reserved for the writer; leave it out")
    return plain


def snapshot_of(manifest: Manifest | None, token: str | None) -> int | None:
    """Returns the number of the snapshot committed with a token, if the manifest lists it."""
    return None if manifest is None or token is None else _tokens(manifest.metadata).get(token)


def with_token(metadata: Mapping[str, Any], token: str | None, snapshot: int) -> dict[str, Any]:
    """Returns metadata with a token added; only the newest 1,000 tokens are kept."""
    if token is None:
        return dict(metadata)
    tokens = {**_tokens(metadata), token: snapshot}
    newest = sorted(tokens, key=lambda each: (tokens[each], each))[-MAX_TOKENS:]
    return {**metadata, COMMIT_TOKENS: {each: tokens[each] for each in newest}}


def _tokens(metadata: Mapping[str, Any]) -> dict[str, int]:
    kept = metadata.get(COMMIT_TOKENS)
    if not isinstance(kept, dict):
        return {}
    return {name: number for name, number in kept.items() if type(number) is int and number > 0}
