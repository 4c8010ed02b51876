"""The faulty proxy by itself: what comes through unharmed, and what each fault looks like to a client on the socket."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from concurrent_loader.storage import open_store
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.testing import http_faults, http_faults_process, no_leaks
from concurrent_loader.storage.testing.faults.wire_faults import (
    SLOW_DOWN,
    WRONG_REGION,
    Announce,
    Close,
    Delay,
    Dribble,
    Flip,
    Rates,
    Refuse,
    Reset,
    ShiftRange,
    Silence,
    WholeObject,
    always,
    in_order,
    unharmed,
)

DATA = bytes(range(256)) * 40
RANGE = {"Range": "bytes=100-4195"}
PART = DATA[100:4196]


class Upstream(BaseHTTPRequestHandler):
    """An object, in pieces if asked; what was put; what was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.heads.append(dict(self.headers))
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n")
            return
        found = self.headers.get("Range")
        first, last = (int(part) for part in found[6:].split("-")) if found else (0, len(DATA) - 1)
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"etag"')
        if found:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
        if self.path == "/closes":
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(DATA[first : last + 1])

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self):
        self.server.put = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def upstream():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    server.heads = []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def proxy(upstream):
    with http_faults(upstream.url) as proxy:
        yield proxy


def connect(proxy, timeout=10):
    parts = urlsplit(proxy.endpoint_url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def get(connection, path="/key", method="GET", headers=RANGE):
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    return response, response.read()


@pytest.fixture
def client(proxy):
    connection = connect(proxy)
    yield connection
    connection.close()


def last(proxy):
    return proxy.exchanges[-1]


def test_what_is_sent_comes_through_on_kept_connections(upstream, proxy, client):
    for number in range(3):
        response, body = get(client, "/bucket/a%20key?x=1", headers={**RANGE, "If-Match": '"etag"'})
        assert (response.status, body, response.headers["ETag"]) == (206, PART, '"etag"')
        exchange = last(proxy)
        assert exchange.request.number == number
        assert exchange.request.connection == 0
        assert (exchange.request.path, exchange.request.query) == ("/bucket/a%20key", "x=1")
        assert (exchange.request.range, exchange.request.if_match) == ((100, 4196), '"etag"')
        assert (exchange.status, exchange.num_bytes, exchange.faults) == (206, 4096, ())
    # The host that the client named, not the server's own: it is part of a signature.
    assert upstream.heads[-1]["Host"] == urlsplit(proxy.endpoint_url).netloc
    assert (proxy.num_requests, proxy.counts) == (3, {})
    proxy.forget()
    assert proxy.exchanges == ()


@pytest.mark.parametrize("path", ["/key", "/closes"])
def test_other_methods_and_a_server_that_closes(upstream, proxy, client, path):
    response, body = get(client, path, "HEAD", {})
    assert (response.status, response.headers["Content-Length"], body) == (200, str(len(DATA)), b"")
    client.request("PUT", path, body=b"x" * 300_000)
    assert client.getresponse().read() == b""
    assert upstream.put == b"x" * 300_000
    assert get(client, "/chunked", headers={})[1] == b"hello world"
    assert get(client, path, headers={})[1] == DATA
    assert [exchange.request.method for exchange in proxy.exchanges] == ["HEAD", "PUT", "GET", "GET"]


def test_a_client_that_waits_to_be_asked_for_the_body(upstream, proxy):
    with socket.create_connection(("127.0.0.1", urlsplit(proxy.endpoint_url).port)) as plain:
        plain.sendall(b"PUT /key HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert plain.recv(100).startswith(b"HTTP/1.1 100 Continue")
        plain.sendall(b"data")
        assert plain.recv(100).startswith(b"HTTP/1.1 204")
    assert upstream.put == b"data"


@pytest.mark.parametrize(
    ("fault", "region"), [(SLOW_DOWN, None), (WRONG_REGION, "eu-west-1"), (Refuse(200, "X"), None)]
)
def test_a_refusal_is_an_error_document(upstream, proxy, client, fault, region):
    proxy.script = in_order([fault])
    response, body = get(client)
    assert (response.status, response.headers["x-amz-bucket-region"]) == (fault.status, region)
    assert f"<Code>{fault.code}</Code>".encode() in body
    assert upstream.heads == []
    assert get(client)[1] == PART  # on the same connection
    assert [exchange.request.connection for exchange in proxy.exchanges] == [0, 0]
    assert proxy.exchanges[0].faults == (fault,)
    assert proxy.counts == {"Refuse": 1}


def test_a_reset_before_the_answer(proxy, client):
    proxy.script = in_order([Reset()])
    with pytest.raises(ConnectionResetError):
        get(client)
    assert (last(proxy).faults, last(proxy).status) == ((Reset(),), None)


@pytest.mark.parametrize("fault", [Reset(1000), Reset(-3096), Close(1000), Close(-3096)])
def test_a_body_cut_short(proxy, client, fault):
    proxy.script = in_order([fault])
    client.request("GET", "/key", headers=RANGE)
    response = client.getresponse()
    assert (response.status, response.length) == (206, 4096)
    expected = ConnectionResetError if isinstance(fault, Reset) else http.client.IncompleteRead
    assert response.read(1000) == PART[:1000]
    with pytest.raises(expected):
        response.read()
    response.close()
    assert (last(proxy).faults, last(proxy).num_bytes) == ((fault,), 1000)


def test_a_cut_beyond_the_end_does_not_happen(proxy, client):
    proxy.script = always(Close(4096), Reset(5000))
    assert get(client)[1] == PART
    assert last(proxy).faults == ()
    assert proxy.counts == {}


@pytest.mark.parametrize("fault", [Silence(), Silence(10)])
def test_silence_lasts_until_the_client_hangs_up(proxy, fault):
    proxy.script = in_order([fault])
    client = connect(proxy, timeout=0.2)
    with pytest.raises(TimeoutError):
        get(client)
    client.close()
    assert last(proxy).faults == (fault,)
    assert last(proxy).num_bytes == (fault.after_bytes or 0)


def test_delay_and_dribble_take_their_time(proxy, client):
    proxy.script = in_order([Delay(0.05), Dribble(1024, 0.02)])
    for expected_s in (0.05, 0.06):
        begun = time.monotonic()
        assert get(client)[1] == PART
        assert time.monotonic() - begun >= expected_s
    assert proxy.counts == {"Delay": 1, "Dribble": 1}


def test_lies_in_the_head(proxy, client):
    proxy.script = in_order([ShiftRange(7), WholeObject()])
    response, body = get(client)
    assert (response.status, response.headers["Content-Range"], body) == (206, f"bytes 107-4202/{len(DATA) + 7}", PART)
    response, body = get(client)
    assert (response.status, response.headers["Content-Range"], len(body)) == (200, None, len(DATA))
    assert body == bytes(100) + PART + bytes(len(DATA) - 4196)
    assert proxy.counts == {"ShiftRange": 1, "WholeObject": 1}


def test_lies_about_a_range_need_a_range(proxy, client):
    proxy.script = always(ShiftRange(7), WholeObject(), when=lambda request: True)
    assert get(client, headers={})[1] == DATA
    assert last(proxy).faults == ()


@pytest.mark.parametrize("more", [-96, 96])
def test_a_wrong_length(proxy, more):
    proxy.script = always(Announce(more))
    client = connect(proxy)
    client.request("GET", "/key", headers=RANGE)
    response = client.getresponse()
    assert response.length == 4096 + more
    if more < 0:
        assert response.read() == PART[:more]
    else:
        with pytest.raises(http.client.IncompleteRead) as caught:
            response.read()
        assert caught.value.partial == PART
    client.close()
    assert (last(proxy).faults, last(proxy).num_bytes) == ((Announce(more),), 4096)


def test_flipped_bytes(proxy, client):
    proxy.script = in_order([Flip((0, 5, 4096 + 9))])
    expected = bytearray(PART)
    for place in (0, 5, 9):
        expected[place] ^= 0xFF
    assert get(client)[1] == expected
    assert last(proxy).faults == (Flip((0, 5, 4096 + 9)),)


def test_several_faults_at_once(proxy, client):
    proxy.script = in_order([Flip()])
    proxy.script = lambda request: (Delay(0.01), Flip((1,)), Close(2))
    client.request("GET", "/key", headers=RANGE)
    response = client.getresponse()
    with pytest.raises(http.client.IncompleteRead) as caught:
        response.read()
    assert caught.value.partial == bytes([PART[0], PART[1] ^ 0xFF])
    assert set(proxy.counts) == {"Delay", "Flip", "Close"}


def test_a_server_that_is_gone_is_a_reset(upstream):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    with http_faults(url) as proxy, pytest.raises(ConnectionResetError):
        get(connect(proxy))


def test_noise_is_answered_by_a_reset(proxy):
    with socket.create_connection(("127.0.0.1", urlsplit(proxy.endpoint_url).port)) as plain:
        plain.sendall(b"noise\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            plain.recv(1)


def test_nothing_is_left_behind_even_by_clients_that_wait(upstream):
    with no_leaks(), ThreadPoolExecutor(4) as threads:
        with http_faults(upstream.url, always(Silence())) as proxy:
            clients = [connect(proxy) for _ in range(4)]
            waiting = [threads.submit(get, client) for client in clients]
            deadline = time.monotonic() + 10
            while proxy.counts.get("Silence", 0) < 4:
                assert time.monotonic() < deadline
            proxy.script = unharmed
        for client, wait in zip(clients, waiting, strict=True):
            with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
                wait.result()
            client.close()


def test_https_is_refused():
    with pytest.raises(ConfigurationError), http_faults("https://127.0.0.1:1"):
        pass


@pytest.mark.s3
@pytest.mark.parametrize("name", ["native", "aiobotocore"])
async def test_signatures_hold(s3_server, s3_bucket, name):
    with http_faults(s3_server) as proxy:
        options = s3_server.through(proxy).storage_options()
        async with open_store(s3_bucket.url, client=name, **options) as store:
            await store.put("a key/with %", DATA)
            result = await store.get_range("a key/with %", 5, 50)
            assert bytes(result.data) == DATA[5:50]
            assert [meta.key async for meta in store.list("")] == ["a key/with %"]
            assert len(await asyncio.gather(*(store.get("a key/with %") for _ in range(20)))) == 20
            await store.delete("a key/with %")
        assert all(exchange.status in (200, 204, 206) for exchange in proxy.exchanges)


@pytest.mark.processes
def test_in_a_process_of_its_own(upstream):
    with no_leaks(), http_faults_process(upstream.url, Rates(slow_down=1.0)) as proxy:
        client = connect(proxy)
        assert get(client)[0].status == 503
        proxy.set_rates(Rates(seed=1, flip=1.0, latency_s=0.001))
        assert len(get(client)[1]) == len(PART)
        proxy.set_rates(Rates())
        assert get(client)[1] == PART
        assert proxy.counts() == {"requests": 3, "Refuse": 1, "Delay": 1, "Flip": 1}
        client.close()
