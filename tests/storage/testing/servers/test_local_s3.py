import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.credentials import Credentials

import concurrent_loader
from concurrent_loader.storage.errors import ConfigurationError, ConnectionFailed
from concurrent_loader.storage.testing import LocalS3, ServerFailed, ToolUnavailable, local_s3
from concurrent_loader.storage.testing.servers import programs, startup
from concurrent_loader.storage.testing.servers.processes import SupervisedProcess
from concurrent_loader.storage.testing.servers.programs import ServerProgram
from concurrent_loader.storage.testing.servers.s3_requests import list_buckets, send
from concurrent_loader.storage.testing.servers.startup import free_port, start_server

DEADLINE_S = 20.0
CREDENTIALS = Credentials("somebody", "something")

pytestmark = pytest.mark.s3


def test_in_ci_the_server_is_minio(s3_server):
    if os.environ.get("CI") != "true":
        pytest.skip("elsewhere moto is better than none")
    assert s3_server.kind == "minio"
    assert send("GET", f"{s3_server.endpoint_url}/minio/health/ready").status == 200


def test_the_server_and_its_folder_are_gone_after_the_block(tmp_path, monkeypatch, s3_server, no_leaks):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with local_s3(kinds=(s3_server.kind,)) as server:
        assert server.endpoint_url != s3_server.endpoint_url
        assert server.make_bucket("bucket") == "s3://bucket"
        assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o700]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionFailed):
        send("GET", server.endpoint_url)


def test_credentials_are_random_and_no_part_of_the_repr(s3_server, moto_server):
    assert s3_server.secret_access_key not in repr(s3_server)
    assert s3_server.secret_access_key != moto_server.secret_access_key
    assert s3_server.access_key_id != moto_server.access_key_id


def test_it_listens_on_the_loopback_only(s3_server):
    port = int(s3_server.endpoint_url.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; tells this machine's own address
        except OSError:
            pytest.skip("no network but the loopback")
        address = probe.getsockname()[0]
    with pytest.raises(OSError, match=r"[Rr]efused|timed out"):
        socket.create_connection((address, port), timeout=2)


def test_data_dir_is_kept_and_served_again(tmp_path, s3_server):
    if s3_server.kind != "minio":
        pytest.skip("moto keeps its objects in memory")
    for _ in range(2):
        with local_s3(kinds=("minio",), data_dir=tmp_path / "deep" / "data") as server:
            server.make_bucket("kept")
            found = list_buckets(
                server.endpoint_url, Credentials(server.access_key_id, server.secret_access_key), region=server.region
            )
            assert b"<Name>kept</Name>" in found.body
    assert (tmp_path / "deep" / "data" / "kept").is_dir()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds to wait on")
def test_a_killed_user_leaves_no_server_and_no_folder(tmp_path, s3_server):
    code = (
        "import tempfile, time; from concurrent_loader.storage.testing import local_s3\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        f"with local_s3(kinds=({s3_server.kind!r},)) as server: print(server.endpoint_url, flush=True); time.sleep(600)"
    )
    search = os.pathsep.join(path for path in [str(Path(concurrent_loader.__file__).parents[1])] if path)
    reading, writing = os.pipe()  # the supervisor holds the other end as its standard error, until it ends
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=writing,
        env={**os.environ, "PYTHONPATH": search},
        text=True,
    ) as user:
        os.close(writing)
        endpoint_url = user.stdout.readline().strip()
        assert send("GET", endpoint_url).status in (200, 403)
        user.send_signal(signal.SIGKILL)
    assert select.select([reading], [], [], DEADLINE_S)[0]
    os.close(reading)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionFailed):
        send("GET", endpoint_url)


# -- a server that the user names --------------------------------------------------------------------------------------


def test_a_named_endpoint_is_used_and_left_alone(s3_server):
    with local_s3(endpoint_url=f"{s3_server.endpoint_url}/", access_key_id="key", secret_access_key="secret") as server:
        assert server == LocalS3(s3_server.endpoint_url, "external", "key", "secret", origin=server.origin)
    assert send("GET", s3_server.endpoint_url).status in (200, 403)


