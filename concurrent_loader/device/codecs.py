"""Decides which images a GPU decodes: on the CPU, in the decode threads, from a few bytes of each file.

An image that the decoder of the GPU refuses fails the call for the whole batch. Images that are not certain to be
accepted are therefore decoded by CPU threads. This module lists the codecs of devices and what each accepts; the
backend (`concurrent_loader.device.backend`) decodes. All functions are pure, because worker processes also call them
and never touch the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from concurrent_loader.decode import Box, ImageHeader
from concurrent_loader.decode.header import Buffer
from concurrent_loader.lossless import TilePlan, prepare_image

__all__ = ["CODECS", "Codec", "screen", "why_not_lossless", "why_not_nvjpeg"]

_TAIL_BYTES = 1024  # the end marker must be in the last bytes; some cameras append data after it
_LUMA = frozenset({(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)})  # with chroma 1 x 1: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1


@dataclass(frozen=True, slots=True)
class Codec:
    """Describes a codec that some device decodes.

    Attributes:
        name: Name of the codec in the backend.
        format: Image format, from `ImageHeader`.
        reads: Memory from which the decoder reads encoded bytes: page-locked ``"host"`` memory or ``"device"`` memory.
            Decoders that read device memory are kernels on the stream.
        why_not: Function of (bytes, header, mode) that returns why the CPU must decode the image; empty if the device
            can.
        prepare: Function of (bytes, box, mode) that returns the bytes for the device and the plan for the CPU; only the
            box is then decoded. None if the encoded bytes are copied unchanged.
    """

    name: str
    format: str
    reads: Literal["host", "device"]
    why_not: Callable[[Buffer, ImageHeader, str], str]
    prepare: Callable[[Buffer, Box | None, str], tuple[Buffer, TilePlan]] | None = None


def why_not_nvjpeg(data: Buffer, header: ImageHeader, mode: str) -> str:
    """Returns why the CPU must decode a JPEG; empty if nvJPEG can.

    nvJPEG's engine decodes baseline JPEGs with 8 bits and one or three components. It treats three components as YCbCr
    in all cases, and detects fewer truncated files than libjpeg does.
    """
    if not header.baseline:
        return "not baseline, or not 8 bits"
    if header.several_scans:
        return "several scans"
    if header.num_channels not in (1, 3):
        return "neither one nor three components"
    view = memoryview(data).cast("B")
    if bytes(view[-_TAIL_BYTES:]).rfind(b"\xff\xd9") < 0:
        return "no end marker"
    if header.num_channels == 1:
        return ""
    luma, *chroma = header.sampling
    if luma not in _LUMA or any(each != (1, 1) for each in chroma):
        return "unusual subsampling"
    # Without a JFIF or Adobe marker, components with equal sampling may be RGB.
    if header.transform == 0 or (header.transform is None and luma == (1, 1) and bytes(view[6:10]) != b"JFIF"):
        return "possibly RGB"
    return ""


def why_not_lossless(data: Buffer, header: ImageHeader, mode: str) -> str:
    """Returns why the CPU must decode a lossless image; damage is detected when the image is prepared."""
    return "not 8 bits" if header.bits != 8 else ""


# A new codec of a device is added here and to its backend.
CODECS: Mapping[str, Codec] = {
    "nvjpeg": Codec("nvjpeg", "jpeg", "host", why_not_nvjpeg),
    "lossless": Codec("lossless", "lossless", "device", why_not_lossless, prepare_image),
}


def screen(data: Buffer, header: ImageHeader, mode: str, codecs: Sequence[Codec]) -> Codec | None:
    """Returns the codec of the device that decodes an image; None if the CPU decodes it.

    Args:
        data: Encoded image.
        header: Header of the image.
        mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``.
        codecs: Codecs of the device.
    """
    for codec in codecs:
        if codec.format == header.format and not codec.why_not(data, header, mode):
            return codec
    return None
