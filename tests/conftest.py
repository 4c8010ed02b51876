"""Servers and checks that many tests share; what they need is made once a session, by the first that asks."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import multiprocessing
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from concurrent_loader.storage.testing import LocalS3, ToolUnavailable, local_s3
from concurrent_loader.storage.testing import no_leaks as leaving_nothing
from concurrent_loader.storage.testing.checks.secret_leaks import Canary, canary, pytest_runtest_makereport
from concurrent_loader.storage.testing.servers.build_tools import MINIO, TOXIPROXY, find_tool

__all__ = ["canary", "pytest_runtest_makereport"]  # pytest finds both here

IN_CI = os.environ.get("CI") == "true"

# A test with one of these markers is not in the fast tier, and neither is a test that uses a server of this file.
SLOWER = ("s3", "processes", "slow", "long", "gpu")
SERVERS = {"s3_server", "moto_server", "toxiproxy_program"}

# What takes more than a quarter of a second of CPU time on a quiet machine is marked `slow`. The limit is eight times
# that, because processors that are shared with other machines stretch CPU time, too. Time on the clock grows with the
# load, and its limit with it: it only finds tests that sleep.
FAST_CPU_S = 2.0
FAST_CLOCK_S = 10.0


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket: its name, its ``s3://`` URL, and the options that open it."""

    name: str
    url: str
    storage_options: dict[str, str]


def pytest_configure(config: pytest.Config) -> None:
    """Says how many examples of a property are tried.

    ``settings.get_profile("thorough")`` is for properties of which an example takes little time.
    """
    fast = config.getoption("--hypothesis-profile") == "fast"
    # No deadline for single examples: on a busy machine it would measure other processes.
    settings.register_profile("whole", deadline=None)
    settings.register_profile("fast", deadline=None, max_examples=10)
    settings.register_profile("thorough", deadline=None, max_examples=20 if fast else 300)
    settings.load_profile("fast" if fast else "whole")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the fast tests, and gives the others the server that forks worker processes."""
    for item in items:
        names: list[str] = getattr(item, "fixturenames", [])
        if SERVERS.intersection(names):
            item.add_marker("s3")
        if not any(item.get_closest_marker(marker) for marker in SLOWER):
            item.add_marker("fast")
        elif "_fork_server" not in names:  # parametrized tests share one list
            names.insert(0, "_fork_server")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keeps a fast test from starting processes; a bare `os.fork`, which takes milliseconds, is allowed."""
    if item.get_closest_marker("fast") is None:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseProcess, "start", _refuse_process)
        patch.setattr(subprocess.Popen, "__init__", _refuse_process)
        return (yield)


def _refuse_process(*_: object, **__: object) -> None:
    raise RuntimeError("a test that starts a process needs the marker 'processes'")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a fast test that takes too long; in CI only, where nobody steps through it.

    With Hypothesis's many examples a fast test may take longer: `make test-fast` runs few of them.
    """
    few = item.config.getoption("--hypothesis-profile") == "fast" or not item.get_closest_marker("hypothesis")
    began_cpu_s, began_s = time.process_time(), time.monotonic()
    result = yield
    cpu_s, clock_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
    clock_limit_s = FAST_CLOCK_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    if IN_CI and few and item.get_closest_marker("fast") and (cpu_s > FAST_CPU_S or clock_s > clock_limit_s):
        pytest.fail(f"a fast test took {cpu_s:.1f} s of CPU time in {clock_s:.1f} s: shorten it, or mark it 'slow'")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Freezes what a module's tests leave, such as imported modules, so that tests that collect garbage stay quick."""
    result = yield
    if getattr(item, "module", None) is not getattr(nextitem, "module", None):
        gc.collect()
        gc.freeze()
    return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the programs that the collected tests need now: later it would be on the clock of the first of them."""
    needed = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if any(item.get_closest_marker("s3") for item in session.items):  # some ask for the server while they run
        needed.add("s3_server")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for fixture, tool in (("s3_server", MINIO), ("toxiproxy_program", TOXIPROXY)):
        if fixture in needed and not session.config.option.collectonly:
            with suppress(ToolUnavailable):  # the fixture will tell, and knows what follows
                find_tool(tool, progress=reporter.write_line if reporter else None)
    # Many tests collect garbage. The modules and the thousands of tests, all of which stay, need no second look.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # native modules look for their objects when Python ends


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Escapes what is not UTF-8 in logs and messages: pytest-xdist cannot send it from process to process."""
    return _escaped((yield))


def _escaped(value: object) -> object:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {key: _escaped(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(_escaped, value))
        case _:
            return value


@pytest.fixture(scope="session")
def _fork_server() -> None:
    """Starts the server that forks worker processes, with the package that is tested.

    By itself it would prefer the folder that the tests run in, where the package is as well, without native modules.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["concurrent_loader.workers.worker_main"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONSAFEPATH", "1")
        forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Has programs that tests start heed Ctrl-C: a shell's background job ignores it, and so would its children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the sockets of running loaders out of the user's folder, and out of temporary folders that tests count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_aws() -> Iterator[None]:
    """Keeps the suite off the developer's clouds: no credentials, endpoints, profiles or metadata servers of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@pytest.fixture(scope="session")
def s3_server(_own_aws: None, canary: Canary) -> Iterator[LocalS3]:
    """A local S3 server: MinIO; in CI nothing else will do, elsewhere moto is better than none."""
    with local_s3(kinds=("minio",) if IN_CI else ("minio", "moto")) as server:
        canary.watch(server.secret_access_key)
        yield server


@pytest.fixture(scope="session")
def moto_server(_own_aws: None, canary: Canary) -> Iterator[LocalS3]:
    """The other implementation of S3, where two opinions are wanted."""
    with local_s3(kinds=("moto",)) as server:
        canary.watch(server.secret_access_key)
        yield server


@pytest.fixture(scope="session")
def toxiproxy_program() -> Path:
    """The proxy that stands for the network between; its absence is a failure in CI only."""
    try:
        return find_tool(TOXIPROXY)
    except ToolUnavailable as error:
        if IN_CI:
            raise
        pytest.skip(str(error))


@pytest.fixture
def s3_bucket(s3_server: LocalS3) -> Bucket:
    """A bucket of the test's own."""
    return _fresh_bucket(s3_server)


@pytest.fixture
def moto_bucket(moto_server: LocalS3) -> Bucket:
    """The same at moto."""
    return _fresh_bucket(moto_server)


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves threads, descriptors or pending tasks behind."""
    with leaving_nothing():
        yield
    gc.freeze()  # again; garbage is gone by now


def _fresh_bucket(server: LocalS3) -> Bucket:
    name = f"test-{secrets.token_hex(8)}"
    return Bucket(name, server.make_bucket(name), server.storage_options())


@pytest.fixture
def one_ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lets the test processes start one cluster at a time: each has ten processes, which give up if they start late."""
    with (tmp_path_factory.getbasetemp().parent / "ray.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def media() -> Any:
    """The functions of media_files.py, which make small audio and video files once per session."""
    spec = importlib.util.spec_from_file_location("media_files", Path(__file__).with_name("media_files.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
