from __future__ import annotations

import asyncio
import time

import pytest

from concurrent_loader.storage.virtual_time import run_in_virtual_time


def test_a_month_passes_in_no_time() -> None:
    async def main() -> tuple[float, list[str]]:
        seen: list[str] = []

        async def say(word: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append(word)

        async with asyncio.TaskGroup() as group:
            group.create_task(say("month", 30 * 86400.0))
            group.create_task(say("second", 1.0))
        return asyncio.get_running_loop().time(), seen

    began_s = time.monotonic()
    now_s, seen = run_in_virtual_time(main())
    assert seen == ["second", "month"]
    assert now_s == pytest.approx(30 * 86400.0)
    assert time.monotonic() - began_s < 60


def test_timeouts_follow_it() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == pytest.approx(1000)
