"""Run by test_fused.py: the kernel in Triton's interpreter, or compiled for a GPU that is not there.

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

import torch

SIZES = [(3, 50, 40), (1, 90, 13), (4, 17, 120), (3, 5, 5), (3, 64, 64), (3, 1, 1)]


def case(seed: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Pictures inside memory that is full of other values, of three kinds of strides, with boxes of all kinds."""
    random = torch.Generator().manual_seed(seed)
    images = []
    for at, (channels, height, width) in enumerate(SIZES):
        shape = (channels, height + 2, width + 2) if at % 2 else (height + 2, width + 2, channels)
        around = torch.full(shape, 255, dtype=torch.uint8)
        image = around[:, 1:-1, 1:-1] if at % 2 else around.permute(2, 0, 1)[:, 1:-1, 1:-1]
        image.copy_(torch.randint(0, 100, image.shape, generator=random))
        images.append(image)
    sides = torch.tensor([image.shape[1:] for image in images], dtype=torch.float64)
    extent = sides * torch.rand(sides.shape, generator=random, dtype=torch.float64).clamp(min=0.01)
    start = (sides - extent) * torch.rand(sides.shape, generator=random, dtype=torch.float64)
    boxes = torch.cat([start, extent], 1)
    if seed % 2:
        boxes = boxes.round()
        boxes[:, 2:] = boxes[:, 2:].clamp(min=1)
        boxes[:, :2] = torch.minimum(boxes[:, :2], sides - boxes[:, 2:])
    if seed == 0:
        boxes = torch.cat([torch.zeros_like(sides), sides], 1)
    return images, boxes, torch.arange(len(images)) % 2 == 1


def interpret() -> dict[str, Any]:
    from concurrent_loader.augment.gpu_crop import crop_resize

    results = []
    for seed, options in enumerate(
        [
            {"size": (40, 37)},
            {"size": 20},
            {"size": (7, 33), "channels_last": True},
            {"size": 16, "dtype": torch.float32, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)},
            {"size": 16, "dtype": torch.float16, "channels_last": True},
        ]
    ):
        images, boxes, flips = case(seed)
        wanted = crop_resize(images, boxes, flips, kernel=False, **options)
        found = crop_resize(images, boxes, flips, kernel=True, **options)
        # In levels of 255, or what is one after normalisation.
        level = 1.0 if wanted.dtype == torch.uint8 else 1 / (255 * min(options.get("std", (1,))))
        errors = (wanted.float() - found.float()).abs() / level
        results.append(
            {
                "largest": errors.max().item(),
                "differing": (errors > 0.01).float().mean().item(),
                "same_layout": wanted.stride() == found.stride(),
                "brightest": wanted.max().item() if wanted.dtype == torch.uint8 else 0,
            }
        )
    return {"results": results}


def compile_for(capability: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from concurrent_loader.augment import gpu_crop_kernel

    kernel = gpu_crop_kernel.crop_resize_kernel
    facts = {}
    for kind in ("u8", "fp16", "bf16", "fp32"):
        signature = {"facts": "*i64", "places": "*fp32", "out": f"*{kind}"}
        signature |= dict.fromkeys(kernel.arg_names[3:9], "i32")
        signature |= dict.fromkeys(kernel.arg_names[9:15], "fp32")
        signature |= {"BLOCK_Y": "constexpr", "BLOCK_X": "constexpr"}
        constants = {"BLOCK_Y": gpu_crop_kernel.BLOCK_Y, "BLOCK_X": gpu_crop_kernel.BLOCK_X}
        made = triton.compile(
            ASTSource(fn=kernel, signature=signature, constexprs=constants),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": gpu_crop_kernel.NUM_WARPS, "enable_fp_fusion": True},
        )
        facts[kind] = usage(made.asm["cubin"])
    return facts


def usage(program: bytes) -> dict[str, int]:
    """Registers a thread, and bytes a thread that did not fit into them."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program)
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", said.stdout)}


if __name__ == "__main__":
    print(json.dumps(interpret() if sys.argv[1] == "interpret" else compile_for(int(sys.argv[1]))))
