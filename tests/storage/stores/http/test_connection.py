"""The HTTP client below the native S3 store: whatever comes, in whatever splits, is an answer or a typed error."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    ProtocolViolation,
    StorageError,
    TruncatedBody,
)
from concurrent_loader.storage.stores.http import connection
from concurrent_loader.storage.stores.http.connection import HttpConnection
from concurrent_loader.storage.stores.http.head import MAX_HEAD_BYTES, parse_head
from concurrent_loader.storage.stores.http.pool import HttpPool

LIMIT = 1000


class Wire:
    """A transport that sends nothing, and hands over bytes in given splits as long as reading is not paused."""

    def __init__(self, protocol, pieces):
        self.protocol, self.pieces, self.is_paused, self.is_closed = protocol, list(pieces), False, False
        self.loop = asyncio.get_running_loop()
        protocol.connection_made(self)
        self.loop.call_soon(self.step)

    def write(self, data):
        pass

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False
        self.loop.call_soon(self.step)

    def abort(self):
        if not self.is_closed:
            self.is_closed = True
            self.loop.call_soon(self.protocol.connection_lost, None)

    def step(self):
        if self.is_paused or self.is_closed:
            return
        if not self.pieces:
            self.protocol.eof_received()
            self.abort()
            return
        piece = self.pieces.pop(0)
        room = self.protocol.get_buffer(-1)
        assert len(room) > 0, "asyncio takes an empty buffer for an error"
        taken = min(len(room), len(piece))
        room[:taken] = piece[:taken]
        if piece[taken:]:
            self.pieces.insert(0, piece[taken:])
        if taken:
            self.protocol.buffer_updated(taken)
        self.loop.call_soon(self.step)


def answer_to(pieces, *, no_body=False, piece_bytes=None):
    """What a GET makes of bytes that come in these pieces: a tuple, or the class of the error."""

    async def ask():
        pool = HttpPool("http://host", tls=None, connect_s=5, max_connections=1)
        connection = HttpConnection(pool._lost)
        pool._num_free_slots = 0
        pool._idle = []
        Wire(connection, pieces)
        answer = None
        try:
            answer = await pool._exchange(connection, lambda: b"GET / HTTP/1.1\r\n\r\n", None, False, no_body)
            if piece_bytes is not None and answer.length is not None and answer.length <= LIMIT:
                body = b""
                while (piece := await answer.read_piece(piece_bytes)) is not None:
                    body += piece
            else:
                body = await answer.read_at_most(LIMIT)
            return answer.status, dict(answer.headers), body, len(pool._idle)
        except (StorageError, EOFError) as error:
            return type(error)
        finally:
            if answer is not None:
                answer.close()
            connection.abort()
            await connection.lost

    return asyncio.run(ask())


def split(data, places):
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\nabcde",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nabcde\r\n1\r\nf\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n",
    b"HTTP/1.0 403 Forbidden\r\nServer: old\r\n\r\n<Error/>",
    b"HTTP/1.1 204 No Content\r\nX: 1\r\nX: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcde",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("piece_bytes", [None, 2])
@pytest.mark.parametrize("data", ANSWERS)
@given(places=st.lists(st.integers(0, 2000), max_size=20))
def test_any_split_gives_the_same_answer(data, piece_bytes, places):
    pieces = split(data, places)
    got, expected = (answer_to(each, piece_bytes=piece_bytes) for each in (pieces, [data]))
    # Whether the connection is kept depends on whether its end has come by then.
    assert got == expected or got[:3] == expected[:3]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (ANSWERS[0], (200, {"content-length": "5", "etag": '"x"'}, b"abcde", 1)),
        (ANSWERS[1], (200, {"content-length": "0"}, b"", 1)),
        (ANSWERS[2], (200, {"transfer-encoding": "chunked"}, b"abcdef", 1)),
        (ANSWERS[3], (200, {"transfer-encoding": "chunked"}, b"abc", 0)),
        (ANSWERS[4], (403, {"server": "old"}, b"<Error/>", 0)),
        (ANSWERS[5], (204, {"x": "1, 2"}, b"", 1)),
        (ANSWERS[6], TruncatedBody),
        (ANSWERS[7], TruncatedBody),
        (ANSWERS[8], ProtocolViolation),
        (ANSWERS[9], (200, {"content-length": "2000"}, None, 0)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: Close\r\n\r\nabcde",
         (200, {"content-length": "5", "connection": "Close"}, b"abcde", 0)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcdef", (200, {"content-length": "5"}, b"abcde", 0)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nabcde\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\n folded\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nName : x\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\n\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nabcde", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nabcde", ProtocolViolation),
        (b"HTTP/1.1 101 Switching\r\n\r\n", ProtocolViolation),
        (b"HTTP/1.1 100 C\r\n\r\n" * 20, ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES, ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\n", EOFError),
        (b"", EOFError),
    ],
)  # fmt: skip
def test_answers(data, expected):
    assert answer_to([data]) == expected


def test_the_answer_to_head_has_no_body():
    assert answer_to([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"], no_body=True)[2:] == (b"", 1)


NOISE = st.lists(
    st.sampled_from(
        [*ANSWERS, b"HTTP/1.1 200 OK\r\n", b"Content-Length: 5\r\n", b": \r\n", b"\r\n", b"5\r\n", b"0\r\n"]
    )
    | st.binary(max_size=20),
    max_size=12,
).map(b"".join)


@given(data=NOISE, places=st.lists(st.integers(0, 4000), max_size=10), piece_bytes=st.sampled_from([None, 3]))
def test_garbage_is_an_answer_or_an_error_of_ours(data, places, piece_bytes):
    got = answer_to(split(data, places), piece_bytes=piece_bytes)
    if isinstance(got, tuple):
        assert got[2] is None or len(got[2]) <= LIMIT
    else:
        assert issubclass(got, StorageError | EOFError)


@given(NOISE)
def test_a_head_is_parsed_or_refused(data):
    with contextlib.suppress(ProtocolViolation):
        assert 100 <= parse_head(data).status <= 999


# -- over sockets ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(serve, server_tls=None, **options):
    """A pool of connections to a server that is a coroutine function."""
    tasks = set()

    async def run(reader, writer):
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            await serve(reader, writer)

    async def trusting():
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    async with await asyncio.start_server(run, "127.0.0.1", 0, ssl=server_tls) as server:
        scheme, port = "https" if server_tls else "http", server.sockets[0].getsockname()[1]
        pool = HttpPool(f"{scheme}://127.0.0.1:{port}", tls=trusting, connect_s=5, **{"max_connections": 4, **options})
        try:
            yield pool
        finally:
            await pool.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def get():
    return b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_stale_connection_is_replaced_once_for_what_may_be_sent_twice(no_leaks):
    heads = []

    async def serve(reader, writer):
        heads.append([])
        # The first connection answers one request; the others none, after the fourth request.
        while len(heads[-1]) < 1 or len(heads) > 1:
            heads[-1].append(await reader.readuntil(b"\r\n\r\n"))
            if sum(map(len, heads)) > 3:
                return
            writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    async with served(serve) as pool:
        for _ in range(2):
            assert bytes(await (await pool.send(get)).read()) == b"ok"
        assert len(heads) == 2
        assert bytes(await (await pool.send(get, idempotent=False)).read()) == b"ok"
        assert len(heads) == 3, "what cannot be sent twice is sent over a new connection"
        with pytest.raises(ConnectionFailed):
            await pool.send(get, idempotent=False)
        assert len(heads) == 4


async def test_requests_beyond_the_limit_wait_in_line(no_leaks):
    num_open = most = 0

    async def serve(reader, writer):
        nonlocal num_open, most
        num_open += 1
        most = max(most, num_open)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(0)
                writer.write(OK)
        finally:
            num_open -= 1

    async def ask():
        return bytes(await (await pool.send(get)).read())

    async with served(serve, max_connections=3) as pool:
        assert await asyncio.gather(*(ask() for _ in range(40))) == [b"ok"] * 40
        waiting = [asyncio.create_task(ask()) for _ in range(10)]
        await asyncio.sleep(0)
        for task in waiting[2:7]:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert [await ask() for _ in range(5)] == [b"ok"] * 5
    assert most == 3


async def test_a_silent_server_meets_the_limit(monkeypatch, no_leaks):
    monkeypatch.setattr(connection, "_SILENCE_TIMEOUT_S", 0.05)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK[:-1])
        await reader.read()

    async with served(serve) as pool:
        answer = await pool.send(get)
        with pytest.raises(DeadlineExceeded):
            await answer.read()
        assert not pool._idle


async def test_a_server_that_takes_no_more_of_a_body_meets_the_limit(monkeypatch, no_leaks):
    monkeypatch.setattr(connection, "_SILENCE_TIMEOUT_S", 0.05)
    ended = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await ended.wait()

    async with served(serve) as pool:
        with pytest.raises(DeadlineExceeded):
            await pool.send(get, memoryview(bytes(64 << 20)))
        ended.set()


@pytest.mark.parametrize("form", ["refuses at once", "asks", "asks late", "never asks", "refuses in the middle"])
async def test_a_large_body_waits_for_consent(form, monkeypatch, no_leaks):
    monkeypatch.setattr(connection, "_CONTINUE_TIMEOUT_S", 0.05 if form in ("asks late", "never asks") else 60)
    body = memoryview(bytes(8 << 20))
    refusal = b"HTTP/1.1 503 Slow\r\nContent-Length: 0\r\n\r\n"
    num_read = 0

    async def serve(reader, writer):
        nonlocal num_read
        await reader.readuntil(b"\r\n\r\n")
        if form == "refuses at once":
            writer.write(refusal)
            await reader.read()
            return
        if form in ("asks", "refuses in the middle"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while num_read < len(body):
            num_read += len(await reader.read(1 << 16))
            if form == "asks late" and num_read == 1 << 16:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if form == "refuses in the middle":
                writer.write(refusal)
                await reader.read()
                return
        writer.write(OK)
        await reader.read()

    async with served(serve) as pool:
        answer = await pool.send(get, body, expect_continue=True)
        if form.startswith("refuses"):
            assert answer.status == 503
            assert num_read < len(body)
            assert not pool._idle, "a connection with half a request on it is not used again"
        else:
            assert bytes(await answer.read()) == b"ok"
            assert num_read == len(body)


async def test_a_cancelled_read_closes_its_connection(no_leaks):
    ended = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        ended.set()

    async with served(serve) as pool, asyncio.timeout(5):
        answer = await pool.send(get)
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await ended.wait()


async def test_an_idle_connection_that_ends_or_talks_is_not_used(no_leaks):
    num_connections = 0

    async def serve(reader, writer):
        nonlocal num_connections
        num_connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"" if num_connections > 1 else OK)
        await asyncio.sleep(0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await reader.read()

    async with served(serve) as pool:
        for _ in range(3):
            assert bytes(await (await pool.send(get)).read()) == b"ok"
            for _ in range(20):
                await asyncio.sleep(0)
        assert num_connections == 3


@pytest.mark.parametrize("is_tls", [False, True])
async def test_large_bodies_both_ways(is_tls, tls, no_leaks):
    data = os.urandom(5 << 20)
    got = bytearray()

    async def serve(reader, writer):
        while await reader.readuntil(b"\r\n\r\n"):
            got.clear()
            got.extend(await reader.readexactly(len(data)))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data))
            writer.write(data)

    async with served(serve, tls if is_tls else None, max_connections=1) as pool:
        for _ in range(2):
            answer = await pool.send(get, memoryview(data))
            assert bytes(await answer.read()) == data == got
        answer = await pool.send(get, memoryview(data))
        pieces = []
        while (piece := await answer.read_piece(300_000)) is not None:
            pieces.append(bytes(piece))
            await asyncio.sleep(0)
        assert b"".join(pieces) == data
        answer, room = await pool.send(get, memoryview(data)), bytearray(len(data))
        assert await answer.read_into(memoryview(room)[:1000]) == 1000
        assert await answer.read_into(memoryview(room)[1000:]) == len(data) - 1000
        assert await answer.read_into(memoryview(room)) == 0
        assert room == data
        assert len(pool._idle) == 1


async def test_a_certificate_that_is_not_trusted_is_a_failed_connection(tls):
    async def serve(reader, writer):
        raise AssertionError("no request may come")

    async with served(serve, tls) as pool:

        async def checking():
            return ssl.create_default_context()

        pool._tls = checking
        with pytest.raises(ConnectionFailed, match="https://127"):
            await pool.send(get)
        assert pool._num_free_slots == 4
