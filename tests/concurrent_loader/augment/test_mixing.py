"""Mixing pairs: pictures and labels by the same share, drawn for the sample, whatever the ranks."""

from __future__ import annotations

import math
import operator
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader import (
    Augment,
    Batch,
    CenterCrop,
    ConcurrentDataLoader,
    CutMix,
    MixUp,
    MixUpOrCutMix,
    Normalize,
    ShardDataset,
    TransformError,
)
from concurrent_loader.augment.mixing import partners
from concurrent_loader.augment.random_draws import beta_quantile
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError

UNIT = st.floats(0, 1, exclude_max=True)


def batch(num: int = 9, dtype: torch.dtype = torch.uint8, **facts) -> Batch:
    """Each picture of one level, so that its share can be read off."""
    levels = torch.arange(num, dtype=torch.float32).mul_(20)
    image = levels.view(-1, 1, 1, 1).expand(num, 3, 16, 12).to(dtype).contiguous()
    ids = torch.arange(100, 100 + num)
    return Batch({"image": image, "label": torch.arange(num) % 5, "name": ["x"] * num}, sample_ids=ids, **facts)


def test_partners_are_neighbours():
    assert partners(5).tolist() == [1, 0, 3, 2, 4]
    assert partners(4).tolist() == [1, 0, 3, 2]
    assert partners(1).tolist() == [0]
    assert partners(0).tolist() == []


@given(st.floats(0.05, 30), st.lists(UNIT, min_size=2, max_size=20))
def test_quantiles_rise_from_0_to_1_and_are_symmetrical(alpha, shares):
    shares = np.sort(np.array(shares))
    found = beta_quantile(shares, alpha)
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()
    mirrored = 1 - shares  # and rounded: near 1 there are fewer numbers than near 0
    assert np.allclose(beta_quantile(mirrored, alpha), 1 - beta_quantile(1 - mirrored, alpha), atol=1e-9)


@pytest.mark.parametrize("alpha", [1e-3, 100, 600, 1e5])
def test_quantiles_of_extreme_distributions_are_numbers(alpha):
    shares = np.array([0, 0.159, 0.5, 0.841, 0.999])
    found = beta_quantile(shares, alpha)
    assert ((found >= 0) & (found <= 1)).all()
    assert found[2] == pytest.approx(0.5)
    if alpha > 1:  # then nearly a normal distribution, whose deviation this is
        assert (found[3] - 0.5) * math.sqrt(8 * alpha + 4) == pytest.approx(1, abs=0.05)


def test_quantiles_are_those_of_the_distribution():
    shares = (np.arange(1000) + 0.5) / 1000
    assert np.allclose(beta_quantile(shares, 1.0), shares, atol=1e-9)
    assert np.allclose(beta_quantile(shares, 0.5), np.sin(math.pi * shares / 2) ** 2, atol=1e-6)
    # F(x) = 3 x**2 - 2 x**3
    found = beta_quantile(shares, 2.0)
    assert np.allclose(3 * found**2 - 2 * found**3, shares, atol=1e-6)
    for alpha in (0.1, 0.2, 0.8, 4.0, 20.0):
        assert math.isclose(beta_quantile(shares, alpha).var(), 1 / (4 * (2 * alpha + 1)), rel_tol=0.01)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16])
def test_mixup_blends_by_its_own_share(dtype):
    plain = batch(dtype=dtype)
    mixed = MixUp(alpha=0.8)(plain)
    assert mixed["image"].dtype == dtype
    assert mixed["label"].tolist() == plain["label"].tolist()
    partner = partners(9)
    assert mixed["label_b"].tolist() == plain["label"][partner].tolist()
    lam = mixed["lam"].view(-1, 1, 1, 1)
    assert lam[8] == 1
    assert 0 < lam[:8].min() <= lam[:8].max() < 1
    assert len(set(lam[:8].flatten().tolist())) == 8
    wanted = lam * plain["image"].float() + (1 - lam) * plain["image"][partner].float()
    assert (mixed["image"].float() - wanted).abs().max() <= 0.501
    assert (mixed.sample_ids.tolist(), mixed["name"]) == (plain.sample_ids.tolist(), plain["name"])
    assert plain["image"][0].max() == 0  # left as it was


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.1, 4))
def test_cutmix_says_how_many_pixels_are_whose(epoch, alpha):
    plain = batch(epoch=epoch)
    mixed = CutMix(alpha=alpha)(plain)
    for place, partner in enumerate(partners(9)):
        own = (mixed["image"][place] == plain["image"][place]).all(0)
        others = (mixed["image"][place] == plain["image"][partner]).all(0)
        assert (own | others).all()
        assert math.isclose(own.float().mean(), mixed["lam"][place], abs_tol=1e-6)


