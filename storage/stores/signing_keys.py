"""A store's keys as aiobotocore signs with them: between `storage.stores.credential_source` and S3 and s3fs clients.

A file of its own, because aiobotocore takes a tenth of a second to load and the fast lane does without it.
"""

from __future__ import annotations

from typing import Any

from aiobotocore.credentials import AioCredentials
from botocore.credentials import ReadOnlyCredentials

from storage.stores.credential_source import CredentialSource

__all__ = ["SigningKeys"]


class SigningKeys(AioCredentials):  # type: ignore[misc]
    """A source as aiobotocore's signer sees it: asked before every request."""

    def __init__(self, source: CredentialSource) -> None:
        super().__init__("", "", method="storage")
        self._source = source

    async def get_frozen_credentials(self) -> Any:
        """Returns the keys for one request."""
        keys = (await self._source.get_async()).keys
        return ReadOnlyCredentials(keys.access_key_id, keys.secret_access_key, keys.session_token)
