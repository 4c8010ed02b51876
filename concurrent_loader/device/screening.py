"""Which pictures an accelerator decodes: decided on the CPU, in the decode threads, from a few bytes of each file.

One picture that the accelerator's decoder refuses fails the call for the whole batch, so what it does not surely take
goes to CPU threads instead. The encodings that a device decodes are named here, each with what it takes; how they are
decoded is the backend's (`concurrent_loader.device.backend`). Worker processes, which never touch the device, screen as
well: all of this is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from concurrent_loader.decode import Box, ImageHeader
from concurrent_loader.decode.header import Buffer
from concurrent_loader.lossless import TilePlan, prepare_picture

__all__ = ["CODECS", "Codec", "screen", "why_not_lossless", "why_not_nvjpeg"]

_TAIL_BYTES = 1024  # in which the end marker must lie: some cameras add bytes of their own after it
_LUMA = frozenset({(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)})  # chroma being 1 x 1: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1


@dataclass(frozen=True, slots=True)
class Codec:
    """An encoding that some device decodes.

    Attributes:
        name: As the backend knows it.
        format: Of `ImageHeader`.
        reads: Where the decoder wants the encoded bytes: in page-locked memory of the host, or on the device. Those
            that read there are kernels, which heed the stream.
        why_not: (bytes, header, mode) → why this picture is for the CPU; empty if the device takes it.
        prepare: (bytes, box, mode) → what goes to the device in their place, and what the CPU keeps to know of it;
            then no more than the box is decoded. None where the bytes go as they are.
    """

    name: str
    format: str
    reads: Literal["host", "device"]
    why_not: Callable[[Buffer, ImageHeader, str], str]
    prepare: Callable[[Buffer, Box | None, str], tuple[Buffer, TilePlan]] | None = None


def why_not_nvjpeg(data: Buffer, header: ImageHeader, mode: str) -> str:
    """Says why a JPEG is for the CPU; empty if nvJPEG takes it.

    nvJPEG's engine decodes baseline JPEGs of 8 bits and one or three components. It reads three components as YCbCr,
    whatever they are, and says little of files that break off: libjpeg says more.
    """
    if not header.baseline:
        return "not baseline, or not 8 bits"
    if header.several_scans:
        return "several scans"
    if header.num_channels not in (1, 3):
        return "neither one nor three components"
    view = memoryview(data).cast("B")
    if bytes(view[-_TAIL_BYTES:]).rfind(b"\xff\xd9") < 0:
        return "no end"
    if header.num_channels == 1:
        return ""
    luma, *chroma = header.sampling
    if luma not in _LUMA or any(each != (1, 1) for each in chroma):
        return "unusual subsampling"
    # Without JFIF's or Adobe's word for it, components that are all sampled alike may be RGB.
    if header.transform == 0 or (header.transform is None and luma == (1, 1) and bytes(view[6:10]) != b"JFIF"):
        return "perhaps RGB"
    return ""


def why_not_lossless(data: Buffer, header: ImageHeader, mode: str) -> str:
    """Says why a lossless picture is for the CPU; what is damaged, preparing it finds."""
    return "not 8 bits" if header.bits != 8 else ""


# Whatever else a device learns to decode is added here, and to its backend.
CODECS: Mapping[str, Codec] = {
    "nvjpeg": Codec("nvjpeg", "jpeg", "host", why_not_nvjpeg),
    "lossless": Codec("lossless", "lossless", "device", why_not_lossless, prepare_picture),
}


def screen(data: Buffer, header: ImageHeader, mode: str, codecs: Sequence[Codec]) -> Codec | None:
    """Says which of a device's codecs decodes a picture; None is the CPU.

    Args:
        data: The encoded bytes.
        header: What their beginning says.
        mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``.
        codecs: That the device has.
    """
    for codec in codecs:
        if codec.format == header.format and not codec.why_not(data, header, mode):
            return codec
    return None
