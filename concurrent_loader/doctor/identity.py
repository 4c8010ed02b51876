"""Whose keys are used, from where, and until when; the keys themselves are never in a finding."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta

from concurrent_loader.doctor.finding import Finding, Level
from storage.errors import StorageError
from storage.stores.aws_chain import chain_credentials
from storage.stores.credentials import S3Credentials
from storage.stores.options import S3Options

__all__ = ["find_credentials", "judge_expiry"]

_SHORT = timedelta(hours=1)


async def find_credentials(
    options: S3Options,
    *,
    url: str,
    deadline_s: float,
    chain: Callable[[str | None], S3Credentials] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Finding:
    """Says where the keys come from and when they end.

    Args:
        options: Of the store.
        url: Of the store.
        deadline_s: For the chain, which may ask a metadata service.
        chain: Asks the standard AWS chain for a profile's keys; it may block.
        now: The present.

    Cancellation: A question to the chain that is under way goes on in its thread to its own end.
    """
    if options.anonymous:
        return Finding("credentials", Level.OK, "none are sent, as was asked for", facts={"source": "anonymous"})
    if options.credentials is not None:
        return Finding("credentials", Level.OK, "from a function of yours", facts={"source": "function"})
    if options.access_key_id is not None:
        if options.session_token is not None:
            return Finding(
                "credentials",
                Level.WARN,
                "given as temporary keys, which nobody can renew",
                "use a profile, a role or a credentials function for runs longer than the keys' life",
                {"source": "given", "temporary": True},
            )
        return Finding("credentials", Level.OK, "given, without an end", facts={"source": "given"})
    ask = chain or (lambda profile: chain_credentials(profile, url=url))
    try:
        async with asyncio.timeout(deadline_s):
            keys = await _on_a_thread(lambda: ask(options.profile))
    except TimeoutError:
        return Finding(
            "credentials",
            Level.FAIL,
            f"the AWS chain did not answer within {deadline_s:.0f} s",
            "a metadata service out of reach looks like this: containers need a hop limit of 2, or keys of their own",
        )
    except StorageError as error:
        return Finding("credentials", Level.FAIL, error.what, "see docs/stores.md, Credentials")
    return judge_expiry(keys.expires_at, now=now())


def judge_expiry(expires_at: datetime | None, *, now: datetime) -> Finding:
    """Judges keys of the AWS chain by what is left of their life."""
    if expires_at is None:
        return Finding("credentials", Level.OK, "from the AWS chain, without an end", facts={"source": "chain"})
    left = expires_at - now
    facts = {"source": "chain", "expires_at": expires_at.isoformat(), "left_s": round(left.total_seconds())}
    if left <= timedelta():
        return Finding(
            "credentials", Level.FAIL, "from the AWS chain, and expired", "log in again, or refresh the role", facts
        )
    minutes = int(left.total_seconds() // 60)
    if left < _SHORT:
        return Finding(
            "credentials",
            Level.OK,
            f"from the AWS chain, for another {minutes} min; they are renewed before that",
            facts=facts,
        )
    return Finding("credentials", Level.OK, f"from the AWS chain, for another {minutes // 60} h", facts=facts)


async def _on_a_thread(ask: Callable[[], S3Credentials]) -> S3Credentials:
    """Waits for a thread that nobody has to wait for: asyncio's own would hold up the end of the program."""
    answer: Future[S3Credentials] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - the one who waits gets it
            answer.set_exception(error)

    threading.Thread(target=run, name="doctor-credentials", daemon=True).start()
    return await asyncio.wrap_future(answer)
