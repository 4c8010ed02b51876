"""Where a bucket is: S3 says so in the head of any answer to a request for it, signed or not."""

from __future__ import annotations

import aiohttp

__all__ = ["bucket_region"]

_TIMEOUT_S = 5.0


async def bucket_region(bucket: str, *, endpoint_url: str | None) -> str | None:
    """Asks a server for a bucket's region; None if it does not say, or cannot be reached in time.

    Args:
        bucket: Its name.
        endpoint_url: Of the server; None is AWS.
    """
    url = f"{(endpoint_url or 'https://s3.amazonaws.com').rstrip('/')}/{bucket}"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.head(url, allow_redirects=False) as answer,
        ):
            return answer.headers.get("x-amz-bucket-region")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
