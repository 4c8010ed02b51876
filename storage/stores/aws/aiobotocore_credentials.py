"""Adapts a `CredentialProvider` to aiobotocore and s3fs.

A module of its own: aiobotocore takes a tenth of a second to load, and the default client does not need it.
"""

from __future__ import annotations

from typing import Any

from aiobotocore.credentials import AioCredentials
from botocore.credentials import ReadOnlyCredentials

from concurrent_loader.storage.stores.aws.credential_provider import CredentialProvider

__all__ = ["AiobotocoreCredentials"]


class AiobotocoreCredentials(AioCredentials):  # type: ignore[misc]
    """Credentials for aiobotocore's signer, which reads them before every request."""

    def __init__(self, provider: CredentialProvider) -> None:
        super().__init__("", "", method="storage")
        self._provider = provider

    async def get_frozen_credentials(self) -> Any:
        """Returns the credentials for one request."""
        keys = (await self._provider.get_async()).keys
        return ReadOnlyCredentials(keys.access_key_id, keys.secret_access_key, keys.session_token)
