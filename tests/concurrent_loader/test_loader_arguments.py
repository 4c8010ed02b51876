"""Which loader a data set gets, and what is said about arguments of the other."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from concurrent_loader import ConcurrentDataLoader, DropInDataLoader, NativeDataLoader, ShardDataset
from concurrent_loader.loader_arguments import _DROP_IN_ONLY, _NATIVE_ONLY
from concurrent_loader.storage.errors import ConfigurationError


def test_data_sets_of_this_package_get_the_native_loader(dataset):
    loader = ConcurrentDataLoader(dataset, 10, True, seed=3)
    assert type(loader) is ConcurrentDataLoader
    assert not isinstance(loader, DataLoader)  # trainers must not put a sampler in: it shards by itself
    assert type(copy.copy(loader)) is ConcurrentDataLoader


@pytest.mark.parametrize(
    "given", [{"sampler": [1]}, {"batch_sampler": BatchSampler(range(3), 2, False)}, {"batch_size": None}]
)
def test_asked_for_item_by_item_they_get_the_other(dataset, given):
    assert type(ConcurrentDataLoader(dataset, **given)) is DropInDataLoader


def test_both_are_instances_of_the_facade(dataset):
    for loader in (
        NativeDataLoader(dataset), DropInDataLoader([1, 2]), ConcurrentDataLoader(dataset), ConcurrentDataLoader([1]),
    ):  # fmt: skip
        assert isinstance(loader, ConcurrentDataLoader)
    assert issubclass(NativeDataLoader, ConcurrentDataLoader)
    assert issubclass(DropInDataLoader, ConcurrentDataLoader)
    assert not isinstance(DataLoader([1, 2]), ConcurrentDataLoader)


def test_instances_of_a_subclass_are_its_own(dataset):
    class Mine(ConcurrentDataLoader):
        pass

    assert isinstance(Mine(dataset), Mine | NativeDataLoader)
    assert not isinstance(ConcurrentDataLoader([1, 2]), Mine)
    assert not isinstance(ConcurrentDataLoader(dataset), Mine)


def test_the_dataset_may_be_named(dataset):
    assert type(ConcurrentDataLoader(dataset=dataset, batch_size=3)) is ConcurrentDataLoader
    assert type(ConcurrentDataLoader(dataset=[1, 2])) is DropInDataLoader


def test_samplers_by_position(dataset):
    assert type(ConcurrentDataLoader(dataset, 2, False, [1, 2])) is DropInDataLoader
    assert type(ConcurrentDataLoader(dataset, None)) is DropInDataLoader


@pytest.mark.parametrize("name", sorted(_NATIVE_ONLY))
def test_options_of_the_native_loader_say_what_to_do_instead(name):
    with pytest.raises(ConfigurationError, match=f"^{name} is not for a torch dataset"):
        ConcurrentDataLoader([1, 2], **{name: 1})


def test_each_loader_lists_the_arguments_that_it_alone_has():
    native, drop_in = (set(inspect.signature(cls).parameters) for cls in (NativeDataLoader, DropInDataLoader))
    assert native - drop_in == set(_NATIVE_ONLY)
    assert drop_in - native == set(_DROP_IN_ONLY) | {"sampler", "batch_sampler"}  # these two choose the drop-in


@pytest.mark.parametrize("name", sorted(_DROP_IN_ONLY))
def test_options_of_torch_say_what_to_do_instead(dataset, name):
    with pytest.raises(ConfigurationError, match=f"^{name} is not for a dataset of this package"):
        ConcurrentDataLoader(dataset, **{name: 1})


def test_options_of_nobody(dataset):
    for given in ([1, 2], dataset):
        with pytest.raises(TypeError, match="colour"):
            ConcurrentDataLoader(given, colour="red")


@pytest.mark.parametrize("wrong", ["s3://bucket/photos", 17, None])
def test_what_is_no_data_set(wrong):
    with pytest.raises(ConfigurationError):
        ConcurrentDataLoader(wrong)


def test_classes_of_the_users(dataset):
    class Mine(ConcurrentDataLoader):
        pass

    assert type(Mine(dataset, batch_size=3)) is Mine
    with pytest.raises(
        ConfigurationError, match=r"Mine derives from ConcurrentDataLoader.*derive from DropInDataLoader"
    ):
        Mine([1, 2])
    with pytest.raises(ConfigurationError, match="derive from DropInDataLoader"):
        Mine(dataset, sampler=[1])


def test_classes_of_the_users_with_arguments_of_their_own(url):
    class Mine(ConcurrentDataLoader):
        def __init__(self, where, open_dataset=ShardDataset):
            super().__init__(open_dataset(where), batch_size=50)

    loader = Mine(url)
    assert type(loader) is Mine
    assert len(list(loader)) == 5
    loader.dataset.close()
    with pytest.raises(ConfigurationError, match="derive from DropInDataLoader"):
        Mine(url, open_dataset=list)


def test_pickles_need_no_data_set_to_begin_with():
    loader = ConcurrentDataLoader(TensorDataset(), batch_sampler=[])
    assert type(pickle.loads(pickle.dumps(loader))) is DropInDataLoader
