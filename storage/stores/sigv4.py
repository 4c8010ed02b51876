"""Signs a GET request to S3 by Signature Version 4, with the standard library alone.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime

from storage.stores.credentials import S3Credentials

__all__ = ["signed_headers"]

_NO_BODY = hashlib.sha256(b"").hexdigest()


def signed_headers(
    keys: S3Credentials, *, host: str, path: str, query: str, region: str, now: datetime
) -> dict[str, str]:
    """Returns the headers that make a GET request a signed one, ``Host`` included.

    Args:
        keys: Credentials to sign with.
        host: Value of the ``Host`` header.
        path: Path as it stands in the request, percent-encoded.
        query: Query as it stands in the request, percent-encoded, with the parameters in order of their names.
        region: Name of the region that the signature holds for.
        now: Time of signing, with a time zone.
    """
    time = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": _NO_BODY, "x-amz-date": time}
    if keys.session_token is not None:
        headers["x-amz-security-token"] = keys.session_token
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"GET\n{path}\n{query}\n{lines}\n{names}\n{_NO_BODY}"
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
