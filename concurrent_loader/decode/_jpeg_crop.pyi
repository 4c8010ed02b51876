from typing_extensions import Buffer

class Unsupported(Exception): ...

def crop(
    data: Buffer,
    out: Buffer,
    box: tuple[float, float, float, float],
    orientation: int,
    flip: bool,
    max_pixels: float,
    fast_scale: bool,
    /,
) -> None: ...