def test_soft_labels_sum_to_one_and_say_the_same():
    hard, soft = MixUp(seed=3)(batch()), MixUp(seed=3, num_classes=5)(batch())
    assert torch.equal(hard["image"], soft["image"])
    assert (soft["label"].shape, soft["label"].dtype) == ((9, 5), torch.float32)
    assert torch.allclose(soft["label"].sum(1), torch.ones(9))
    for place in range(9):
        wanted = torch.zeros(5)
        wanted[hard["label"][place]] += hard["lam"][place]
        wanted[hard["label_b"][place]] += 1 - hard["lam"][place]
        assert torch.allclose(soft["label"][place], wanted)
    assert "lam" not in soft


def test_either_or_neither():
    how = MixUpOrCutMix(p=0.6, cutmix_share=0.5)
    plain = batch(400, torch.float32)
    mixed = how(plain)
    flat = (mixed["image"] == mixed["image"][:, :, :1, :1]).all((1, 2, 3))
    untouched = mixed["lam"] == 1
    cut = ~flat
    assert 0.5 < (~untouched).float().mean() < 0.7
    assert 0.15 < cut.float().mean() < 0.4
    assert torch.equal(mixed["image"][untouched], plain["image"][untouched])
    assert torch.equal(MixUp(p=0)(plain)["image"], plain["image"])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_what_is_cut_shows_the_partner_also_beside_what_is_blended(dtype):
    plain = batch(12, dtype)
    mixed = MixUpOrCutMix(seed=2)(plain)
    levels, partner = plain["image"][:, 0, 0, 0].float(), torch.from_numpy(partners(12))
    wanted = mixed["lam"] * levels + (1 - mixed["lam"]) * levels[partner]
    assert torch.allclose(mixed["image"].float().mean((1, 2, 3)), wanted, atol=0.51)
    flat = (mixed["image"] == mixed["image"][:, :, :1, :1]).all((1, 2, 3))
    assert 2 < flat.sum() < 10  # some are cut and some are blended


def test_a_share_belongs_to_the_sample():
    mixed = MixUp(seed=1)(batch())
    some = MixUp(seed=1)(
        Batch({name: value[2:6] for name, value in batch().items()}, sample_ids=torch.arange(102, 106))
    )
    assert torch.equal(some["lam"], mixed["lam"][2:6])
    assert torch.equal(some["image"], mixed["image"][2:6])
    assert not torch.equal(MixUp(seed=2)(batch())["lam"], mixed["lam"])
    assert not torch.equal(MixUp(seed=1)(batch(epoch=1))["lam"], mixed["lam"])


def test_layouts_stay():
    for how in (MixUp(), CutMix()):
        plain = batch()
        plain["image"] = plain["image"].contiguous(memory_format=torch.channels_last)
        assert how(plain)["image"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MixUp(alpha=0),
        lambda: CutMix(alpha=float("inf")),
        lambda: MixUp(p=2),
        lambda: MixUp(num_classes=0),
        lambda: MixUp(num_classes=10.0),
        lambda: MixUp(num_classes=True),
        lambda: CutMix(seed=-1),
        lambda: MixUpOrCutMix(seed=2**64),
        lambda: MixUpOrCutMix(mixup_alpha=-1),
        lambda: MixUpOrCutMix(cutmix_share=1.5),
        lambda: MixUp()({"image": 1}),
        lambda: MixUp()(Batch({"image": [1], "label": torch.tensor([1])})),
        lambda: MixUp(image="picture")(batch()),
        lambda: MixUp(label="name")(batch()),
        lambda: MixUp()(Batch(batch())),
        lambda: MixUp(num_classes=4)(batch()),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(ConfigurationError):
        make()


# -- in the loader -----------------------------------------------------------------------------------------------------


HOW = Augment(CenterCrop(16), Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)))


