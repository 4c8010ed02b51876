import socket
import time

import pytest

from concurrent_loader.storage.errors import ConfigurationError, ConnectionFailed
from concurrent_loader.storage.testing import ToolUnavailable, local_s3, measure_latency, toxiproxy
from concurrent_loader.storage.testing import toxiproxy as make_proxy
from concurrent_loader.storage.testing.servers.build_tools import TOXIPROXY
from concurrent_loader.storage.testing.servers.s3_requests import send

pytestmark = pytest.mark.s3

LATENCY_MS = 30


@pytest.fixture
def upstream(s3_server, toxiproxy_program):
    """The shared server, where there is a proxy to put before it."""
    return s3_server


@pytest.fixture
def proxy(upstream):
    with make_proxy(upstream, latency_ms=0, bandwidth_mb_s=None) as proxy:
        yield proxy


def test_latency_is_applied_and_can_be_measured(upstream):
    direct_ms = measure_latency(upstream.endpoint_url)
    with toxiproxy(upstream, latency_ms=LATENCY_MS) as proxy:
        # Toxiproxy's clock and ours may differ by a millisecond; what a loaded machine adds has no bound.
        assert measure_latency(proxy.endpoint_url, num_requests=5) > LATENCY_MS - 2
        assert direct_ms < LATENCY_MS
        assert proxy.toxics() == ["bandwidth", "latency"]


def test_signed_requests_pass_through(upstream, proxy):
    through = upstream.through(proxy)
    assert through.endpoint_url == proxy.endpoint_url != upstream.endpoint_url
    assert through.make_bucket("through-the-proxy") == "s3://through-the-proxy"
    assert proxy.toxics() == []


def test_bandwidth_is_limited(toxiproxy_program):
    num_bytes = 600_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with toxiproxy(url, latency_ms=0, bandwidth_mb_s=2) as proxy:
            host, port = proxy.endpoint_url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as client:
                sender, _ = server.accept()
                with sender:
                    sender.sendall(b"x" * num_bytes)
                begun = time.monotonic()
                got = 0
                while part := client.recv(1 << 16):
                    got += len(part)
                took_s = time.monotonic() - begun
    assert got == num_bytes
    assert took_s > 0.8 * num_bytes / 2e6


def test_toxics_come_and_go_at_run_time(proxy):
    proxy.add_toxic("slow", "latency", latency=LATENCY_MS)
    assert proxy.toxics() == ["slow"]
    assert measure_latency(proxy.endpoint_url, num_requests=3) > LATENCY_MS - 2
    proxy.remove_toxic("slow")
    assert proxy.toxics() == []
    proxy.add_toxic("cut", "limit_data", bytes=10)
    with pytest.raises(ConnectionFailed):
        send("GET", proxy.endpoint_url)
    proxy.remove_toxic("cut")
    assert send("GET", proxy.endpoint_url).status in (200, 403)


def test_toxicity_and_stream_are_passed_on(proxy):
    proxy.add_toxic("never", "reset_peer", toxicity=0.0, timeout=0)
    proxy.add_toxic("request", "latency", stream="upstream", latency=LATENCY_MS)
    assert measure_latency(proxy.endpoint_url, num_requests=3) > LATENCY_MS - 2


def test_disabled_it_refuses_and_enabled_it_answers_again(proxy):
    proxy.disable()
    with pytest.raises(ConnectionFailed):
        send("GET", proxy.endpoint_url)
    proxy.enable()
    assert send("GET", proxy.endpoint_url).status in (200, 403)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda proxy: proxy.add_toxic("x", "no-such-kind"),
        lambda proxy: proxy.remove_toxic("no such name"),
        lambda proxy: [proxy.add_toxic("twice", "latency", latency=0) for _ in range(2)],
    ],
)
def test_what_it_refuses_is_a_configuration_error(proxy, wrong):
    with pytest.raises(ConfigurationError, match="toxiproxy rejected the call"):
        wrong(proxy)


def test_started_anew_it_is_what_it_was_in_the_beginning(upstream, no_leaks):
    with make_proxy(upstream, latency_ms=LATENCY_MS, bandwidth_mb_s=None) as proxy:
        url = proxy.endpoint_url
        proxy.add_toxic("hole", "timeout", timeout=0)
        proxy.restart()
        assert (proxy.endpoint_url, proxy.toxics()) == (url, ["latency"])
        assert send("GET", url).status in (200, 403)


def test_it_is_gone_after_the_block(upstream, tmp_path, monkeypatch, no_leaks):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with toxiproxy(upstream) as proxy:
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionFailed):
        send("GET", proxy.endpoint_url)


def test_without_the_program_it_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with (
        pytest.raises(ToolUnavailable, match=TOXIPROXY.name),
        toxiproxy("http://127.0.0.1:1", build=False),
    ):
        pass


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:1"])
def test_it_stands_in_front_of_plain_http_only(url):
    with pytest.raises(ConfigurationError, match="http://"), toxiproxy(url):
        pass


def test_moto_can_be_behind_it_too(upstream, moto_server):
    assert upstream is not moto_server
    with local_s3(kinds=("moto",)) as server, toxiproxy(server, latency_ms=0) as proxy:
        assert server.through(proxy).make_bucket("bucket") == "s3://bucket"
