"""Run by test_kernel.py: the kernel in Triton's interpreter, or compiled for a GPU that is not there.

Its argument says which; its one line of output is JSON.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from concurrent_loader.decode import Box
from storage.lossless import encode

SIZES = [(3, 70, 65), (1, 64, 64), (4, 9, 65), (3, 1, 1), (2, 9, 70), (3, 5, 530)]


def pictures() -> list[np.ndarray]:
    made = []
    for at, (channels, height, width) in enumerate(SIZES):
        dice = np.random.default_rng(at)
        y, x = np.mgrid[:height, :width]
        soft = [100 + 60 * np.sin(x / 13 + each) + 40 * np.cos(y / 9 - each) for each in range(channels)]
        noise = dice.normal(0, (0, 2, 9)[at % 3], (channels, height, width))
        made.append((np.stack(soft) + noise).clip(0, 255).astype(np.uint8))
    made.append(np.random.default_rng(9).integers(0, 256, (3, 40, 40)).astype(np.uint8))  # stored as it is
    slope = np.arange(64, dtype=np.uint8)
    made.append(np.broadcast_to(slope[:, None] + slope[None, :], (3, 64, 64)).copy())  # what each predictor is best at
    made.append(np.broadcast_to(slope[:, None] * 7, (1, 64, 64)).copy())
    return made


def interpret() -> dict[str, Any]:
    from concurrent_loader.lossless import decode_batch, decode_crops

    images = pictures()
    files = [encode(image, compress=at % 2 == 0) for at, image in enumerate(images)]
    whole = decode_batch(files, alpha=True, kernel=True)
    same = [np.array_equal(found.numpy(), image) for image, found in zip(images, whole, strict=True)]
    same += [
        np.array_equal(found.numpy(), images[at][:channels])
        for at, channels in ((2, 3), (4, 1))
        for found in decode_batch([files[at]], kernel=True)
    ]
    boxes = [
        Box(h // 3, w // 4, max(1, h // 2), max(1, w // 2), at % 2 == 0)
        for at, (_, h, w) in enumerate(image.shape for image in images)
    ]
    for image, box, found in zip(images, boxes, decode_batch(files, boxes, alpha=True, kernel=True), strict=True):
        part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
        same.append(np.array_equal(found.numpy(), part))
    wanted = decode_crops(files[:3], boxes[:3], (8, 6), kernel=False)
    found = decode_crops(files[:3], boxes[:3], (8, 6), kernel=True)
    return {"same": same, "largest": (wanted.int() - found.int()).abs().max().item(), "shape": list(found.shape)}


def compile_for(capability: int) -> dict[str, int]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from concurrent_loader.lossless import kernel

    made = triton.compile(
        ASTSource(
            fn=kernel.decode_tiles_kernel, signature={"facts": "*i64", "data": "*u8", "out": "*u8"}, constexprs={}
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": kernel.NUM_WARPS},
    )
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", said.stdout)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(interpret() if sys.argv[1] == "interpret" else compile_for(int(sys.argv[1]))))
