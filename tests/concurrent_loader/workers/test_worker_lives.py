"""Workers end whatever becomes of the process that they work for; each test has one of its own."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from concurrent_loader.storage import ShardWriter
from concurrent_loader.workers import fork_server

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent
TIMEOUT_S = 60
NO_GUARD = """
from concurrent_loader import ConcurrentDataLoader, ShardDataset
for batch in ConcurrentDataLoader(ShardDataset({url!r}), 16, num_workers=1):
    print("a batch")
"""
BROKEN = """
import sys
import numpy  # the real one
from concurrent_loader import ConcurrentDataLoader, LoaderError, ShardDataset
if __name__ == "__main__":
    sys.path[:0] = sys.argv[2:]
    dataset = ShardDataset(sys.argv[1])
    try:
        print(sum(len(batch["label"]) for batch in ConcurrentDataLoader(dataset, 16, num_workers=1)))
    except LoaderError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("lives") / "dataset")
    with ShardWriter(folder, columns={"data": "bytes", "label": "int64"}, shard_size="6KiB") as writer:
        for number in range(203):
            writer.write({"data": bytes(400), "label": number})
    return folder


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short path: a Unix socket in it may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lives-", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def started(temporary: Path, *arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Starts a program in a session of its own, whose temporary files are in ``temporary``."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", *arguments],
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            assert process.returncode is not None
        process.communicate()


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Waits until the workers are at work, and opens their processes."""
    assert process.stdout is not None
    word, *pids = process.stdout.readline().split()
    assert (word, len(pids)) == ("ready", 2)
    return [os.pidfd_open(int(pid)) for pid in pids]


def all_end(workers: list[int]) -> bool:
    ended = [bool(select.select([worker], [], [], TIMEOUT_S)[0]) for worker in workers]
    for worker in workers:
        os.close(worker)
    return all(ended)


@pytest.mark.parametrize(
    ("scenario", "method"),
    [("killed", "spawn"), ("killed", "forkserver"), ("fork", "forkserver"), ("stuck", "forkserver")],
)
def test_workers_end_when_their_parent_is_killed(temporary: Path, url: str, scenario: str, method: str) -> None:
    """Also when a child that it has forked holds copies of all its descriptors, or when a transform never returns."""
    with started(temporary, str(HERE / "workers_program.py"), scenario, url, method) as process:
        workers = workers_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        assert len(list(temporary.glob("concurrent-loader-workers-*"))) == 1
        process.kill()
        assert all_end(workers)
        assert list(temporary.glob("concurrent-loader-workers-*")) == []


def test_ctrl_c_while_the_loader_waits(temporary: Path, url: str) -> None:
    """Ctrl-C goes to all processes at once, and only the one that the user sees says something about it."""
    with started(temporary, str(HERE / "workers_program.py"), "interrupt", url, "forkserver") as process:
        workers = workers_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert all_end(workers)
        assert (process.returncode, out.replace("at work\n", ""), err) == (0, "interrupted\n", "")
        assert list(temporary.glob("concurrent-loader-workers-*")) == []


def test_a_program_may_end_with_idle_workers(temporary: Path, url: str) -> None:
    with started(temporary, str(HERE / "workers_program.py"), "exit", url, "forkserver") as process:
        workers = workers_of(process)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert all_end(workers)
        assert (process.returncode, out, err) == (0, "", "")
        assert list(temporary.glob("concurrent-loader-workers-*")) == []


def test_a_script_without_a_guard_is_told_so(tmp_path: Path, temporary: Path, url: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(NO_GUARD.format(url=url))
    with started(temporary, str(script)) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out) == (1, "")
        # From 3.14 on, the fork server itself imports the script, and ends before it has forked a worker.
        error = "LoaderError" if sys.version_info >= (3, 14) else "WorkerDied"
        assert err.splitlines()[-1].startswith(f"concurrent_loader.errors.{error}: ")
        assert "if __name__ == '__main__'" in err.splitlines()[-1]


def test_a_server_that_imports_a_script_without_a_guard_names_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()\n")
    monkeypatch.setattr(fork_server.spawn, "get_preparation_data", lambda _name: {"init_main_from_path": str(script)})
    assert fork_server._cause().endswith(fork_server.NO_GUARD)


@pytest.mark.parametrize("seen", [False, True], ids=["in the working directory", "on the search path"])
def test_a_file_that_is_named_like_a_library(tmp_path: Path, temporary: Path, url: str, seen: bool) -> None:
    """In the working directory of the fork server it does no harm; where the program would find it, it is named."""
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(BROKEN)
    shadow = tmp_path / "elsewhere" / "numpy.py"
    shadow.parent.mkdir()
    shadow.write_text("raise ValueError('I am not numpy')\n")
    with started(temporary, str(script), url, *([str(shadow.parent)] if seen else []), cwd=shadow.parent) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    if seen:
        assert out.startswith("LoaderError")
        assert "ValueError: I am not numpy" in out
        assert str(shadow) in out
    else:
        assert (out, err) == ("203\n", "")
