"""Defines the interface between the device stage and a GPU. All calls of a vendor's library are behind this protocol.

A backend has one stream. `copy`, `run` and decoders that read device memory enqueue work on the stream, in order.
Decoders that read host memory finish before `decode` returns. A `Ticket` marks a point on the stream.
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
    """Raised if the decoder of the device refused an image of a call, and returned no image of the call."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Marks a point on the stream of the stage.

    Attributes:
        event: Event of the backend.
    """

    event: Any


class DeviceBackend(Protocol):
    """Controls one device with one stream. The thread of the stage calls all methods except `hand_over`.

    Every method raises `concurrent_loader.errors.DeviceMemoryError` if memory runs out, and `DeviceError` for any other
    failure of the device or its driver.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def codecs(self) -> Sequence[str]:
        """Names of the codecs that the device decodes, from `concurrent_loader.device.codecs.CODECS`."""

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """Returns (num_bytes,) uint8 on the CPU, from which the device copies asynchronously."""

    def drain(self) -> None:
        """Waits until the stream has no work left."""

    def decode(
        self,
        codec: str,
        payloads: Sequence[torch.Tensor],
        orientations: Sequence[int],
        mode: str,
        plans: Sequence[TilePlan | None] = (),
    ) -> list[torch.Tensor]:
        """Decodes images and applies their EXIF orientation.

        Args:
            codec: Codec of all images.
            payloads: Encoded bytes of each image, (n,) uint8, in the memory that the codec reads.
            orientations: EXIF orientation of each image.
            mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``.
            plans: Plan of each image, if the codec prepares images.

        Returns:
            (C, H, W) uint8 on the device for each image.

        Raises:
            Undecodable: An image is damaged.

        Ordering: A decoder that reads host memory ignores the stream. It may overwrite memory that was freed on the
        stream while earlier work still uses it, so call `drain` first. A decoder that reads device memory is enqueued
        on the stream, as `run` is.
        """

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        """Enqueues a copy of host memory to the device; the memory must not change until the copy is done."""

    def run(self, work: Callable[[], T], *, what: str) -> T:
        """Enqueues the kernels that a function launches on the stream.

        Args:
            work: Function that is called immediately; the contents of its tensors follow later.
            what: Description of the work for an error message.
        """

    def ticket(self) -> Ticket:
        """Returns the current end of the stream."""

    def wait(self, ticket: Ticket) -> None:
        """Waits until the stream has reached a point."""

    def hand_over(self, ticket: Ticket, tensors: Sequence[torch.Tensor]) -> None:
        """Makes the stream of the calling thread wait for a point, and keeps the memory until that stream has used it.

        Thread-safety: Called on the consumer's thread.
        """

    def close(self) -> None:
        """Waits for the stream and releases it. Idempotent."""
