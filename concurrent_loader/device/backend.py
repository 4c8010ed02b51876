"""What the device stage asks of an accelerator: everything that a vendor's library does lies behind this protocol.

One backend has one stream. Whatever `copy` and `run` are given is done there in order, later; so are decoders that read
from the device's memory. Those that read from the host's are done when `decode` returns. A `Ticket` is a point in that
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from concurrent_loader.lossless import TilePlan

__all__ = ["DeviceBackend", "Ticket", "Undecodable"]

T = TypeVar("T")


class Undecodable(Exception):
    """The device's decoder refused some picture of those that it was given, and made none of them."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A point on the stage's stream.

    Attributes:
        event: The backend's own.
    """

    event: Any


class DeviceBackend(Protocol):
    """One device, one stream. All methods but `hand_over` are the stage's thread's.

    Every method raises `concurrent_loader.errors.DeviceMemoryError` where memory is short, and `DeviceError` where the
    device or its driver refuses anything else.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def codecs(self) -> Sequence[str]:
        """Names of the encodings that it decodes, of `concurrent_loader.device.screening.CODECS`."""

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """Returns (num_bytes,) uint8 on the CPU from which the device copies while the CPU does something else."""

    def drain(self) -> None:
        """Waits until everything on the stream is done."""

    def decode(
        self,
        codec: str,
        payloads: Sequence[torch.Tensor],
        orientations: Sequence[int],
        mode: str,
        plans: Sequence[TilePlan | None] = (),
    ) -> list[torch.Tensor]:
        """Decodes pictures, and turns them upright.

        Args:
            codec: Of all of them.
            payloads: (n,) uint8 each, where the codec reads them.
            orientations: By EXIF, of each.
            mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``.
            plans: Of each, where the codec prepares pictures.

        Returns:
            (C, H, W) uint8 on the device, each.

        Raises:
            Undecodable: Some picture is broken.

        Ordering: A decoder that reads from the host may write into memory that was freed on the stream as soon as it
            is called, whatever the stream still has to do with it. Call `drain` first. One that reads on the device is
            launched on the stream, like what `run` is given.
        """

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        """Puts a copy of host memory to the device on the stream; the memory must stay as it is until that is done."""

    def run(self, work: Callable[[], T], *, what: str) -> T:
        """Puts the kernels that a function launches on the stream.

        Args:
            work: Called at once; its tensors' contents come later.
            what: It does, for an error.
        """

    def ticket(self) -> Ticket:
        """Returns the stream's end at this moment."""

    def wait(self, ticket: Ticket) -> None:
        """Waits until the stream has come to a point."""

    def hand_over(self, ticket: Ticket, tensors: Sequence[torch.Tensor]) -> None:
        """Has the calling thread's stream wait for a point, and keeps the memory until that stream has used it.

        Thread-safety: The consumer's thread.
        """

    def close(self) -> None:
        """Waits for the stream, and lets go of it. Idempotent."""
