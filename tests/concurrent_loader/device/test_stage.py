from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from fake_device import FakeDevice, as_of
from PIL import Image

from concurrent_loader.augment import Augment, CenterCrop, CroppingDecoder, Normalize, RandomResizedCrop
from concurrent_loader.batch.batch import Batch
from concurrent_loader.decode import make_decoder
from concurrent_loader.device import CODECS, Codec, DeferredDecoder, DeviceStage, codecs
from concurrent_loader.device import stage as stage_module
from concurrent_loader.errors import DecodeError, DeviceMemoryError
from concurrent_loader.stats.loader_stats import StageClock

CROP = RandomResizedCrop(16)


def batch_of(
    encoded: Sequence[bytes], how: str | RandomResizedCrop | CenterCrop = CROP, *, step: int = 0, **more: Any
) -> Batch:
    decoder = DeferredDecoder("image", how, "image", seed=3, codecs=("nvjpeg",))
    prepared = decoder.decoders(0, np.arange(len(encoded)), [f"shard {at}" for at in range(len(encoded))])
    images = [prepare(data) for prepare, data in zip(prepared, encoded, strict=True)]
    labels = torch.arange(len(encoded)) + 10 * step
    return Batch({"image": decoder.column(images), "label": labels, **more}, epoch=0, step=step)


def delivered(stage: DeviceStage, batch: Batch) -> Batch:
    return stage.hand_over(stage.stage(batch))


def on_the_cpu(encoded: Sequence[bytes]) -> torch.Tensor:
    decoders = CroppingDecoder(CROP, "image", seed=3).decoders(0, np.arange(len(encoded)))
    return torch.stack([decode(data) for decode, data in zip(decoders, encoded, strict=True)])


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs().mean())


@pytest.fixture
def clock() -> StageClock:
    return StageClock()


@pytest.fixture
def stage(fake: FakeDevice, clock: StageClock) -> DeviceStage:
    return DeviceStage(fake, clock=clock)


def test_pictures_are_those_of_the_cpu_in_the_batch_s_order(
    stage: DeviceStage, fake: FakeDevice, clock: StageClock, encode: Callable[..., bytes]
) -> None:
    # What the device takes, among what it does not: progressive, PNG, CMYK.
    encoded = [
        encode(0), encode(1, progressive=True), encode(2, size=(64, 50)), encode(3, kind="PNG"),
        encode(4, mode="CMYK"), encode(5, mode="L"), encode(6, size=(50, 90)),
    ]  # fmt: skip
    batch = delivered(stage, batch_of(encoded, name=[str(at) for at in range(7)], box=torch.rand(7, 4)))
    assert batch["image"].shape == (7, 3, 16, 16)
    assert difference(batch["image"], on_the_cpu(encoded)) < 1.0
    for position in (1, 3, 4):
        assert torch.equal(batch["image"][position], on_the_cpu(encoded)[position])
    assert batch["label"].tolist() == list(range(7))
    assert batch["name"] == [str(at) for at in range(7)]
    assert fake.calls == [4]
    assert not fake.wrong
    assert (clock["images decoded by the device"], clock["images decoded by the CPU"]) == (4, 3)


def test_what_happens_in_which_order(stage: DeviceStage, fake: FakeDevice, encode: Callable[..., bytes]) -> None:
    delivered(stage, batch_of([encode(0), encode(1, progressive=True)]))
    assert fake.log == ["host memory", "drain", "decode nvjpeg", "copy", "run", "ticket", "hand over"]


def test_one_copy_a_batch_and_never_of_what_the_decoder_reads_from_the_host(
    stage: DeviceStage, fake: FakeDevice, encode: Callable[..., bytes]
) -> None:
    encoded = [encode(at, size=(200, 200), quality=95) for at in range(4)]
    delivered(stage, batch_of(encoded, score=torch.rand(4)))
    (copied,) = fake.copied_bytes
    assert copied == 2 * 256  # labels and scores, each at its place


def test_a_slot_is_not_written_to_before_its_copy_is_made(stage: DeviceStage, fake: FakeDevice) -> None:
    # Nothing is decoded here, so nothing drains the stream: the ring alone keeps slots apart.
    batches = [Batch({"label": torch.full((100,), step)}, step=step) for step in range(6)]
    staged = [stage.stage(batch) for batch in batches]
    assert fake.log.count("wait") == 4
    for step, each in enumerate(staged):
        assert stage.hand_over(each)["label"].tolist() == [step] * 100
    assert not fake.wrong


def test_the_fake_notices_a_slot_that_is_written_to_too_early(fake: FakeDevice) -> None:
    stage = DeviceStage(fake, clock=StageClock())
    stage._slots.take = lambda wait: stage._slots._slots[0]  # type: ignore[method-assign]
    for step in range(3):
        stage.stage(Batch({"label": torch.full((100,), step)}, step=step))
    fake.drain()
    assert fake.wrong


