import json
import os
import signal
import stat
import subprocess
import threading

import pytest

from concurrent_loader.storage.errors import ConfigurationError, ConnectionFailed
from concurrent_loader.storage.testing import LocalS3, ServerFailed, running_s3, start_s3, stop_s3
from concurrent_loader.storage.testing.servers.processes import DetachedProcess, process_birth
from concurrent_loader.storage.testing.servers.s3_requests import send
from concurrent_loader.storage.testing.servers.startup import free_port

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state folder of the test's own, and no server left in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield tmp_path / "concurrent-loader" / "s3"
    stop_s3()


@pytest.fixture
def kinds(s3_server: LocalS3):
    return (s3_server.kind,)


def test_start_find_stop(state, kinds, no_leaks):
    assert running_s3() is None
    started, new = start_s3(kinds=kinds)
    assert new
    assert running_s3() == started
    assert started.server.make_bucket("bucket") == "s3://bucket"
    assert stop_s3() == started
    assert running_s3() is None
    assert stop_s3() is None
    with pytest.raises(ConnectionFailed):
        send("GET", started.server.endpoint_url)
    assert started.data_dir == state / "data"
    assert started.data_dir.exists()


def test_the_state_is_for_its_owner_only(state, kinds):
    started, _ = start_s3(kinds=kinds)
    assert stat.S_IMODE((state / "state.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert started.server.secret_access_key not in repr(started)


def test_a_second_start_finds_the_first(kinds, tmp_path):
    first, _ = start_s3(kinds=kinds, data_dir=tmp_path / "data")
    second, new = start_s3(kinds=kinds)
    assert not new
    assert second == first
    with pytest.raises(ConfigurationError, match="another port"):
        start_s3(port=1)
    with pytest.raises(ConfigurationError, match="another folder"):
        start_s3(data_dir=tmp_path / "elsewhere")


def test_starts_at_once_start_one(kinds):
    results = []
    threads = [threading.Thread(target=lambda: results.append(start_s3(kinds=kinds))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(new for _, new in results) == [False, False, True]
    assert len({started.pid for started, _ in results}) == 1


def test_a_server_that_was_killed_is_not_running_and_can_be_started_again(kinds):
    first, _ = start_s3(kinds=kinds)
    process = DetachedProcess(first.pid, _birth(first.log.parent), first.log)
    os.kill(first.pid, signal.SIGKILL)
    assert process.wait(20)
    assert running_s3() is None
    second, new = start_s3(kinds=kinds)
    assert new
    assert second.pid != first.pid


def test_a_stale_pid_that_is_another_process_now_is_left_alone(state, kinds):
    start_s3(kinds=kinds)
    stop_s3()
    _fake_state(state, pid=os.getpid())
    assert running_s3() is None
    assert stop_s3() is None  # and this very process is still here


def test_a_state_of_another_version_is_an_error(state):
    running_s3()
    (state / "state.json").write_text('{"pid": "what?"}')
    with pytest.raises(ConfigurationError, match=r"state\.json"):
        running_s3()
    (state / "state.json").unlink()


@pytest.mark.parametrize("own", ["minio", "moto"])
def test_another_server_at_the_port_is_never_taken_for_ours(state, own, moto_server):
    """moto takes any keys, so its answer proves nothing."""
    taken = int(moto_server.endpoint_url.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"another program listens.*{taken}"):
        start_s3(port=taken, kinds=(own,))
    assert running_s3() is None
    assert not (state / "state.json").exists()


def test_a_start_that_fails_leaves_nothing(state, kinds, s3_server, monkeypatch):
    monkeypatch.setattr(
        "concurrent_loader.storage.testing.servers.startup._is_taken", lambda port: False
    )  # it is, from now on
    taken = int(s3_server.endpoint_url.rpartition(":")[2])
    with pytest.raises(ServerFailed):
        start_s3(port=taken, kinds=kinds)
    assert running_s3() is None
    assert not (state / "state.json").exists()


def test_a_server_that_took_the_place_of_ours_is_not_used(state, s3_server):
    """The process lives, but at its address another MinIO answers, which does not know the keys."""
    if s3_server.kind != "minio":
        pytest.skip("moto knows no keys")
    running_s3()
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            birth = process_birth(other.pid)
            _fake_state(state, pid=other.pid, birth=birth, endpoint_url=s3_server.endpoint_url)
            with pytest.raises(ConfigurationError, match=r"does not accept its keys.*s3 stop"):
                start_s3()
        finally:
            other.kill()


def test_a_port_can_be_chosen(kinds):
    port = free_port()
    started, _ = start_s3(port=port, kinds=kinds)
    assert started.server.endpoint_url == f"http://127.0.0.1:{port}"


def _birth(state) -> str:
    return json.loads((state / "state.json").read_text())["birth"]


def _fake_state(state, **changes: object) -> None:
    fields = {"birth": "long ago", "endpoint_url": "http://127.0.0.1:1", "kind": "minio", "origin": ""}
    fields |= {"access_key_id": "a", "secret_access_key": "b", "data_dir": str(state / "data")}
    (state / "state.json").write_text(json.dumps({**fields, **changes}))
