"""The device stage on a real GPU; everything else about it is tested without one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from concurrent_loader import ConcurrentDataLoader, RandomResizedCrop, ShardDataset
from concurrent_loader.batch.batch import Batch
from concurrent_loader.decode import make_decoder
from concurrent_loader.device import DeferredDecoder, DeviceStage, Undecodable
from concurrent_loader.device.cuda import CudaBackend, resolve_cuda
from concurrent_loader.errors import DeviceMemoryError
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.storage import ShardWriter, lossless

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CROP = RandomResizedCrop(64)
NUM_SAMPLES = 96


@pytest.fixture(scope="module")
def device() -> torch.device:
    return resolve_cuda(torch.device("cuda"))


@pytest.fixture
def backend(device: torch.device) -> Iterator[CudaBackend]:
    backend = CudaBackend(device)
    yield backend
    backend.close()


@pytest.fixture
def stored_url(tmp_path: Path, encode: Callable[..., bytes]) -> str:
    with ShardWriter(str(tmp_path / "set"), columns={"image": "image", "label": "int64"}, shard_size="64KiB") as writer:
        for number in range(NUM_SAMPLES):
            options = {3: {"progressive": True}, 5: {"kind": "PNG"}, 7: {"mode": "CMYK"}, 9: {"mode": "L"}}
            size = (160 + number, 120 + 2 * number)
            writer.write({"image": encode(number, size=size, **options.get(number % 11, {})), "label": number})
    return str(tmp_path / "set")


def pinned(backend: CudaBackend, data: bytes) -> torch.Tensor:
    host = backend.host_memory(len(data))
    host.numpy()[:] = np.frombuffer(data, np.uint8)
    return host


def rotated(orientation: int) -> bytes:
    return b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0" + bytes([orientation]) + bytes(7)


@pytest.mark.parametrize("mode", ["rgb", "gray", "unchanged"])
def test_nvjpeg_decodes_what_the_cpu_decodes(backend: CudaBackend, encode: Callable[..., bytes], mode: str) -> None:
    assert backend.codecs == ("nvjpeg", "lossless")
    encoded = [
        encode(1, size=(500, 375)),
        encode(2, size=(333, 517), subsampling="4:4:4"),
        encode(3, size=(64, 64), subsampling="4:2:2"),
        encode(4, size=(401, 299), mode="L"),
    ]
    backend.drain()
    images = backend.decode("nvjpeg", [pinned(backend, data) for data in encoded], [1] * 4, mode)
    for image, data in zip(images, encoded, strict=True):
        expected = make_decoder(mode, "jpeg")(data)
        assert image.device == backend.device
        assert image.shape == expected.shape
        assert float((image.cpu().float() - expected.float()).abs().mean()) < 1.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(backend: CudaBackend, encode: Callable[..., bytes], orientation: int) -> None:
    data = encode(1, size=(96, 64), exif=rotated(orientation))
    backend.drain()
    (image,) = backend.decode("nvjpeg", [pinned(backend, data)], [orientation], "rgb")
    expected = make_decoder("rgb", "jpeg")(data)
    assert image.shape == expected.shape
    assert float((image.cpu().float() - expected.float()).abs().mean()) < 1.5


def test_a_broken_picture_is_refused_and_the_next_call_works(
    backend: CudaBackend, encode: Callable[..., bytes]
) -> None:
    whole = encode(1, size=(96, 64))
    backend.drain()
    with pytest.raises(Undecodable):
        backend.decode(
            "nvjpeg", [pinned(backend, whole), pinned(backend, b"\xff\xd8\xff\xd9" + bytes(50))], [1, 1], "rgb"
        )
    (image,) = backend.decode("nvjpeg", [pinned(backend, whole)], [1], "rgb")
    assert image.shape == (3, 64, 96)


def test_decoding_does_not_write_into_memory_that_is_in_use(device: torch.device, encode: Callable[..., bytes]) -> None:
    """nvJPEG's hardware engine ignores the stream: it wrote into blocks that queued kernels were still to read.

    On both streams work is queued that takes some 50 ms, then sums of tensors that are freed at once; then a batch is
    decoded, whose images may get their memory. Each sum must be that of what was there.
    """
    stage = DeviceStage(CudaBackend(device), clock=StageClock())
    encoded = [encode(number, size=(640, 480)) for number in range(16)]
    decoder = DeferredDecoder("image", RandomResizedCrop(224), "jpeg", seed=0, codecs=("nvjpeg",))
    busy = torch.rand(4096, 4096, device=device)
    for step in range(50):
        sums = []
        for stream in (torch.cuda.current_stream(device), stage._backend._stream):  # type: ignore[attr-defined]
            with torch.cuda.stream(stream):
                work = busy
                for _ in range(8):
                    work = work @ busy
                    work = work / work.norm()
                for _ in range(16):
                    block = torch.ones(3 * 480 * 640, dtype=torch.uint8, device=device)
                    torch.cuda._sleep(100_000)
                    sums.append(block.sum(dtype=torch.int64))
                    del block
        prepared = decoder.decoders(0, np.arange(16), [""] * 16)
        images = [prepare(data) for prepare, data in zip(prepared, encoded, strict=True)]
        stage.hand_over(stage.stage(Batch({"image": decoder.column(images)}, step=step)))
        torch.cuda.synchronize(device)
        assert [int(each) for each in sums] == [3 * 480 * 640] * 32
    stage.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_gives_what_it_gives_on_the_cpu(stored_url: str, device: torch.device, num_workers: int) -> None:
    arguments = {"batch_size": 16, "shuffle": True, "seed": 1, "decode": {"image": CROP}}
    with ShardDataset(stored_url) as dataset:
        expected = list(ConcurrentDataLoader(dataset, **arguments))
        loader = ConcurrentDataLoader(dataset, **arguments, device="cuda", num_workers=num_workers)
        for one, other in zip(loader, expected, strict=True):
            assert one["image"].device == device
            assert one["label"].tolist() == other["label"].tolist()
            assert float((one["image"].cpu().float() - other["image"].float()).abs().mean()) < 2
        stats = loader.stats
        assert stats.num_device_decoded + stats.num_cpu_decoded == NUM_SAMPLES
        assert stats.num_device_decoded > NUM_SAMPLES // 2
        assert stats.wait_s == pytest.approx(
            sum(value for name, value in stats.to_dict().items() if name.startswith("wait_") and name != "wait_s")
        )


def lossless_pixels(number: int, channels: int) -> np.ndarray:
    y, x = np.mgrid[:200, :700]
    soft = [120 + 60 * np.sin((x + number) / 13 + each) + 40 * np.cos(y / 9 - number) for each in range(channels)]
    noise = np.random.default_rng(number).normal(0, number % 3, (channels, 200, 700))
    return (np.stack(soft) + noise).clip(0, 255).astype(np.uint8)


@pytest.fixture
def lossless_url(tmp_path: Path) -> str:
    noise = np.random.default_rng(0).integers(0, 256, (3, 200, 700)).astype(np.uint8)  # stored as it is
    with ShardWriter(str(tmp_path / "lossless"), columns={"image": "image/lossless", "label": "int64"}) as writer:
        for number in range(NUM_SAMPLES):
            pixels = noise if number % 16 == 7 else lossless_pixels(number, 1 + number % 4)
            writer.write({"image": lossless.encode(pixels, compress=number % 2 == 0), "label": number})
    return str(tmp_path / "lossless")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("how", "difference"), [("rgb", 0), ("gray", 0), (CROP, 1)])
def test_lossless_pictures_are_those_of_the_cpu(
    lossless_url: str, device: torch.device, num_workers: int, how: str | RandomResizedCrop, difference: int
) -> None:
    arguments = {"batch_size": 16, "shuffle": True, "seed": 1, "decode": {"image": how}}
    with ShardDataset(lossless_url) as dataset:
        expected = list(ConcurrentDataLoader(dataset, **arguments))
        loader = ConcurrentDataLoader(dataset, **arguments, device="cuda", num_workers=num_workers)
        for one, other in zip(loader, expected, strict=True):
            assert one["image"].device == device
            assert one["label"].tolist() == other["label"].tolist()
            assert int((one["image"].cpu().int() - other["image"].int()).abs().max()) <= difference
        assert (loader.stats.num_device_decoded, loader.stats.num_cpu_decoded) == (NUM_SAMPLES, 0)


def test_lossless_pictures_and_jpegs_in_one_column(backend: CudaBackend, encode: Callable[..., bytes]) -> None:
    """nvJPEG heeds no stream, the kernel does: batch after batch, nothing may be written to too early."""
    stage = DeviceStage(backend, clock=StageClock())
    encoded = [encode(number, size=(700, 200)) for number in range(4)]
    encoded += [lossless.encode(lossless_pixels(number, 3)) for number in range(4)]
    decoder = DeferredDecoder("image", "rgb", "bytes", seed=0, codecs=backend.codecs)
    staged = []
    for step in range(20):
        prepared = decoder.decoders(0, np.arange(8), [""] * 8)
        images = [prepare(data) for prepare, data in zip(prepared, encoded, strict=True)]
        staged.append(stage.hand_over(stage.stage(Batch({"image": decoder.column(images)}, step=step)))["image"])
    decode = make_decoder("rgb", "jpeg")
    for images in staged:
        for number in range(4):
            assert float((images[number].cpu().float() - decode(encoded[number]).float()).abs().mean()) < 1.5
            assert np.array_equal(images[4 + number].cpu().numpy(), lossless_pixels(number, 3))


def test_batches_are_whole_on_the_consumer_s_own_stream(stored_url: str, device: torch.device) -> None:
    with ShardDataset(stored_url) as dataset:
        expected = {}
        for batch in ConcurrentDataLoader(dataset, batch_size=16, decode={"image": CROP}, device="cuda"):
            torch.cuda.synchronize(device)
            expected[batch.step] = batch["image"].sum(dtype=torch.int64).item()
        sums = {}
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            for batch in ConcurrentDataLoader(dataset, batch_size=16, decode={"image": CROP}, device="cuda"):
                torch.cuda._sleep(10_000_000)  # the batch's memory must not be given away meanwhile
                sums[batch.step] = batch["image"].sum(dtype=torch.int64)
                del batch
        assert {step: int(each) for step, each in sums.items()} == expected


def test_out_of_memory_is_an_error_that_says_what_to_do_and_leaves_nothing(
    stored_url: str, device: torch.device
) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction((total - free + (8 << 20)) / total, device)
    try:
        with ShardDataset(stored_url) as dataset:
            loader = ConcurrentDataLoader(
                dataset, batch_size=NUM_SAMPLES, decode={"image": RandomResizedCrop(1024)}, device="cuda"
            )
            with pytest.raises(DeviceMemoryError) as caught:
                next(iter(loader))
            assert "batch_size" in str(caught.value)
            torch.cuda.set_per_process_memory_fraction(1.0, device)
            gc.collect()
            assert torch.cuda.memory_allocated(device) <= before + (1 << 20)
            batch = next(iter(ConcurrentDataLoader(dataset, batch_size=8, decode={"image": CROP}, device="cuda")))
            assert batch["image"].shape == (8, 3, 64, 64)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def test_an_epoch_leaves_no_memory_and_no_thread(stored_url: str, device: torch.device) -> None:
    def epoch() -> None:
        with ShardDataset(stored_url) as dataset:
            for batch in ConcurrentDataLoader(dataset, batch_size=16, decode={"image": CROP}, device="cuda"):
                assert batch["image"].is_cuda

    epoch()
    gc.collect()
    before, threads = torch.cuda.memory_allocated(device), threading.active_count()
    kept = torch.cuda.memory_reserved(device)
    for _ in range(3):
        epoch()
    gc.collect()
    assert torch.cuda.memory_allocated(device) == before
    assert torch.cuda.memory_reserved(device) <= 1.5 * kept  # an epoch uses what the one before has left
    assert threading.active_count() == threads
