from collections.abc import Sequence

from typing_extensions import Buffer

def pack(
    pixels: Buffer, shape: tuple[int, int, int, int], group: tuple[int, int, int], /
) -> tuple[bytes, bytes, bytes, bytes]: ...
def unpack(
    data: Buffer,
    groups: Buffer,
    coded: Sequence[Buffer],
    out: Buffer,
    shape: tuple[int, int, int, int],
    box: tuple[int, int, int, int],
    channels: int,
    /,
) -> None: ...
def index(
    data: Buffer, groups: Buffer, coded: Sequence[Buffer], out: Buffer, shape: tuple[int, int, int, int], /
) -> None: ...
