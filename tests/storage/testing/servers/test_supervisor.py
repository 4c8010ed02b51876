"""The promise under test: when whoever started a server is gone, the server is gone, however that came about."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from concurrent_loader.storage.testing.servers import supervisor

SUPERVISOR = supervisor.__file__
DEADLINE_S = 20.0

# A server that says its pid and its children's when it stands, and lives for ever.
SERVER = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVER

# A parent that starts a supervisor and waits for ever; with a forked child that holds its pipe open, if asked.
PARENT = """
import os, subprocess, sys, time
command, forks = sys.argv[1], sys.argv[2] == "fork"
settings = command.replace('"PARENT"', str(os.getpid()))
process = subprocess.Popen([sys.executable, "-I", "-S", {supervisor!r}, settings], stdin=subprocess.PIPE)
if forks and os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    """What a server is given: gone afterwards. The log is a named pipe beside it, so that tests can wait."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "object").write_bytes(b"x")
    os.mkfifo(tmp_path / "log")
    return tmp_path


def settings(folder: Path, code: str = SERVER, *, parent: object = "PARENT", grace_s: float = 10.0) -> str:
    return json.dumps(
        {
            "command": [sys.executable, "-I", "-c", code],
            "log": str(folder / "log"),
            "remove": str(folder / "data"),
            "parent": parent,
            "grace_s": grace_s,
        }
    )


def supervise(folder: Path, code: str = SERVER, *, grace_s: float = 10.0) -> subprocess.Popen[bytes]:
    said = settings(folder, code, parent=os.getpid(), grace_s=grace_s)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", SUPERVISOR, said], stdin=subprocess.PIPE, start_new_session=True
    )


def pids_of_server(folder: Path) -> list[int]:
    with (folder / "log").open() as log:
        return [int(word) for word in log.readline().split()]


class Watched:
    """Processes that are not our children, and their ends."""

    def __init__(self, pids: list[int]) -> None:
        self.descriptors = [os.pidfd_open(pid) for pid in pids]

    def all_end(self) -> bool:
        for descriptor in self.descriptors:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(DEADLINE_S * 1000):
                return False
        return True

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def watch():
    watched = []

    def start(pids: list[int]) -> Watched:
        watched.append(Watched(pids))
        return watched[-1]

    yield start
    for one in watched:
        one.close()


pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds to wait on"),
]


@pytest.mark.parametrize("forks", ["plain", "fork"])
def test_a_killed_parent_takes_the_server_along(folder, watch, forks):
    code = PARENT.format(supervisor=SUPERVISOR)
    with subprocess.Popen(
        [sys.executable, "-c", code, settings(folder), forks], stdout=subprocess.PIPE, text=True
    ) as parent:
        server = watch(pids_of_server(folder))
        forked = int(parent.stdout.readline()) if forks == "fork" else None
        try:
            parent.kill()
            assert server.all_end()
        finally:
            if forked is not None:
                os.kill(forked, signal.SIGKILL)


def test_the_folder_goes_with_a_killed_parent(folder):
    code = PARENT.format(supervisor=SUPERVISOR)
    # Our own copy of the write end shows when the supervisor, which holds another, has ended.
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", code, settings(folder), "plain"], stderr=writing) as parent:
        os.close(writing)
        assert pids_of_server(folder)
        parent.kill()
    assert select.select([reading], [], [], DEADLINE_S)[0]  # the end of the pipe: nobody writes to it any more
    os.close(reading)
    assert not (folder / "data").exists()


def test_a_byte_ends_server_children_and_folder(folder, watch):
    with supervise(folder) as process:
        server = watch(pids_of_server(folder))
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert server.all_end()
        assert not (folder / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server(folder, watch, number):
    with supervise(folder) as process:
        server = watch(pids_of_server(folder))
        process.send_signal(number)
        process.wait(DEADLINE_S)
        assert server.all_end()


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace(folder, watch):
    with supervise(folder, STUBBORN, grace_s=0.1) as process:
        server = watch(pids_of_server(folder))
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 128 + signal.SIGKILL
        assert server.all_end()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_killed_supervisor_takes_the_server_along(folder, watch):
    with supervise(folder, "import os, time; print(os.getpid(), flush=True); time.sleep(600)") as process:
        server = watch(pids_of_server(folder))
        process.kill()
        assert server.all_end()


def test_a_server_that_ends_by_itself_ends_the_supervisor_and_keeps_the_log(folder):
    with supervise(folder, "print('gone', flush=True); raise SystemExit(7)") as process:
        assert (folder / "log").read_text() == "gone\n"
        assert process.wait(DEADLINE_S) == 7
        assert (folder / "data").exists()


def test_a_parent_that_is_gone_already_starts_nothing(folder):
    done = subprocess.run(
        [sys.executable, "-I", "-S", SUPERVISOR, settings(folder, parent=2**22 + 1)],
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1


def test_the_server_has_a_session_of_its_own(folder):
    code = "import os; print(os.getsid(0), os.getpid(), os.getpgid(0), flush=True)"
    with supervise(folder, code) as process:
        session, pid, group = pids_of_server(folder)
        process.wait(DEADLINE_S)
    assert session == pid == group != os.getsid(0)
