"""The CUDA backend without a GPU: torch's streams and events are replaced, the device is the CPU, the rest is real."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from fake_device import FakeDevice

from concurrent_loader.augment import Augment, Normalize, RandomResizedCrop
from concurrent_loader.batch.batch import Batch
from concurrent_loader.decode import make_decoder
from concurrent_loader.device import DeferredDecoder, DeviceStage, Undecodable, cuda
from concurrent_loader.device.cuda import CudaBackend, _translated
from concurrent_loader.errors import DecodeError, DeviceError, DeviceMemoryError
from concurrent_loader.lossless import TilePlan
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.storage import lossless

CPU = torch.device("cpu")


class Stream:
    def __init__(self, log: list[str], name: str) -> None:
        self._log, self.name = log, name

    def synchronize(self) -> None:
        self._log.append(f"{self.name} is drained")

    def wait_event(self, event: Event) -> None:
        self._log.append(f"{self.name} waits for {event.of}")


class Event:
    def __init__(self, log: list[str]) -> None:
        self._log, self.of = log, ""

    def record(self, stream: Stream) -> None:
        self.of = f"an event of {stream.name}"
        self._log.append(f"event of {stream.name}")

    def synchronize(self) -> None:
        self._log.append(f"waited for {self.of}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was asked of CUDA, in order."""
    log: list[str] = []

    def on(stream: Stream) -> AbstractContextManager[None]:
        log.append(f"on {stream.name}")
        return nullcontext()

    def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
        log.append(f"recorded for {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(log, "ours"))
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(log, "the consumer's"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000, 2_000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1_000)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    cuda._find_decoder.cache_clear()
    cuda._decodes_tiles.cache_clear()
    monkeypatch.setattr(cuda, "_idle_streams", defaultdict(list))
    yield log
    cuda._find_decoder.cache_clear()
    cuda._decodes_tiles.cache_clear()


def test_a_batch_goes_all_the_way(log: list[str], encode: Callable[..., bytes]) -> None:
    backend = CudaBackend(CPU, pinned=False)
    assert backend.codecs == ("nvjpeg",)
    log.clear()
    how = Augment(RandomResizedCrop(16), Normalize((0.5,) * 3, (0.25,) * 3))
    decoder = DeferredDecoder("image", how, "image", seed=0, codecs=backend.codecs)
    prepared = decoder.decoders(0, np.arange(3), [""] * 3)
    encoded = [encode(0), encode(1, kind="PNG"), encode(2)]
    images = [prepare(data) for prepare, data in zip(prepared, encoded, strict=True)]
    stage = DeviceStage(backend, clock=StageClock())
    made = stage.hand_over(stage.stage(Batch({"image": decoder.column(images), "label": torch.arange(3)})))
    assert made["image"].shape == (3, 3, 16, 16)
    assert made["label"].tolist() == [0, 1, 2]
    assert log == [
        "ours is drained", "on ours",  # decoding
        "on ours",  # the copy
        "on ours",  # crops
        "event of ours",
        "the consumer's waits for an event of ours", "recorded for the consumer's", "recorded for the consumer's",
    ]  # fmt: skip
    for _ in range(2):
        stage.stage(Batch({"label": torch.arange(3)}))
    assert log[-4:-2] == ["waited for an event of ours", "on ours"]
    stage.close()
    assert log[-1] == "ours is drained"


def test_an_epoch_has_the_stream_of_the_one_before_and_two_at_once_have_two(log: list[str]) -> None:
    first, second = CudaBackend(CPU), CudaBackend(CPU)
    assert first._stream is not second._stream
    first.close()
    first.close()
    third, fourth = CudaBackend(CPU), CudaBackend(CPU)
    assert third._stream is first._stream
    assert fourth._stream not in (first._stream, second._stream)


def test_a_stream_that_cannot_be_drained_is_nobody_s_any_more(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    broken = CudaBackend(CPU)
    monkeypatch.setattr(broken._stream, "synchronize", fail)
    with pytest.raises(DeviceError):
        broken.close()
    assert CudaBackend(CPU)._stream is not broken._stream


def test_pictures_are_those_of_the_library(log: list[str], encode: Callable[..., bytes]) -> None:
    backend = CudaBackend(CPU, pinned=False)
    data = encode(1)
    payload = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for mode in ("rgb", "gray", "unchanged"):
        (image,) = backend.decode("nvjpeg", [payload], [1], mode)
        assert torch.equal(image, make_decoder(mode, "jpeg")(data))
    with pytest.raises(Undecodable):
        backend.decode("nvjpeg", [payload, payload[:100]], [1, 1], "rgb")


def test_torchvision_is_the_second_choice_and_does_not_turn_pictures(
    log: list[str], monkeypatch: pytest.MonkeyPatch, encode: Callable[..., bytes]
) -> None:
    class Operators:
        @staticmethod
        def decode_jpegs_cuda(payloads: list[torch.Tensor], mode: int, device: torch.device) -> list[torch.Tensor]:
            return [torch.ops.image.decode_jpeg(each, mode, False) for each in payloads]

    load = cuda.import_module
    real = torch.ops.image
    load("torchvision.io")

    def without_torchcodec(name: str) -> Any:
        if name.startswith("torchcodec"):
            raise ImportError(name)
        return load(name)

    Operators.decode_jpeg = staticmethod(real.decode_jpeg)  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda, "import_module", without_torchcodec)
    monkeypatch.setattr(torch.ops, "image", Operators)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    data = encode(1, exif=exif)
    payload = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    (image,) = CudaBackend(CPU, pinned=False).decode("nvjpeg", [payload], [6], "rgb")
    monkeypatch.undo()
    assert torch.equal(image, make_decoder("rgb", "jpeg")(data))


def test_without_a_library_the_cpu_decodes_everything(
    log: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(cuda, "import_module", nothing)
    assert CudaBackend(CPU, pinned=False).codecs == ()
    assert "CPU threads decode them" in caplog.text


@pytest.mark.parametrize(
    "raised",
    [
        torch.OutOfMemoryError("Allocation on device"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Failed to decode batch: 5"),
        RuntimeError("nvjpegDecode failed: 5"),
        RuntimeError("Failed to initialize batch decoding: 5"),
        RuntimeError("Failed to transfer jpeg to device: 5"),
    ],
)
def test_no_memory_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000, 143_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 142_000_000_000)
    with pytest.raises(DeviceMemoryError) as caught, _translated("decoding 256 images", torch.device("cuda", 0)):
        raise raised
    said = str(caught.value)
    assert "decoding 256 images" in said
    assert "batch_size" in said
    assert "1,000 of 143,000,000,000 bytes free" in said
    assert caught.value.__cause__ is raised


def test_a_device_that_does_not_even_say_how_full_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> Any:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    with pytest.raises(DeviceMemoryError, match="free memory unknown"), _translated("a copy", torch.device("cuda", 0)):
        raise torch.OutOfMemoryError("Allocation on device")


def test_what_else_cuda_refuses_and_what_is_not_its_fault() -> None:
    device = torch.device("cuda", 0)
    with pytest.raises(DeviceError, match="failed at a copy") as caught, _translated("a copy", device):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert not isinstance(caught.value, DeviceMemoryError)
    for other in (RuntimeError("shapes differ"), Undecodable("status 3"), DecodeError("damaged")):
        with pytest.raises(type(other)) as passed, _translated("a copy", device):
            raise other
        assert passed.value is other


def on_the_cpu(payloads: list[torch.Tensor], plans: list[TilePlan], mode: str) -> list[torch.Tensor]:
    """What the kernel makes."""
    return FakeDevice().decode_tiles(payloads, plans, mode)


def test_lossless_pictures_take_the_kernel_where_it_works(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "decode_prepared", on_the_cpu)
    backend = CudaBackend(CPU, pinned=False)
    assert backend.codecs == ("nvjpeg", "lossless")
    log.clear()
    pixels = np.random.default_rng(1).normal(100, 3, (3, 70, 90)).astype(np.uint8)
    decoder = DeferredDecoder("image", "rgb", "image/lossless", seed=0, codecs=backend.codecs)
    (prepare,) = decoder.decoders(0, np.arange(1), [""])
    stage = DeviceStage(backend, clock=StageClock())
    made = stage.hand_over(stage.stage(Batch({"image": decoder.column([prepare(lossless.encode(pixels))])})))
    assert np.array_equal(made["image"][0].numpy(), pixels)
    assert log[:4] == ["on ours", "on ours", "on ours", "event of ours"]  # copied, decoded, put together; not drained


def wrong(payloads: list[torch.Tensor], plans: list[TilePlan], mode: str) -> list[torch.Tensor]:
    return [torch.zeros(plan.shape, dtype=torch.uint8) for plan in plans]


def absent(*_: Any) -> list[torch.Tensor]:
    raise ImportError("no Triton")


def uncompiled(*_: Any) -> list[torch.Tensor]:
    raise AssertionError("a compiler's error")


@pytest.mark.parametrize(("decode", "level"), [(wrong, "WARNING"), (absent, "INFO"), (uncompiled, "INFO")])
def test_where_the_kernel_does_not_work_the_cpu_decodes_lossless_pictures(
    log: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, decode: Any, level: str
) -> None:
    monkeypatch.setattr(cuda, "decode_prepared", decode)
    with caplog.at_level("INFO", cuda.__name__):
        assert CudaBackend(CPU, pinned=False).codecs == ("nvjpeg",)
    assert [record.levelname for record in caplog.records if "lossless" in record.getMessage()] == [level]


def test_a_gpu_that_fails_is_not_taken_for_one_without_a_kernel(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("Allocation on device")

    monkeypatch.setattr(cuda, "decode_prepared", fail)
    with pytest.raises(DeviceMemoryError):
        CudaBackend(CPU, pinned=False)


def test_an_error_of_cuda_is_not_blamed_on_a_picture(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CudaBackend(CPU, pinned=False)
    payload = torch.zeros(10, dtype=torch.uint8)
    for raised, expected in (
        (torch.OutOfMemoryError("Allocation on device"), DeviceMemoryError),
        (RuntimeError("Failed to decode batch: 5"), DeviceMemoryError),
        (RuntimeError("Failed to synchronize: CUDA error: launch failure"), DeviceError),
        (RuntimeError("Failed to decode batch: 3"), Undecodable),
        (ValueError(), Undecodable),
    ):

        def fail(*_: Any, raised: Exception = raised) -> list[torch.Tensor]:
            raise raised

        monkeypatch.setitem(backend._decoders, "nvjpeg", fail)
        with pytest.raises(expected):
            backend.decode("nvjpeg", [payload], [1], "rgb")