def test_a_batch_is_nothing_before_the_consumer_s_stream_waits(
    stage: DeviceStage, encode: Callable[..., bytes]
) -> None:
    staged = stage.stage(batch_of([encode(1)] * 3))
    assert not staged.batch["label"].any()
    assert stage.hand_over(staged)["label"].tolist() == [0, 1, 2]


def test_the_stream_is_drained_before_each_decoding(
    stage: DeviceStage, fake: FakeDevice, encode: Callable[..., bytes]
) -> None:
    for step in range(4):
        stage.stage(batch_of([encode(step), encode(step, progressive=True)], step=step))
    assert not fake.wrong
    places = [at for at, what in enumerate(fake.log) if what.startswith("decode")]
    assert [fake.log[at - 1] for at in places] == ["drain"] * 4


@pytest.mark.parametrize("how", ["rgb", "gray", "unchanged"])
def test_whole_pictures_are_stacked(stage: DeviceStage, how: str, encode: Callable[..., bytes]) -> None:
    encoded = [encode(0), encode(1, kind="PNG"), encode(2, progressive=True)]
    images = delivered(stage, batch_of(encoded, how))["image"]
    assert torch.equal(images, torch.stack([make_decoder(how, "image")(data) for data in encoded]))


def test_16_bits_stay_16_bits(stage: DeviceStage) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(0, 60_000, 100, dtype=np.uint16).reshape(20, 30)).save(buffer, "PNG")
    images = delivered(stage, batch_of([buffer.getvalue()] * 2, "unchanged"))["image"]
    assert images.dtype == torch.uint16
    assert torch.equal(images[1], make_decoder("unchanged", "image")(buffer.getvalue()))


def test_whole_pictures_of_different_sizes_are_a_list(stage: DeviceStage, encode: Callable[..., bytes]) -> None:
    encoded = [encode(0), encode(1, size=(41, 30)), encode(2, kind="PNG")]
    images = delivered(stage, batch_of(encoded, "rgb"))["image"]
    assert isinstance(images, list)
    for image, data in zip(images, encoded, strict=True):
        assert torch.equal(image, make_decoder("rgb", "image")(data))


def test_what_the_device_refuses_the_cpu_decodes(
    stage: DeviceStage, fake: FakeDevice, clock: StageClock, encode: Callable[..., bytes]
) -> None:
    encoded = [encode(at) for at in range(9)]
    fake.refused = {as_of(torch.frombuffer(bytearray(encoded[at]), dtype=torch.uint8)) for at in (2, 7)}
    images = delivered(stage, batch_of(encoded))["image"]
    expected = on_the_cpu(encoded)
    assert difference(images, expected) < 1.0
    for position in (2, 7):
        assert torch.equal(images[position], expected[position])
    assert not fake.wrong
    assert (clock["images decoded by the device"], clock["images decoded by the CPU"]) == (7, 2)


@pytest.mark.parametrize(("how", "made_by"), [("rgb", "make_decoder"), (CROP, "make_crop_decoder")])
def test_the_cpu_decodes_it_as_the_loader_was_told(
    stage: DeviceStage, fake: FakeDevice, encode: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch,
    how: Any, made_by: str,
) -> None:  # fmt: skip
    told: list[dict[str, Any]] = []
    make = getattr(stage_module, made_by)

    def noted(*args: Any, **options: Any) -> Any:
        told.append(options)
        return make(*args, **options)

    monkeypatch.setattr(stage_module, made_by, noted)
    fake.refused = {as_of(torch.frombuffer(bytearray(encode(0)), dtype=torch.uint8))}
    limit = 1 << 40  # more than by default
    decoder = DeferredDecoder("image", how, "image", seed=3, codecs=("nvjpeg",), backend="pillow", max_pixels=limit)
    (prepare,) = decoder.decoders(0, np.arange(1), ["shard"])
    stage.stage(Batch({"image": decoder.column([prepare(encode(0))]).packed()}))
    assert told == [{"backend": "pillow", "max_pixels": limit}]


DAMAGED = b"\xff\xd8\xff" + bytes(100)


def damaged(batch: Batch, *samples: int) -> Batch:
    """A batch some of whose images turn out to be nothing after their headers have been read."""
    column = batch["image"]
    images = tuple(replace(each, data=DAMAGED) if each.sample in samples else each for each in column.images)
    return batch.with_columns({**batch, "image": replace(column, images=images)})


def test_a_broken_picture_is_named_and_the_others_are_not_blamed(
    stage: DeviceStage, encode: Callable[..., bytes]
) -> None:
    whole = damaged(batch_of([encode(at) for at in range(5)]), 3)
    with pytest.raises(DecodeError) as caught:
        stage.stage(whole)
    assert (caught.value.sample, caught.value.key, caught.value.column) == (3, "shard 3", "image")


