"""Implements the device stage's backend for NVIDIA GPUs. The only file that calls CUDA; imported only if needed.

nvJPEG decodes JPEGs, through torchcodec (0.16 and later), or through torchvision's operator if torchcodec is missing or
was built without nvJPEG. Both read encoded bytes from host memory and decode a batch in one call. Both use the hardware
engine for baseline images if the GPU has one, and wait for the device before they return. Neither lets its caller
choose between the engine and nvJPEG's software. The kernel of this package decodes lossless images if Triton works.
"""

from __future__ import annotations

import io
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import TypeVar

import numpy as np
import torch
from PIL import Image

from concurrent_loader.device.backend import Ticket, Undecodable
from concurrent_loader.device.staged_images import turn_upright
from concurrent_loader.errors import DeviceError, DeviceMemoryError
from concurrent_loader.lossless import TilePlan, decode_prepared, prepare_image
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.lossless import encode

__all__ = ["CudaBackend", "resolve_cuda"]

T = TypeVar("T")

# (payloads on the CPU, orientations, mode, device) → upright images
_Decode = Callable[[list[torch.Tensor], Sequence[int], str, torch.device], list[torch.Tensor]]

_TORCHVISION_MODES = {"unchanged": 0, "gray": 1, "rgb": 3}
# NVJPEG_STATUS_ALLOCATOR_FAILURE is 5; both libraries print the status at the end of their messages.
_ALLOCATOR_FAILURE = re.compile(r"(decod|jpeg)[^\n]*: 5\b", re.IGNORECASE)
_ADVICE = "use a smaller batch_size, smaller crops or fewer columns, or free memory of the device"

_log = logging.getLogger(__name__)

# torch's allocator keeps freed memory for the stream on which it was allocated. A new stream for each epoch would keep
# one working set for each of up to 32 streams.
_idle_streams: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)
_streams_lock = threading.Lock()