def test_the_standard_variables_name_one(s3_server, monkeypatch):
    for name, value in {**s3_server.environment(), "AWS_SESSION_TOKEN": "token", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    with local_s3() as server:
        assert server.kind == "external"
        assert server.storage_options() == {
            **s3_server.storage_options(),
            "region": "eu-west-1",
            "session_token": "token",
        }
        assert server.environment()["AWS_SESSION_TOKEN"] == "token"
    with local_s3(kinds=("moto",)) as server:
        assert server.kind == "moto"


def test_given_credentials_are_not_mixed_with_those_of_the_environment(s3_server, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-another")
    with local_s3(endpoint_url=s3_server.endpoint_url, access_key_id="key", secret_access_key="secret") as server:
        assert server.session_token is None
    with (
        pytest.raises(ConfigurationError, match="secret_access_key"),
        local_s3(endpoint_url=s3_server.endpoint_url, access_key_id="key"),
    ):
        pass


def test_a_named_endpoint_without_credentials_is_an_error_before_anything_is_sent():
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"), local_s3(endpoint_url="http://127.0.0.1:1"):
        pass


def test_credentials_in_the_endpoint_are_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:pass-word@127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="must not hold credentials") as caught, local_s3():
        pass
    assert "pass-word" not in str(caught.value)


def test_an_endpoint_variable_without_credentials_is_meant_for_something_else(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with local_s3(kinds=("external", "moto")) as server:
        assert server.kind == "moto"


def test_a_named_endpoint_that_does_not_answer_is_an_error():
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(ConnectionFailed, match=url),
        local_s3(endpoint_url=url, access_key_id="a", secret_access_key="b"),
    ):
        pass


# -- what can be started -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_minio(monkeypatch):
    def unavailable(*arguments, **options):
        raise ToolUnavailable("no minio, no go")

    monkeypatch.setattr(programs, "find_tool", unavailable)
    monkeypatch.setattr(programs, "_docker_answers", lambda: False)


def test_moto_is_the_last_resort_with_one_line_of_warning(no_minio, caplog):
    with local_s3() as server:
        assert server.kind == "moto"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "no minio, no go" in record.message
    assert "\n" not in record.message


def test_moto_that_was_asked_for_is_no_warning(caplog, moto_server):
    assert moto_server.kind == "moto"
    assert caplog.records == []


def test_nothing_at_all_says_what_was_tried(no_minio, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolUnavailable, match=r"no minio, no go.*docker.*pip install"), local_s3():
        pass
    assert list(tmp_path.iterdir()) == []


def test_docker_is_asked_for_the_pinned_image_and_keeps_secrets_off_its_command_line(no_minio, monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_docker_answers", lambda: True)
    monkeypatch.setattr(programs, "_has_image", lambda: True)
    program = programs.find_program(
        ("minio",),
        data_dir=tmp_path,
        home=tmp_path,
        access_key_id="key",
        secret_access_key="secret-1",
        build=False,
        progress=None,
    )
    command = program.command(1234)
    assert program.kind == "minio"
    assert "127.0.0.1:1234:9000" in command
    assert program.origin in command
    assert "secret-1" not in " ".join(command)
    assert program.environment["MINIO_ROOT_PASSWORD"] == "secret-1"
    assert command[command.index("MINIO_ROOT_PASSWORD") - 1] == "--env"


# -- starting it -------------------------------------------------------------------------------------------------------


def start(program: ServerProgram, folder: Path, **options: object) -> tuple[SupervisedProcess, str]:
    def spawn(command: list[str], environment: dict[str, str]) -> SupervisedProcess:
        return SupervisedProcess(command, environment=environment, log=folder / "log")

    return start_server(program, spawn, CREDENTIALS, region="us-east-1", **options)


def python(code: str) -> ServerProgram:
    return ServerProgram("minio", "here", lambda port: [sys.executable, "-I", "-c", code, str(port)], {})


def test_a_server_that_ends_tells_its_last_words(tmp_path, no_leaks):
    with pytest.raises(ServerFailed, match="out of cheese"):
        start(python("raise SystemExit('out of cheese')"), tmp_path)


def test_a_server_that_does_not_answer_meets_the_deadline_and_is_stopped(tmp_path, no_leaks):
    with pytest.raises(ServerFailed, match=r"did not respond within 0 s: still thinking"):
        start(python("import time; print('still thinking', flush=True); time.sleep(600)"), tmp_path, deadline_s=0.4)


def test_a_port_that_was_taken_meanwhile_is_tried_no_more(tmp_path, monkeypatch, s3_server):
    if s3_server.kind != "minio":
        pytest.skip("moto is asked for any port")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(startup, "free_port", lambda: next(ports))
        with local_s3(kinds=("minio",)) as server:
            assert not server.endpoint_url.endswith(f":{taken.getsockname()[1]}")


def test_another_server_on_the_port_is_not_taken_for_ours(monkeypatch, s3_server):
    if s3_server.kind != "minio":
        pytest.skip("moto believes everybody")
    ports = iter([int(s3_server.endpoint_url.rpartition(":")[2]), free_port()])
    monkeypatch.setattr(startup, "free_port", lambda: next(ports))
    with local_s3(kinds=("minio",)) as server:
        assert server.endpoint_url != s3_server.endpoint_url


def test_a_port_that_was_asked_for_is_not_replaced(tmp_path):
    with pytest.raises(ServerFailed, match="already in use"):
        start(python("raise SystemExit('address already in use')"), tmp_path, port=4711)
