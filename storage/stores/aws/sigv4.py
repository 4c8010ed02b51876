"""Signs requests to S3 with Signature Version 4, using only the standard library.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping

from concurrent_loader.storage.stores.aws.credentials import S3Credentials

__all__ = ["EMPTY_SHA256", "Signer"]

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_NOTHING: Mapping[str, str] = {}


class Signer:
    """Signs a store's requests. Derives the signing key once per day.

    Args:
        region: Name of the region for which signatures are valid.
    """

    def __init__(self, region: str) -> None:
        self._region = region
        self._second = -1
        self._time = ""
        self._keys: S3Credentials | None = None
        self._scope = ""
        self._key = b""

    def headers(
        self,
        keys: S3Credentials,
        *,
        method: str,
        host: str,
        path: str,
        query: str,
        now_s: float,
        more: Mapping[str, str] = _NOTHING,
        digest: str = EMPTY_SHA256,
    ) -> dict[str, str]:
        """Returns the headers of a signed request, including ``host`` and ``more``.

        Args:
            keys: Credentials to sign with.
            method: HTTP method.
            host: Value of the ``Host`` header.
            path: Percent-encoded path of the request.
            query: Percent-encoded query of the request, with parameters sorted by name.
            now_s: Time of signing, in seconds since 1970.
            more: Further headers to sign, by lower-case name.
            digest: SHA-256 of the request's body, in hexadecimal digits.
        """
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._second))
        headers = {**more, "host": host, "x-amz-content-sha256": digest, "x-amz-date": self._time}
        if keys.session_token is not None:
            headers["x-amz-security-token"] = keys.session_token
        order = sorted(headers)
        names = ";".join(order)
        lines = "".join([f"{name}:{headers[name]}\n" for name in order])
        request = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{digest}"
        if keys is not self._keys or not self._scope.startswith(self._time[:8]):
            self._derive(keys)
        text = f"AWS4-HMAC-SHA256\n{self._time}\n{self._scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._key, text.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{self._scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )
        return headers

    def _derive(self, keys: S3Credentials) -> None:
        scope = f"{self._time[:8]}/{self._region}/s3/aws4_request"
        key = f"AWS4{keys.secret_access_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._keys, self._scope, self._key = keys, scope, key
