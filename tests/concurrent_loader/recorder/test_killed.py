from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from concurrent_loader.recorder import prove
from concurrent_loader.storage import ShardWriter

PROGRAM = Path(__file__).with_name("killed_program.py")


@pytest.mark.processes
def test_a_run_that_is_killed_three_times_is_proven(tmp_path: Path) -> None:
    url, run, state = (str(tmp_path / name) for name in ("data", "run", "state.json"))
    with ShardWriter(url, columns={"label": "int64", "data": "bytes"}, shard_size="4KiB") as writer:
        for number in range(61):
            writer.write({"label": number, "data": bytes(300)})
    delivered = 0
    for num_batches in (7, 4, None):
        command = [sys.executable, str(PROGRAM), url, run, state]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                delivered += 1
                if num_batches is not None and line.split()[1] == str(num_batches):
                    process.kill()  # SIGKILL; a later batch may be on its way
                    break
        assert num_batches is None or process.returncode == -9
    proof = prove(run)
    assert proof.problems == []
    assert [(each.epoch, each.finished, each.num_distinct) for each in proof.epochs][:2] == [
        (0, True, 61),
        (1, True, 61),
    ]
    assert proof.num_steps >= delivered
    assert proof.num_superseded >= 4
