"""Names of commits in a manifest's metadata: by them a commit that is made again finds itself. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import ConfigurationError
from storage.shards.manifest import Manifest
from storage.shards.metadata import plain_metadata

__all__ = ["COMMIT_TOKENS", "MAX_TOKENS", "check_token", "snapshot_of", "user_metadata", "with_token"]

COMMIT_TOKENS = "commit_tokens"
"""Key of the metadata under which tokens are kept: token → number of the snapshot that it was committed in."""

MAX_TOKENS = 1000
_MAX_LENGTH = 200


def check_token(token: str | None) -> str | None:
    """Returns the token if it can be kept.

    Raises:
        ConfigurationError: It is not a printable text of 1 to 200 characters.
    """
    if token is not None and not (isinstance(token, str) and 0 < len(token) <= _MAX_LENGTH and token.isprintable()):
        raise ConfigurationError("a token must be a printable text of 1 to 200 characters", got=token)
    return token


def user_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a caller's metadata as they will be read back.

    Raises:
        ConfigurationError: They are not JSON, or use the key that tokens are kept under.
    """
    plain = plain_metadata(metadata)
    if COMMIT_TOKENS in plain:
        raise ConfigurationError(f"the metadata key {COMMIT_TOKENS!r} is the writer's; pass token= instead")
    return plain


def snapshot_of(manifest: Manifest | None, token: str | None) -> int | None:
    """Returns the number of the snapshot that was committed under a token, if the manifest knows it."""
    return None if manifest is None or token is None else _tokens(manifest.metadata).get(token)


def with_token(metadata: Mapping[str, Any], token: str | None, snapshot: int) -> dict[str, Any]:
    """Returns metadata to which a token is added; the oldest go where there are more than 1,000."""
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
