"""Channel between the consumer and one worker process: commands go to the worker, packed batches come back.

The channel is a Unix socket, which closes when either process ends for any reason. Packed batches are sent as
descriptors with a frame of fixed size. Neither side ever waits for buffer space, because the number of batches made
ahead is bounded.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from array import array
from dataclasses import astuple, dataclass
from enum import IntEnum

from concurrent_loader.workers.serialization import MAX_FILES, PackedBatch

__all__ = ["Channel", "Command", "CommandKind", "ReceivedBatch"]

log = logging.getLogger(__name__)

_CLOSED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF)
_ORDER = struct.Struct("<BIQQQ")
_ARRIVAL = struct.Struct("<I")
_ROOM = socket.CMSG_LEN(MAX_FILES * array("i").itemsize)
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class CommandKind(IntEnum):
    """Kind of a command to a worker."""

    BEGIN = 1  # make an epoch's batches, starting at a step
    TAKEN = 2  # a batch was taken, so the worker may make another
    STOP = 3  # stop making batches, and confirm
    STATUS = 4  # report where the next batch is


@dataclass(frozen=True, slots=True)
class Command:
    """Command from the consumer to a worker.

    Attributes:
        kind: Kind of the command.
        run: Number of the iteration concerned.
        epoch: Epoch to begin.
        step: First step.
        max_spans: Number of spans of a trace to keep; 0 without a trace.
    """

    kind: CommandKind
    run: int
    epoch: int = 0
    step: int = 0
    max_spans: int = 0


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """Packed batch as the consumer receives it.

    Attributes:
        run: Number of its iteration; 0 if it belongs to none.
        files: Descriptors, which the consumer must close.
    """

    run: int
    files: tuple[int, ...]


class Channel:
    """One end of a channel. It owns the socket.

    Args:
        end: Connected socket.

    Thread-safety: One thread may receive. Any thread may send, because messages are small enough to be sent at once.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """Returns the descriptor of the socket, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self._socket.close()

    def hang_up(self) -> None:
        """Shuts the connection down but keeps the descriptor, which other threads may be waiting on."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end is gone, or this one is closed

    def send_command(self, command: Command) -> bool:
        """Sends a command; returns False if the other end is closed."""
        try:
            self._socket.sendall(_ORDER.pack(*astuple(command)))
        except OSError:
            return False
        return True

    def receive_command(self) -> Command | None:
        """Waits for a command; returns None if the other end is closed."""
        data = self._receive_rest(b"", _ORDER.size)
        if data is None:
            return None
        kind, *numbers = _ORDER.unpack(data)
        return Command(CommandKind(kind), *numbers)

    def send_batch(self, run: int, packed: PackedBatch) -> bool:
        """Sends a packed batch and closes it; returns False if the other end is closed.

        If it cannot be sent, this end hangs up: without this batch, the receiver would take the next one for it.
        """
        try:
            socket.send_fds(self._socket, [_ARRIVAL.pack(run)], packed.files)
        except OSError as error:
            if error.errno not in _CLOSED:
                log.exception("a batch cannot be sent; raise the limit of open files (ulimit -n)")
                self.hang_up()
            return False
        finally:
            packed.close()
        return True

    def receive_batch(self) -> ReceivedBatch | None:
        """Waits for a packed batch; None if nobody is there any more."""
        try:
            # socket.recv_fds ignores its flags.
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
        return ReceivedBatch(_ARRIVAL.unpack(whole)[0], tuple(files))

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
