"""Creates, disables and removes users of a local MinIO, for tests with revoked keys.

MinIO's admin API expects a user's secret encrypted with the administrator's secret: salt, cipher, nonce and sealed
chunks, as ``EncryptData`` of madmin-go v3 and sio-go write them. Of the three ciphers, this module uses PBKDF2 with
AES-256-GCM, because Python includes its key derivation.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import replace
from urllib.parse import urlencode

from botocore.credentials import Credentials

from concurrent_loader.storage.errors import StoreError
from concurrent_loader.storage.testing.servers.errors import ToolUnavailable
from concurrent_loader.storage.testing.servers.local_s3 import LocalS3, new_credentials
from concurrent_loader.storage.testing.servers.s3_requests import send_signed

__all__ = ["add_user", "disable_user", "remove_user"]

_PBKDF2_AES_GCM = b"\x02"
_PBKDF2_ROUNDS = 8192
_CHUNK_BYTES = 16 << 10


def add_user(server: LocalS3, *, policy: str = "readwrite") -> LocalS3:
    """Creates a user with random keys.

    Args:
        server: MinIO server with its administrator's keys.
        policy: Policy of the user: ``readwrite``, ``readonly``, ``writeonly``, or another policy of the server.

    Returns:
        Same server with the user's keys.

    Raises:
        StoreError: The server rejected the call, or is not MinIO.
        ToolUnavailable: The package ``cryptography`` is not installed (the extra ``testing`` brings it).
    """
    keys = new_credentials()
    body = json.dumps({"secretKey": keys.secret_key, "status": "enabled"}).encode()
    _ask(server, "PUT", "add-user", {"accessKey": keys.access_key}, _encrypted(server.secret_access_key, body))
    wanted = {"policyName": policy, "userOrGroup": keys.access_key, "isGroup": "false"}
    _ask(server, "PUT", "set-user-or-group-policy", wanted)
    return replace(server, access_key_id=keys.access_key, secret_access_key=keys.secret_key)


def disable_user(server: LocalS3, access_key_id: str) -> None:
    """Disables a user, so that the server rejects all further requests; raises the errors of `add_user`."""
    _ask(server, "PUT", "set-user-status", {"accessKey": access_key_id, "status": "disabled"})


def remove_user(server: LocalS3, access_key_id: str) -> None:
    """Deletes a user, so that the server does not know the key any more; raises the errors of `add_user`."""
    _ask(server, "DELETE", "remove-user", {"accessKey": access_key_id})


def _ask(server: LocalS3, method: str, call: str, arguments: dict[str, str], body: bytes = b"") -> None:
    url = f"{server.endpoint_url}/minio/admin/v3/{call}?{urlencode(arguments)}"
    administrator = Credentials(server.access_key_id, server.secret_access_key)
    answer = send_signed(method, url, administrator, region=server.region, body=body)
    if answer.status != 200:
        raise StoreError(
            f"MinIO rejected {call}", url=server.endpoint_url, got=f"{answer.status} {answer.code}".strip()
        )


def _encrypted(password: str, data: bytes) -> bytes:
    """Returns salt | cipher | nonce | one sealed chunk."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ToolUnavailable("users of MinIO need the package cryptography; install the extra 'testing'") from error
    if len(data) > _CHUNK_BYTES:
        raise ValueError(f"one chunk of {_CHUNK_BYTES} bytes at most, got {len(data)}")
    salt, nonce = secrets.token_bytes(32), secrets.token_bytes(8)
    cipher = AESGCM(hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _PBKDF2_ROUNDS, dklen=32))
    # Chunks count from 1. Chunk 0 is empty, and its tag goes into the others; 0x80 marks the last chunk.
    tag = cipher.encrypt(nonce + bytes(4), b"", None)
    sealed = cipher.encrypt(nonce + (1).to_bytes(4, "little"), data, b"\x80" + tag)
    return salt + _PBKDF2_AES_GCM + nonce + sealed
