"""What a consumer counts: images, digests whatever the order, and how long batches took to load."""

from __future__ import annotations

import pytest
import torch

from benchmarks.timed_photos import Delivery, TimedBatch, TimedPhoto, collate_timed


def photo(number: int, began_s: float, ended_s: float, data: bytes = b"x") -> TimedPhoto:
    return TimedPhoto(number, data, number % 2, began_s, ended_s)


def test_items_make_batches_in_the_order_in_which_they_were_begun():
    delivery = Delivery(2, raw=True)
    for each in (photo(0, 0.0, 1.0), photo(2, 2.0, 3.5), photo(1, 0.5, 2.0), photo(3, 3.0, 3.2), photo(4, 4.0, 5.0)):
        delivery.take(each)
    assert delivery.load_s() == [2.0, 1.5]
    assert (delivery.num_samples, delivery.class_counts.tolist()[:2]) == (5, [3, 2])


def test_items_and_batches_have_the_same_digest_in_any_order():
    one, other = Delivery(2, raw=True), Delivery(2, raw=True)
    photos = [photo(number, 0.0, 1.0, bytes([number])) for number in range(4)]
    for each in photos:
        one.take(each)
    other.take(collate_timed(photos[2:]))
    other.take(collate_timed(photos[:2]))
    assert one.digest == other.digest
    assert len(other.load_s()) == 2


@pytest.mark.parametrize("raw", [True, False])
def test_other_bytes_have_another_digest_where_they_count(raw):
    digests = set()
    for data in (b"a", b"b"):
        delivery = Delivery(1, raw=raw)
        delivery.take(TimedPhoto(0, data, 0, 0.0, 1.0))
        digests.add(delivery.digest)
    assert len(digests) == (2 if raw else 1)


def test_a_batch_without_a_beginning_has_no_load():
    delivery = Delivery(2, raw=False)
    delivery.take(TimedBatch([0, 1], torch.zeros(2, 3), torch.tensor([0, 1]), 0.0, 0.0))
    assert delivery.load_s() == []
    assert delivery.first_batch_at > 0


def test_images_are_stacked_and_files_listed():
    tensors = collate_timed([TimedPhoto(number, torch.full((1,), number), 0, 1.0, 2.0) for number in (3, 4)])
    assert isinstance(tensors.images, torch.Tensor)
    assert (tensors.numbers, tensors.images.tolist(), tensors.began_s) == ([3, 4], [[3], [4]], 1.0)
    assert collate_timed([photo(0, 0.5, 1.0)]).images == [b"x"]
