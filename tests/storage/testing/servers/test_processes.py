import os
import signal
import subprocess
import sys

import pytest

from concurrent_loader.storage.testing import ServerFailed
from concurrent_loader.storage.testing.servers.processes import DetachedProcess, SupervisedProcess, process_birth

pytestmark = pytest.mark.processes

DEADLINE_S = 20.0
FOREVER = [sys.executable, "-I", "-c", "import time; time.sleep(600)"]
ENVIRONMENT = {"PATH": os.defpath}


def test_a_supervised_process_runs_until_stopped(tmp_path, no_leaks):
    process = SupervisedProcess(FOREVER, environment=ENVIRONMENT, log=tmp_path / "log")
    assert not process.wait(0.01)
    process.stop()
    assert process.wait(0)
    process.stop()


def test_it_inherits_nothing_but_what_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "mine")
    code = "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))"
    process = SupervisedProcess([sys.executable, "-I", "-c", code], environment={"GIVEN": "1"}, log=tmp_path / "log")
    assert process.wait(DEADLINE_S)
    process.stop()
    assert process.log_text() == "['GIVEN']"


def test_the_log_keeps_the_end_of_what_was_written(tmp_path):
    code = "print('x' * 100_000); print('the end')"
    process = SupervisedProcess([sys.executable, "-I", "-c", code], environment=ENVIRONMENT, log=tmp_path / "log")
    assert process.wait(DEADLINE_S)
    process.stop()
    assert process.log_text().endswith("the end")
    assert len(process.log_text()) < 10_000


def test_a_program_that_does_not_exist_ends_at_once(tmp_path):
    process = SupervisedProcess([str(tmp_path / "none")], environment=ENVIRONMENT, log=tmp_path / "log")
    assert process.wait(DEADLINE_S)
    process.stop()
    assert "none" in process.log_text()


def test_a_forked_child_does_not_stop_its_parents_server(tmp_path):
    process = SupervisedProcess(FOREVER, environment=ENVIRONMENT, log=tmp_path / "log")
    pid = os.fork()
    if pid == 0:
        process.stop()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert not process.wait(0.01)
    process.stop()


def test_a_detached_process_is_found_again_and_stopped(tmp_path):
    started = DetachedProcess.start(FOREVER, environment=ENVIRONMENT, log=tmp_path / "log")
    found = DetachedProcess(started.pid, started.birth, tmp_path / "log")
    assert found.is_alive()
    assert os.getsid(found.pid) == found.pid or os.getsid(found.pid) != os.getsid(0)
    found.stop()
    assert not found.is_alive()
    assert started.wait(0)


def test_another_process_with_the_same_pid_is_left_alone(tmp_path):
    with subprocess.Popen(FOREVER) as other:
        try:
            impostor = DetachedProcess(other.pid, "another birth", tmp_path / "log")
            assert not impostor.is_alive()
            impostor.stop()
            assert other.poll() is None
        finally:
            other.kill()


def test_a_detached_process_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("concurrent_loader.storage.testing.servers.processes._GRACE_S", 0.1)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    process = DetachedProcess.start([sys.executable, "-I", "-c", code], environment=ENVIRONMENT, log=tmp_path / "log")
    process.stop()
    assert not process.is_alive()


def test_birth_tells_processes_apart():
    with subprocess.Popen(FOREVER) as other:
        try:
            assert process_birth(other.pid) is not None
            assert process_birth(other.pid) == process_birth(other.pid)
        finally:
            other.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert process_birth(other.pid) is None  # a zombie does not run
    assert process_birth(other.pid) is None


def test_a_detached_process_that_never_ends_is_an_error(tmp_path, monkeypatch):
    process = DetachedProcess(os.getpid(), process_birth(os.getpid()), tmp_path / "log")
    monkeypatch.setattr(process, "_send", lambda number: None)
    monkeypatch.setattr("concurrent_loader.storage.testing.servers.processes._GRACE_S", 0.0)
    monkeypatch.setattr("concurrent_loader.storage.testing.servers.processes._SUPERVISOR_MARGIN_S", 0.0)
    with pytest.raises(ServerFailed, match="does not end"):
        process.stop()
