"""A device made of the CPU that does everything as late as it may, and notices what is done in a wrong order.

A copy counts as made when somebody waits; what is copied must not have changed by then. What `run` makes is empty until
the consumer's stream has been told to wait. Decoding JPEGs while anything is still to be done is noted: a real device
would write into memory that is in use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from concurrent_loader.decode import Box, make_decoder
from concurrent_loader.decode.backends.lossless import decode_box
from concurrent_loader.device import Ticket, Undecodable
from concurrent_loader.errors import DecodeError, DeviceMemoryError
from concurrent_loader.lossless import TilePlan


def as_of(payload: torch.Tensor) -> int:
    return hash(payload.numpy().tobytes())


class FakeDevice:
    """See `concurrent_loader.device.DeviceBackend`.

    Args:
        codecs: What it decodes.
        memory_bytes: What its decoder and copies may take at once in one call.
    """

    def __init__(self, *, codecs: Sequence[str] = ("nvjpeg", "lossless"), memory_bytes: int = 1 << 40) -> None:
        self.device = torch.device("cpu")
        self.codecs = tuple(codecs)
        self.memory_bytes = memory_bytes
        self.refused: set[int] = set()
        self.log: list[str] = []
        self.wrong: list[str] = []
        self.calls: list[int] = []  # images in each call of decode
        self.copied_bytes: list[int] = []
        self.closed = 0
        self.block = threading.Event()
        self.block.set()
        self._lock = threading.RLock()
        self._pending: list[tuple[int, str, Callable[[], None]]] = []  # (point, what, how)
        self._point = 0

    # -- the stream ------------------------------------------------------------------------------------------------

    def _enqueue(self, what: str, how: Callable[[], None]) -> None:
        with self._lock:
            self._point += 1
            self._pending.append((self._point, what, how))

    def _reach(self, point: int) -> None:
        with self._lock:
            while self._pending and self._pending[0][0] <= point:
                self._pending.pop(0)[2]()

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        self.log.append("host memory")
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def drain(self) -> None:
        self.log.append("drain")
        self._reach(self._point)

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        self.log.append("copy")
        self._check_memory(host.numel())
        self.copied_bytes.append(host.numel())
        there = host.clone()

        def late() -> None:
            if not torch.equal(host, there):
                self.wrong.append("a slot was written to before its copy was made")

        self._enqueue("copy", late)
        return there

    def run(self, work: Callable[[], Any], *, what: str) -> Any:
        self.log.append("run")
        made = work()
        shadow = made.with_columns(
            {name: torch.zeros_like(each) if isinstance(each, torch.Tensor) else each for name, each in made.items()}
        )

        def late() -> None:
            for name, each in made.items():
                if isinstance(each, torch.Tensor):
                    shadow[name].copy_(each)

        self._enqueue("run", late)
        return shadow

    def ticket(self) -> Ticket:
        self.log.append("ticket")
        return Ticket(self._point)

    def wait(self, ticket: Ticket) -> None:
        self.log.append("wait")
        self._reach(ticket.event)

    def hand_over(self, ticket: Ticket, tensors: Sequence[torch.Tensor]) -> None:
        self.log.append("hand over")
        self._reach(ticket.event)

    def close(self) -> None:
        self.closed += 1
        self._reach(self._point)

    # -- its decoder -----------------------------------------------------------------------------------------------

    def decode(
        self,
        codec: str,
        payloads: Sequence[torch.Tensor],
        orientations: Sequence[int],
        mode: str,
        plans: Sequence[TilePlan | None] = (),
    ) -> list[torch.Tensor]:
        assert self.block.wait(30)
        self.log.append(f"decode {codec}")
        self.calls.append(len(payloads))
        if self._pending and codec == "nvjpeg":
            self.wrong.append("decoded while something was still to be done on the stream")
        self._check_memory(sum(each.numel() for each in payloads))
        if any(as_of(each) in self.refused for each in payloads):
            raise Undecodable("status 3")
        if codec == "lossless":
            return self.decode_tiles(payloads, [plan for plan in plans if plan is not None], mode)
        decode = make_decoder(mode, "image")
        try:
            return [decode(each.numpy().data).contiguous() for each in payloads]
        except DecodeError as error:
            raise Undecodable(str(error)) from error

    def decode_tiles(
        self, payloads: Sequence[torch.Tensor], plans: Sequence[TilePlan], mode: str
    ) -> list[torch.Tensor]:
        """Decodes on the CPU, from the same bytes, what the kernel would."""
        made = []
        for payload, plan in zip(payloads, plans, strict=True):
            part = Box(0, 0, *plan.shape[1:])
            place = plan.located(part)
            box = (place.top, place.left, place.height, place.width)
            made.append(decode_box(payload.numpy().data[plan.facts_bytes :], box, mode.upper()))
        return made

    def _check_memory(self, num_bytes: int) -> None:
        if num_bytes > self.memory_bytes:
            raise DeviceMemoryError("the device has not enough memory", got=f"{num_bytes} bytes")
