from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.harness import run_program

pytestmark = pytest.mark.processes


async def test_output_and_status_are_kept(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd()); print('wrong', file=sys.stderr); sys.exit(3)"
    ended = await run_program(["-c", code], folder=tmp_path, timeout_s=60)
    assert ended.status == 3
    assert ended.said.splitlines() == [".", "wrong"]  # folders of this machine are nobody's business


async def test_a_module_of_the_tree_is_found_from_anywhere(tmp_path: Path) -> None:
    ended = await run_program(["-c", "import benchmarks.fresh_process"], folder=tmp_path, timeout_s=60)
    assert (ended.status, ended.said) == (0, "")


async def test_what_is_late_is_stopped(tmp_path: Path) -> None:
    ended = await run_program(["-c", "import time; time.sleep(600)"], folder=tmp_path, timeout_s=0.5)
    assert ended.status is None


async def test_it_ends_when_nobody_waits_any_more(tmp_path: Path) -> None:
    began = tmp_path / "began"
    code = f"""
import pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path({str(tmp_path / "ended")!r}).touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path({str(began)!r}).touch()
time.sleep(600)
"""
    waiting = asyncio.create_task(run_program(["-c", code], folder=tmp_path, timeout_s=600))
    async with asyncio.timeout(60):
        while not began.exists():
            await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert (tmp_path / "ended").exists()
