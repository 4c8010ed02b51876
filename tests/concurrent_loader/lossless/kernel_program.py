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
from concurrent_loader.storage.lossless import encode

SIZES = [(3, 70, 65), (1, 64, 64), (4, 9, 65), (3, 1, 1), (2, 9, 70), (3, 5, 530)]


def make_images() -> list[np.ndarray]:
    made = []
    for at, (channels, height, width) in enumerate(SIZES):
        rng = np.random.default_rng(at)
        y, x = np.mgrid[:height, :width]
        soft = [100 + 60 * np.sin(x / 13 + each) + 40 * np.cos(y / 9 - each) for each in range(channels)]
        noise = rng.normal(0, (0, 2, 9)[at % 3], (channels, height, width))
        made.append((np.stack(soft) + noise).clip(0, 255).astype(np.uint8))
    made.append(np.random.default_rng(9).integers(0, 256, (3, 40, 40)).astype(np.uint8))  # stored as it is
    slope = np.arange(64, dtype=np.uint8)
    made.append(np.broadcast_to(slope[:, None] + slope[None, :], (3, 64, 64)).copy())  # what each predictor is best at
    made.append(np.broadcast_to(slope[:, None] * 7, (1, 64, 64)).copy())
    return made


def shifted(shape: tuple[int, int, int], number: int) -> list[np.ndarray]:
    y, x = np.mgrid[: shape[1], : shape[2]]
    return [
        np.stack([100 + 60 * np.sin(x / 13 + each + at) + 40 * np.cos(y / 9 - at) for each in range(shape[0])]).astype(
            np.uint8
        )
        for at in range(number)
    ]


def interpret() -> dict[str, Any]:
    from concurrent_loader.lossless import decode_batch, decode_crops

    images = make_images()
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


def stage() -> dict[str, Any]:
    """A batch from decode threads' hands through the device stage, with the kernel in the place of a decoder."""
    sys.path.append(str(Path(__file__).parents[1] / "device"))
    from fake_device import FakeDevice

    from concurrent_loader.augment import CroppingDecoder, RandomResizedCrop
    from concurrent_loader.batch.batch import Batch
    from concurrent_loader.decode import make_decoder
    from concurrent_loader.device import DeferredDecoder, DeviceStage
    from concurrent_loader.lossless import decode_prepared
    from concurrent_loader.stats.loader_stats import StageClock

    class Device(FakeDevice):
        decode_tiles = staticmethod(decode_prepared)

    def made(how: Any, files: list[bytes]) -> torch.Tensor:
        decoder = DeferredDecoder("image", how, "image/lossless", seed=3, codecs=("nvjpeg", "lossless"))
        prepare = decoder.decoders(0, np.arange(len(files)), [""] * len(files))
        staged = [each(file) for each, file in zip(prepare, files, strict=True)]
        device = Device()
        stage = DeviceStage(device, clock=StageClock())
        batch = Batch({"image": decoder.column(staged), "label": torch.arange(len(files))})
        images: torch.Tensor = stage.hand_over(stage.stage(batch))["image"]
        assert not device.wrong
        assert device.calls == [len(files)]
        stage.close()
        return images

    same = []
    noise = np.random.default_rng(9).integers(0, 256, (3, 9, 65)).astype(np.uint8)  # stored as it is
    alike = [encode(image, compress=at % 2 == 0) for at, image in enumerate([*shifted((3, 9, 65), 2), noise])]
    gray = [encode(image) for image in shifted((1, 9, 65), 1)]
    alpha = [encode(image) for image in shifted((4, 9, 65), 2)]
    for mode, files in (("rgb", alike + gray + alpha), ("gray", alike + gray + alpha), ("unchanged", alpha)):
        decode = make_decoder(mode, "image/lossless")
        same += [torch.equal(one, decode(file)) for one, file in zip(made(mode, files), files, strict=True)]
    files = [encode(image) for image in make_images() if image.shape[2] > 1]
    crop = RandomResizedCrop(8)
    expected = CroppingDecoder(crop, "image/lossless", seed=3).decoders(0, np.arange(len(files)))
    difference = [
        (one.int() - decode(file).int()).abs().max().item()
        for one, decode, file in zip(made(crop, files), expected, files, strict=True)
    ]
    largest = max(difference)
    return {"same": same, "largest": largest}


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
    programs = {"interpret": interpret, "stage": stage}
    print(json.dumps(programs[sys.argv[1]]() if sys.argv[1] in programs else compile_for(int(sys.argv[1]))))