def resolve_cuda(device: torch.device) -> torch.device:
    """Resolves a CUDA device to one with an index.

    Args:
        device: ``cuda`` for the current GPU, or ``cuda:N``.

    Raises:
        ConfigurationError: The GPU does not exist.
    """
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        raise ConfigurationError(
            "no CUDA device can be used here: leave out device=, or pass 'cpu', to get batches on the CPU",
            got=f"{device}; torch {torch.__version__}"
            + (", which finds no GPU or driver" if built else ", built without CUDA"),
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigurationError(
            "the CUDA device does not exist", expected=f"cuda:0 … cuda:{torch.cuda.device_count() - 1}", got=str(device)
        )
    return torch.device("cuda", index)


class CudaBackend:
    """Controls one GPU with one stream; see `concurrent_loader.device.backend.DeviceBackend`.

    The stream belongs to this backend until `close`; then the next backend reuses it.

    Args:
        device: GPU with its index.
        pinned: Whether to page-lock host memory (default); otherwise copies are synchronous.

    Raises:
        DeviceError: The GPU cannot be used.
    """

    def __init__(self, device: torch.device, *, pinned: bool = True) -> None:
        self.device = device
        self._pinned = pinned
        self._closed = False
        with _translated("opening the device", device):
            with _streams_lock:
                idle = _idle_streams[device]
                self._stream = idle.pop() if idle else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            decode_jpegs = _find_decoder(device)
            decodes_tiles = _decodes_tiles(device)
        # A new codec is added here and to `concurrent_loader.device.codecs.CODECS`.
        self._decoders = {} if decode_jpegs is None else {"nvjpeg": decode_jpegs}
        self._own = ("lossless",) if decodes_tiles else ()

    @property
    def codecs(self) -> Sequence[str]:
        """Names of the codecs that this GPU decodes."""
        return (*self._decoders, *self._own)

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """Returns page-locked memory, from which the GPU copies asynchronously."""
        with _translated(f"page-locking {num_bytes:,} bytes of the host's memory", self.device):
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def drain(self) -> None:
        """Waits until the stream has no work left."""
        with _translated("earlier work", self.device):
            self._stream.synchronize()

    def decode(
        self,
        codec: str,
        payloads: Sequence[torch.Tensor],
        orientations: Sequence[int],
        mode: str,
        plans: Sequence[TilePlan | None] = (),
    ) -> list[torch.Tensor]:
        """Decodes images; see `DeviceBackend.decode`."""
        decode: Callable[[], list[torch.Tensor]]
        if codec in self._own:
            decode = partial(decode_prepared, payloads, [plan for plan in plans if plan is not None], mode)
        else:
            decode = partial(self._decoders[codec], list(payloads), orientations, mode, self.device)
        with _translated(f"decoding {len(payloads)} images", self.device), torch.cuda.stream(self._stream):
            try:
                return decode()
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except (RuntimeError, ValueError) as error:
                if _is_memory(error) or _is_cuda(error):
                    raise
                raise Undecodable(_first_line(error)[:200]) from error

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        """Enqueues a copy to the GPU."""
        what = f"copying {host.numel():,} bytes to it"
        with _translated(what, self.device), torch.cuda.stream(self._stream):
            return host.to(self.device, non_blocking=True)

    def run(self, work: Callable[[], T], *, what: str) -> T:
        """Enqueues the kernels that a function launches."""
        with _translated(what, self.device), torch.cuda.stream(self._stream):
            return work()

    def ticket(self) -> Ticket:
        """Records an event."""
        with _translated("recording an event", self.device):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
            return Ticket(event)

    def wait(self, ticket: Ticket) -> None:
        """Waits for an event."""
        with _translated("earlier work", self.device):
            ticket.event.synchronize()

    def hand_over(self, ticket: Ticket, tensors: Sequence[torch.Tensor]) -> None:
        """Makes the caller's current stream wait, and keeps the memory until that stream has used it."""
        with _translated("earlier work", self.device):
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(ticket.event)
            for tensor in tensors:
                if tensor.device == self.device:
                    tensor.record_stream(stream)

    def close(self) -> None:
        """Waits for the stream; torch's pools reuse page-locked memory and GPU memory when tensors are freed."""
        if self._closed:
            return
        self.drain()
        self._closed = True
        with _streams_lock:
            _idle_streams[self.device].append(self._stream)


@cache
def _find_decoder(device: torch.device) -> _Decode | None:
    """Chooses the library by decoding a test image, once: builds without nvJPEG fail only then."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 100, 50)).save(buffer, "JPEG")
    probe = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    for load in (_load_torchcodec, _load_torchvision):
        try:
            decode = load()
            with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
                torch.cuda.current_stream(device).synchronize()
                (image,) = decode([probe], [1], "rgb", device)
        except torch.OutOfMemoryError:
            raise
        except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:
            _log.info("nvJPEG is not used through %s: %s", load.__name__.removeprefix("_load_"), error)
            continue
        if tuple(image.shape) == (3, 64, 64):
            return decode
    _log.warning("no installed library decodes JPEGs on %s, so CPU threads decode them", device)
    return None


@cache
def _decodes_tiles(device: torch.device) -> bool:
    """Returns whether the kernel for lossless images works, by decoding one, once; this also compiles it."""
    pixels = np.arange(3 * 64 * 64).reshape(3, 64, 64).astype(np.uint8)
    content, plan = prepare_image(encode(pixels), None, "rgb")
    try:
        import_module("concurrent_loader.lossless.kernel")
        with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
            payload = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
            (image,) = decode_prepared([payload], [plan], "rgb")
            is_right = bool((image.cpu() == torch.from_numpy(pixels)).all())
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # noqa: BLE001 - Triton's compiler and tools raise many kinds of errors
        _log.info("lossless images are not decoded on %s: %s: %s", device, type(error).__name__, error)
        return False
    if not is_right:
        _log.warning("the kernel for lossless images gives wrong results on %s, so CPU threads decode them", device)
    return is_right


def _load_torchcodec() -> _Decode:
    decode_jpeg = import_module("torchcodec.decoders").decode_jpeg

    def decode(
        payloads: list[torch.Tensor], orientations: Sequence[int], mode: str, device: torch.device
    ) -> list[torch.Tensor]:
        images: list[torch.Tensor] = decode_jpeg(payloads, mode=mode.upper(), device=device)  # upright
        return images

    return decode


def _load_torchvision() -> _Decode:
    import_module("torchvision.io")  # registers the operator; the Python function warns about its deprecation
    operator = torch.ops.image.decode_jpegs_cuda

    def decode(
        payloads: list[torch.Tensor], orientations: Sequence[int], mode: str, device: torch.device
    ) -> list[torch.Tensor]:
        images = operator(payloads, _TORCHVISION_MODES[mode], device)
        return [turn_upright(each, orientation) for each, orientation in zip(images, orientations, strict=True)]

    return decode


@contextmanager
def _translated(what: str, device: torch.device) -> Iterator[None]:
    """Translates errors of torch and CUDA into errors of this package."""
    try:
        yield
    except RuntimeError as error:  # the base class of OutOfMemoryError and AcceleratorError
        said = _first_line(error)[:300]
        if _is_memory(error):
            raise DeviceMemoryError(
                f"{device} does not have enough memory for {what}: {_ADVICE}", got=f"{said}; {_memory(device)}"
            ) from error
        if isinstance(error, torch.AcceleratorError) or _is_cuda(error):
            raise DeviceError(f"{device} failed at {what}", got=said) from error
        raise


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _is_memory(error: Exception) -> bool:
    said = str(error)
    known = "out of memory" in said or "cudaErrorMemoryAllocation" in said or _ALLOCATOR_FAILURE.search(said)
    return isinstance(error, torch.OutOfMemoryError) or bool(known)


def _is_cuda(error: Exception) -> bool:
    return "CUDA error" in str(error) or "cudaError" in str(error) or "CUDA driver" in str(error)


def _memory(device: torch.device) -> str:
    """Describes how full the device is, if it still answers."""
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return "free memory unknown"
    return f"{free:,} of {total:,} bytes free, {torch.cuda.memory_allocated(device):,} held by this process's tensors"
