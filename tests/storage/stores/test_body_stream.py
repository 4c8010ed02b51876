"""What goes wrong while a body is being read is redacted like what goes wrong before it."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import AsyncGenerator

import pytest

from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.redaction import remember
from concurrent_loader.storage.stores.body_stream import OpenRange
from concurrent_loader.storage.stores.objects import ObjectMeta


async def test_an_error_in_the_middle_of_a_body_shows_no_secret(canary) -> None:
    secret = secrets.token_hex(20)
    canary.watch(secret)
    remember(secret)

    async def pieces() -> AsyncGenerator[memoryview, None]:
        yield memoryview(b"01234")
        try:
            try:
                raise ValueError(f"below: {secret}")
            except ValueError as below:
                raise OSError(5, f"reading http://store/key?sig={secret}") from below
        except OSError as cause:
            raise ConnectionFailed("the connection failed", got=f"http://store/key?token={secret}") from cause

    opened = OpenRange(ObjectMeta("key", 100), pieces(), url="s3://bucket", start=10, end=20)
    assert bytes(await anext(opened)) == b"01234"
    with pytest.raises(ConnectionFailed) as caught:
        await anext(opened)
    await opened.aclose()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
    assert secret not in shown
    assert "***" in shown
    assert "OSError: [Errno 5] reading" in shown  # the cause is still told
