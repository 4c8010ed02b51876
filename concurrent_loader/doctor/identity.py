"""Checks where the credentials come from and when they expire. A finding never contains the credentials."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta

from concurrent_loader.doctor.finding import Finding, Level
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.stores.aws.botocore_chain import chain_credentials
from concurrent_loader.storage.stores.aws.credentials import S3Credentials
from concurrent_loader.storage.stores.options import S3Options

__all__ = ["check_credentials", "check_expiry"]

_SHORT = timedelta(hours=1)


async def check_credentials(
    options: S3Options,
    *,
    url: str,
    deadline_s: float,
    chain: Callable[[str | None], S3Credentials] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Finding:
    """Checks the source and the expiry of the credentials.

    Args:
        options: Options of the store.
        url: URL of the store.
        deadline_s: Deadline in seconds for the AWS credential chain, which may call a metadata service.
        chain: Function that gets the credentials of a profile from the AWS chain; it may block.
        now: Function that returns the current time.

    Cancellation: A running call of the chain continues in its thread.
    """
    if options.anonymous:
        return Finding("credentials", Level.OK, "requests are anonymous, as configured", facts={"source": "anonymous"})
    if options.credentials is not None:
        return Finding("credentials", Level.OK, "from your credentials function", facts={"source": "function"})
    if options.access_key_id is not None:
        if options.session_token is not None:
            return Finding(
                "credentials",
                Level.WARN,
                "temporary keys from the options, which cannot be renewed",
                "use a profile, a role or a credentials function for runs that outlast the keys",
                {"source": "given", "temporary": True},
            )
        return Finding("credentials", Level.OK, "from the options, without expiry", facts={"source": "given"})
    ask = chain or (lambda profile: chain_credentials(profile, url=url))
    try:
        async with asyncio.timeout(deadline_s):
            keys = await _on_a_thread(lambda: ask(options.profile))
    except TimeoutError:
        return Finding(
            "credentials",
            Level.FAIL,
            f"the AWS chain did not answer within {deadline_s:.0f} s",
            "check that the metadata service is reachable: containers need a hop limit of 2, or their own keys",
        )
    except StorageError as error:
        return Finding("credentials", Level.FAIL, error.what, "see the section Credentials in docs/how-to/stores.md")
    return check_expiry(keys.expires_at, now=now())


def check_expiry(expires_at: datetime | None, *, now: datetime) -> Finding:
    """Checks the remaining lifetime of credentials from the AWS chain."""
    if expires_at is None:
        return Finding("credentials", Level.OK, "from the AWS chain, without expiry", facts={"source": "chain"})
    left = expires_at - now
    facts = {"source": "chain", "expires_at": expires_at.isoformat(), "left_s": round(left.total_seconds())}
    if left <= timedelta():
        return Finding(
            "credentials", Level.FAIL, "from the AWS chain, but expired", "log in again, or refresh the role", facts
        )
    minutes = int(left.total_seconds() // 60)
    if left < _SHORT:
        return Finding(
            "credentials",
            Level.OK,
            f"from the AWS chain, valid for {minutes} min; renewed automatically",
            facts=facts,
        )
    return Finding("credentials", Level.OK, f"from the AWS chain, valid for {minutes // 60} h", facts=facts)


async def _on_a_thread(ask: Callable[[], S3Credentials]) -> S3Credentials:
    """Runs the call in a daemon thread, because asyncio's own threads would delay the end of the program."""
    answer: Future[S3Credentials] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            answer.set_exception(error)

    threading.Thread(target=run, name="doctor-credentials", daemon=True).start()
    return await asyncio.wrap_future(answer)
