from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Iterator

import pytest

from concurrent_loader.workers.channel import Channel, Command, CommandKind
from concurrent_loader.workers.serialization import pack, unpack


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    gc.collect()  # what earlier tests left closes now, not meanwhile
    before = len(os.listdir("/proc/self/fd"))
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kind", list(CommandKind))
def test_orders_arrive(ends: tuple[Channel, Channel], kind: CommandKind) -> None:
    command = Command(kind, 2**32 - 1, 2**64 - 1, 7)
    assert ends[0].send_command(command)
    assert ends[1].receive_command() == command


def test_parcels_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    for number in range(20):
        assert ends[1].send_batch(number, pack([number] * number))
    for number in range(20):
        arrival = ends[0].receive_batch()
        assert arrival is not None
        assert arrival.run == number
        assert unpack(arrival.files) == [number] * number
        for fd in arrival.files:
            assert not os.get_inheritable(fd)
            os.close(fd)


def test_what_was_sent_before_the_end_arrives(ends: tuple[Channel, Channel]) -> None:
    assert ends[1].send_batch(1, pack("last words"))
    ends[1].close()
    arrival = ends[0].receive_batch()
    assert arrival is not None
    os.close(arrival.files[0])
    assert ends[0].receive_batch() is None
    assert ends[0].receive_command() is None
    assert not ends[0].send_command(Command(CommandKind.STOP, 1))
    packed = pack("to nobody")
    assert not ends[0].send_batch(1, packed)
    assert packed.files == []


def test_hanging_up_is_heard_at_both_ends(ends: tuple[Channel, Channel]) -> None:
    ends[0].hang_up()
    ends[0].hang_up()
    assert ends[0].receive_batch() is None
    assert ends[1].receive_command() is None
    ends[0].close()
    ends[0].hang_up()
    assert ends[0].receive_batch() is None


def test_half_a_frame_is_nothing() -> None:
    raw, end = socket.socketpair()
    channel = Channel(end)
    raw.send(b"\x01")
    raw.close()
    assert channel.receive_command() is None
    assert channel.receive_batch() is None
    channel.close()


def test_a_frame_without_files_is_nothing() -> None:
    raw, end = socket.socketpair()
    channel = Channel(end)
    raw.send(b"\x01\x00\x00\x00")
    assert channel.receive_batch() is None
    raw.close()
    channel.close()


def test_a_batch_that_cannot_be_sent_is_the_end(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one would be taken for it. Linux limits the descriptors that are under way."""
    assert ends[1].send_batch(1, pack("first"))
    packed = pack("second")

    def fail(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", fail)
        assert not ends[1].send_batch(1, packed)
    assert packed.files == []
    assert "ulimit -n" in caplog.text
    assert not ends[1].send_batch(1, pack("third"))
    arrival = ends[0].receive_batch()
    assert arrival is not None
    assert unpack(arrival.files) == "first"
    os.close(arrival.files[0])
    assert ends[0].receive_batch() is None