@pytest.mark.parametrize(
    ("on_error", "broken", "labels"),
    [("skip", (1, 4), [0, 2, 3]), ("replace", (1, 4), [0, 0, 2, 3, 3]), ("replace", (0,), [1, 1, 2, 3, 4])],
)
def test_broken_pictures_are_left_out_or_replaced(
    fake: FakeDevice, encode: Callable[..., bytes], on_error: Any, broken: tuple[int, ...], labels: list[int]
) -> None:
    stage = DeviceStage(fake, clock=StageClock(), on_error=on_error)
    encoded = [encode(at) for at in range(5)]
    batch = batch_of(encoded, name=[str(at) for at in range(5)])
    batch.sample_ids = torch.arange(5) + 100
    staged = stage.stage(damaged(batch, *broken))
    made = stage.hand_over(staged)
    assert made["label"].tolist() == labels
    assert made["name"] == [str(label) for label in labels]
    assert made.sample_ids.tolist() == [100 + label for label in labels]
    assert difference(made["image"], on_the_cpu(encoded)[labels]) < 1.0
    assert [(error.sample, error.column) for error in staged.errors] == [(sample, "image") for sample in broken]
    assert not fake.wrong


@pytest.mark.parametrize(("on_error", "num_samples"), [("skip", 1), ("replace", 3)])
@pytest.mark.parametrize(
    ("how", "shape"),
    [(CROP, (3, 16, 16)), ("gray", (1, 1, 1)), (Augment(CROP, Normalize((0.5,) * 3, (0.2,) * 3)), (3, 16, 16))],
)
def test_a_batch_of_broken_pictures_is_blank(
    fake: FakeDevice, encode: Callable[..., bytes], on_error: Any, num_samples: int, how: Any, shape: tuple[int, ...]
) -> None:
    stage = DeviceStage(fake, clock=StageClock(), on_error=on_error)
    staged = stage.stage(damaged(batch_of([encode(0)] * 3, how), 0, 1, 2))
    made = stage.hand_over(staged)
    assert made["image"].shape == (num_samples, *shape)
    assert not made["image"].any()
    assert (made.num_padded, len(staged.errors)) == (num_samples, 3)


def test_a_picture_of_another_size_than_its_header_said_is_not_believed(
    stage: DeviceStage,
    fake: FakeDevice,
    clock: StageClock,
    monkeypatch: pytest.MonkeyPatch,
    encode: Callable[..., bytes],
) -> None:
    encoded = [encode(0), encode(1)]
    monkeypatch.setattr(
        fake, "decode", lambda codec, payloads, orientations, mode, plans: [torch.zeros(3, 8, 8, dtype=torch.uint8)] * 2
    )
    assert torch.equal(delivered(stage, batch_of(encoded))["image"], on_the_cpu(encoded))
    assert clock["images decoded by the CPU"] == 2


def test_no_memory_is_an_error_of_its_own_and_not_searched_for(
    stage: DeviceStage, fake: FakeDevice, encode: Callable[..., bytes]
) -> None:
    fake.memory_bytes = 100
    with pytest.raises(DeviceMemoryError):
        stage.stage(batch_of([encode(at) for at in range(8)]))
    assert fake.calls == [8]
    stage.close()
    stage.close()
    assert fake.closed == 2


def test_an_encoding_that_is_decoded_from_the_device_s_memory(
    fake: FakeDevice, encode: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place for other codecs: their bytes go along in the one copy, and are decoded there."""
    tiles = Codec("tiles", "png", "device", lambda data, header, mode: "")
    known = MappingProxyType({**CODECS, "tiles": tiles})
    for module in ("deferred_decoder", "batch_transfer", "stage"):
        monkeypatch.setattr(f"concurrent_loader.device.{module}.CODECS", known)
    assert codecs.CODECS is CODECS
    decoder = DeferredDecoder("image", "rgb", "image", seed=0, codecs=("nvjpeg", "tiles"))
    encoded = [encode(0), encode(1, kind="PNG"), encode(2), encode(3, kind="PNG")]
    images = [prepare(data) for prepare, data in zip(decoder.decoders(0, np.arange(4), [""] * 4), encoded, strict=True)]
    stage = DeviceStage(fake, clock=StageClock())
    images = delivered(stage, Batch({"image": decoder.column(images)}))["image"]
    assert torch.equal(images, torch.stack([make_decoder("rgb", "image")(data) for data in encoded]))
    assert [what for what in fake.log if what.startswith("decode")] == ["decode nvjpeg", "decode tiles"]
    assert sum(map(len, (encoded[1], encoded[3]))) <= fake.copied_bytes[0]
    assert not fake.wrong
