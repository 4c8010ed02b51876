"""The line between the consumer and one worker process: orders of a few integers go in, parcels of batches come out.

A Unix socket, which ends when either process does, whatever ends it. Parcels go as descriptors beside a frame of fixed
size, so that neither side ever waits for room: the bound on batches made ahead bounds what is in the socket.
"""

from __future__ import annotations

import os
import socket
import struct
from array import array
from dataclasses import dataclass
from enum import IntEnum

from concurrent_loader.parcel import MAX_FILES, Parcel

__all__ = ["Arrival", "Channel", "Order", "OrderKind"]

_ORDER = struct.Struct("<BIQQ")
_ARRIVAL = struct.Struct("<I")
_ROOM = socket.CMSG_LEN(MAX_FILES * array("i").itemsize)
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class OrderKind(IntEnum):
    """What the consumer wants of a worker."""

    BEGIN = 1  # to make an epoch's batches from a step on
    TAKEN = 2  # one of them has been taken, so there is room for another
    STOP = 3  # to stop making them, and to say so
    SAY = 4  # to say where the next one is


@dataclass(frozen=True, slots=True)
class Order:
    """What the consumer tells a worker.

    Attributes:
        kind: What to do.
        run: Number of the iteration that it is about.
        epoch: To begin.
        step: To begin with.
    """

    kind: OrderKind
    run: int
    epoch: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A parcel as the consumer gets it.

    Attributes:
        run: The iteration that it belongs to; 0 for none in particular.
        files: Its descriptors, which the consumer closes.
    """

    run: int
    files: tuple[int, ...]


class Channel:
    """One end of the line; it owns the socket.

    Thread-safety: one thread receives; any may send, for what is sent is so small that it goes at once.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """For `select` and its like."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hangs up. Idempotent."""
        self._socket.close()

    def hang_up(self) -> None:
        """Ends the line for both, but keeps the descriptor for those who wait on it; from any thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end is gone, or this one is closed

    def send_order(self, order: Order) -> bool:
        """Sends an order; False if nobody is there any more."""
        try:
            self._socket.sendall(_ORDER.pack(order.kind, order.run, order.epoch, order.step))
        except OSError:
            return False
        return True

    def receive_order(self) -> Order | None:
        """Waits for an order; None if nobody is there any more."""
        data = self._receive_rest(b"", _ORDER.size)
        if data is None:
            return None
        kind, run, epoch, step = _ORDER.unpack(data)
        return Order(OrderKind(kind), run, epoch, step)

    def send_parcel(self, run: int, parcel: Parcel) -> bool:
        """Sends a parcel, and closes it; False if nobody is there any more."""
        try:
            socket.send_fds(self._socket, [_ARRIVAL.pack(run)], parcel.files)
        except OSError:
            return False
        finally:
            parcel.close()
        return True

    def receive_parcel(self) -> Arrival | None:
        """Waits for a parcel; None if nobody is there any more."""
        try:
            # Not by socket.recv_fds, which forgets its flags.
            data, beside, _, _ = self._socket.recvmsg(_ARRIVAL.size, _ROOM, _FLAGS)
        except OSError:
            return None
        files = array("i")
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
        whole = self._receive_rest(data, _ARRIVAL.size)
        if whole is None or not files:
            for fd in files:
                os.close(fd)
            return None
        return Arrival(_ARRIVAL.unpack(whole)[0], tuple(files))

    def _receive_rest(self, data: bytes, num_bytes: int) -> bytes | None:
        try:
            while len(data) < num_bytes:
                more = self._socket.recv(num_bytes - len(data))
                if not more:
                    return None
                data += more
        except OSError:
            return None
        return data
