"""The socket behind `concurrent-loader top`: who can ask, what is told, and what becomes of it."""

from __future__ import annotations

import gc
import json
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.cli.app import app
from concurrent_loader.metrics import live_socket
from concurrent_loader.metrics.live_server import History, LiveServer, answer
from concurrent_loader.metrics.live_socket import ask, ask_all, listen, runtime_folder, sweep
from concurrent_loader.metrics.running import Iterations, Place, RunningIteration
from concurrent_loader.stats.loader_stats import LoaderStats
from concurrent_loader.stats.pipeline_status import PipelineStatus, SlowRequest
from concurrent_loader.stats.wait_attribution import BatchStatus
from concurrent_loader.storage.redaction import remember


class FakeLoader:
    def __init__(self, dataset=None):
        self.dataset, self.rank, self.world_size = dataset, 1, 2
        self.stats = LoaderStats(num_batches=3, num_samples=30, total_s=5.0, wait_s=1.0)


def running(loader, **functions):
    given = {
        "place": lambda: Place(1, 3, 10),
        "status": lambda: PipelineStatus(num_ready=1, max_batches=4, batch=BatchStatus("store", "waits", 2.0, 1)),
        "pending": lambda: ("wait", 2.0),
    }
    return RunningIteration(loader, **{**given, **functions})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(live_socket.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    return tmp_path / "concurrent-loader"


def test_a_running_loader_answers_and_leaves_nothing(folder, url, baseline) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, 50, shuffle=True)
        assert ask_all() == []
        batches = iter(loader)
        next(batches)
        (path,) = folder.glob("*")
        assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, path)] == [0o700, 0o600]
        for target in (None, str(os.getpid()), str(folder)):
            (found,) = ask_all(target)
            assert found["pid"] == os.getpid()
            (told,) = found["loaders"]
            assert (told["epoch"], told["step"], told["num_steps"], told["rank"]) == (0, 1, 5, 0)
            assert told["stats"]["num_samples"] == 50
            assert told["window"]["num_samples"] == 50
            assert told["dataset"] == f"ShardDataset {dataset.url}"
        assert ask_all("1") == []
        result = CliRunner().invoke(app, ["top", "--once", "--json"])
        assert json.loads(result.stdout)["processes"][0]["pid"] == os.getpid()
        assert "position" in CliRunner().invoke(app, ["top", "--once"]).stdout
        assert "samples/s" in loader._repr_html_()
        batches.close()
        assert list(folder.glob("*")) == []
        assert CliRunner().invoke(app, ["top", "--once", str(os.getpid())]).exit_code == 1


@pytest.mark.parametrize("has_length", [True, False])
def test_a_drop_in_is_shown_when_it_takes_longer(folder, monkeypatch, baseline, has_length) -> None:
    monkeypatch.setattr("concurrent_loader.map_style.iterator._SHORT_S", -1.0)
    batches = [[0, 1], [2, 3], [4]]
    loader = ConcurrentDataLoader([5] * 5, batch_sampler=batches if has_length else _WithoutLength(batches))
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    (told,) = ask_all()[0]["loaders"]
    assert (told["step"], told["num_steps"], told["stages"]["max_batches"]) == (2, 3 if has_length else None, 0)
    assert told["window"]["num_samples"] == 2  # the window begins with the first batch
    del iterator
    gc.collect()
    assert ask_all() == []


class _WithoutLength:
    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)


def test_training_goes_on_without_a_folder(folder, dataset, tmp_path) -> None:
    folder.write_text("in the way")
    (tmp_path / "temporary").write_text("in the way")
    assert len(list(ConcurrentDataLoader(dataset, 50))) == 5


def test_a_folder_that_others_can_enter_is_not_used(folder) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    Path(live_socket.tempfile.gettempdir()).mkdir()
    assert runtime_folder().name == f"concurrent-loader-{os.geteuid()}"
    runtime_folder().chmod(0o777)
    with pytest.raises(PermissionError, match="this user alone"):
        runtime_folder()