@pytest.fixture
def images(tmp_path, make_jpeg):
    with ShardWriter(str(tmp_path / "set"), columns={"image": "jpeg", "label": "int64"}, shard_size="6KiB") as writer:
        for number in range(40):
            writer.write({"image": make_jpeg(number), "label": number % 10})
    with ShardDataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache")) as dataset:
        yield dataset


def load(dataset, **options):
    usual = {"shuffle": True, "decode": {"image": HOW}, "batch_transform": MixUpOrCutMix(num_classes=10)}
    loader = ConcurrentDataLoader(dataset, **{"batch_size": 8, **usual, **options})
    return loader, [(batch.sample_ids, batch["image"], batch["label"]) for batch in loader]


def flat(batches) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    return {int(one): (a, b) for ids, x, y in batches for one, a, b in zip(ids, x, y, strict=True)}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(x, y) for key in a for x, y in zip(a[key], b[key], strict=True))


@pytest.mark.processes
def test_ranks_workers_and_resuming_change_nothing(images):
    expected = flat(load(images)[1])
    plain = flat(load(images, batch_transform=None)[1])
    assert not any(torch.equal(expected[number][0], plain[number][0]) for number in list(plain)[:3])
    assert same(flat(load(images, num_threads=1)[1]), expected)
    assert same(flat(load(images, num_workers=2)[1]), expected)
    parts = [flat(load(images, batch_size=4, rank=rank, world_size=2)[1]) for rank in range(2)]
    assert same({**parts[0], **parts[1]}, expected)
    loader = ConcurrentDataLoader(images, 8, shuffle=True, decode={"image": HOW})
    with closing(iter(loader)) as batches:
        seen = {int(one) for batch in islice(batches, 2) for one in batch.sample_ids}
    state = loader.state_dict()
    again = ConcurrentDataLoader(
        images, 8, shuffle=True, decode={"image": HOW}, batch_transform=MixUpOrCutMix(num_classes=10)
    )
    again.load_state_dict(state)
    rest = flat([(batch.sample_ids, batch["image"], batch["label"]) for batch in again])
    assert same(rest, {number: value for number, value in expected.items() if number not in seen})


# Of the standard library: a worker process finds it wherever the tests are run from.
failing = operator.itemgetter("no such thing")


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_it_is_a_transform_error(images, num_workers):
    with pytest.raises(TransformError, match="batch transform failed: KeyError"):
        load(images, batch_transform=failing, num_workers=num_workers)


def test_it_gets_what_collate_fn_makes(images):
    _, found = _collected(images)
    assert found == [8] * 5


def _collected(images):
    loader = ConcurrentDataLoader(images, 8, collate_fn=len, batch_transform=lambda number: number)
    return loader, list(loader)


def test_a_device_gets_it_last(images, monkeypatch):
    devices = []
    loader = ConcurrentDataLoader(
        images,
        8,
        decode={"image": HOW},
        device="meta",
        batch_transform=lambda batch: devices.append(batch["image"].device),
    )
    assert list(loader) == [None] * 5
    assert {device.type for device in devices} == {"meta"}


@pytest.mark.parametrize("mix", [MixUp(num_classes=5), CutMix(num_classes=5), MixUp()])
def test_null_labels_are_refused(mix):
    """A null is a 0 in the batch, and would be mixed in as class 0."""
    whole = batch()
    whole["label_valid"] = torch.ones(9, dtype=torch.bool)
    mix(whole)
    whole = batch()
    whole["label_valid"] = torch.arange(9) != 3
    with pytest.raises(ConfigurationError, match="must not be null"):
        mix(whole)