def test_sockets_of_dead_processes_are_removed(tmp_path) -> None:
    for name in ("1-dead.sock", "2-dead.new", "3-being-made.new"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / name))
    os.utime(tmp_path / "2-dead.new", (0, 0))
    (tmp_path / "file.sock").touch()
    living, path = listen(tmp_path)
    with living:
        assert ask(tmp_path / "1-dead.sock") is None
        sweep(tmp_path)
        assert {each.name for each in tmp_path.iterdir()} == {path.name, "file.sock", "3-being-made.new"}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_path_longer_than_an_address(tmp_path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    listening, path = listen(folder)

    def reply() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b'{"version": 1, "loaders": []}')

    thread = threading.Thread(target=reply, daemon=True)
    thread.start()
    assert ask(path) == {"version": 1, "loaders": []}
    thread.join(10)
    listening.close()


def test_what_is_no_answer_is_left_out(tmp_path) -> None:
    listening, path = listen(tmp_path)
    told = {"version": 1, "loaders": [{"rank": 0}], "pid": 1}

    def serve() -> None:
        for reply in (b"not json", b"[]", b'{"version": 2, "loaders": []}', json.dumps(told).encode()):
            connection, _ = listening.accept()
            with connection:
                connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listening:
        assert [ask(path) for _ in range(3)] == [None] * 3
        assert ask_all(str(tmp_path)) == [told]
        thread.join(10)


def test_no_secret_is_told() -> None:
    secret = "a-very-secret-key"
    remember(secret)

    class Dataset:
        url = f"https://user:password@host/data?X-Amz-Signature={'f' * 64}"

    loader = FakeLoader(Dataset())
    status = PipelineStatus(
        slow=(SlowRequest(f"a/{secret}\x1b[2J", 2.0),), batch=BatchStatus("store", f"waits for {secret}", 1.0, 1)
    )
    iteration = running(loader, status=lambda: status)
    told = json.dumps(answer({iteration: History(iteration)}))
    assert not any(each in told for each in (secret, "password", "f" * 64, "\x1b", "\\u001b"))
    assert "host/data" in told


def test_the_window_is_the_last_thirty_seconds() -> None:
    loader, now = FakeLoader(), [100.0]
    iteration = running(loader, pending=lambda: ("consumer", 0.5))
    history = History(iteration, lambda: now[0])
    for second in range(2, 41, 2):
        now[0], loader.stats = 100.0 + second, LoaderStats(num_samples=30 + second, total_s=5.0 + second, wait_s=1.0)
        history.note()
    window = history.window()
    assert window["seconds"] == 30
    assert window["num_samples"] == 30
    assert window["total_s"] == pytest.approx(30)
    assert len(history._notes) < 20


def test_a_wait_that_lasts_is_shown_with_its_cause() -> None:
    seconds = [0.0]
    loader = FakeLoader()
    iteration = running(loader, pending=lambda: ("wait", seconds[0]))
    history = History(iteration)
    seconds[0] = 7.0
    window = history.window()
    assert (window["wait_store_s"], window["wait_s"], window["total_s"]) == (7.0, 7.0, 7.0)


def test_one_socket_for_all_iterations_until_the_last_ends(tmp_path, baseline) -> None:
    known = Iterations()
    LiveServer(known, tmp_path)
    loader = FakeLoader()
    first, second = known.begin(running(loader)), known.begin(running(loader))
    (found,) = ask_all(str(tmp_path))
    assert len(found["loaders"]) == 2
    assert known.of(loader) is second
    known.end(first)
    known.end(first)
    assert len(ask_all(str(tmp_path))[0]["loaders"]) == 1
    known.end(second)
    assert list(tmp_path.iterdir()) == []


def test_a_fork_leaves_the_socket_to_its_parent(tmp_path) -> None:
    known = Iterations()
    server = LiveServer(known, tmp_path)
    iteration = known.begin(running(loader := FakeLoader()))
    if (child := os.fork()) == 0:
        is_clean = server._socket is None and known.of(loader) is None and known.running() == []
        os._exit(0 if is_clean else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(ask_all(str(tmp_path))) == 1
    known.end(iteration)
