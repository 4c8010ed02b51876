"""The drop-in loader in the hands of trainers that know torch's: Lightning, Accelerate."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from concurrent_loader import ConcurrentDataLoader, DropInDataLoader, skip_first_batches, take_over
from concurrent_loader.errors import LoaderStateError
from concurrent_loader.storage.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore")  # the trainers' own, of which there are many


class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.tensor([float(number)]) for number in range(40))


def make(cls=ConcurrentDataLoader):
    return cls(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(5))


class Broken(Exception):
    pass


def test_lightning_goes_on_in_the_middle_of_an_epoch(tmp_path):
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, index):
            self.seen.append(batch.flatten().tolist())
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.001)

    class BreakAfter(lightning.Callback):
        def on_train_batch_end(self, trainer, model, outputs, batch, index):
            if index == 3:
                trainer.save_checkpoint(tmp_path / "model.ckpt")
                raise Broken

    def fit(loader, *callbacks, **more):
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            callbacks=list(callbacks),
        )
        trainer.fit(model, loader, **more)

    seen = []
    for loader, callbacks, more in (
        (make(DataLoader), [], {}),
        (make(), [BreakAfter()], {}),
        (make(), [], {"ckpt_path": tmp_path / "model.ckpt"}),
    ):
        model = Model()
        if callbacks:
            with pytest.raises(Broken):
                fit(loader, *callbacks, **more)
        else:
            fit(loader, *callbacks, **more)
        seen.append(model.seen)
    whole, before, after = seen
    assert (len(before), len(after)) == (4, 6)
    assert before + after == whole


def test_lightning_puts_its_sampler_into_one_like_it():
    from pytorch_lightning.utilities.data import _update_dataloader

    loader = ConcurrentDataLoader(Numbers(), 4, in_flight=9, drop_last=True)
    again = _update_dataloader(loader, DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False))
    assert type(again) is DropInDataLoader
    assert (again.in_flight, again.drop_last) == (9, True)
    assert next(batch.flatten().tolist() for batch in again) == [1, 3, 5, 7]


def flat(batches):
    return [batch.flatten().tolist() for batch in batches]


def test_accelerate_says_that_it_takes_torchs():
    with pytest.warns(UserWarning, match=r"take_over\(loader, accelerator\)"):
        prepared = Accelerator(cpu=True).prepare(make())
    assert type(prepared.base_dataloader) is DataLoader
    assert flat(prepared) == flat(make(DataLoader))


@pytest.mark.processes
@pytest.mark.parametrize("stream", [False, True])
def test_taking_over_from_accelerate(stream):
    def loader(cls):
        return cls(Stream(), 4, num_workers=1) if stream else make(cls)

    expected = flat(loader(DataLoader))
    prepared = take_over(loader(ConcurrentDataLoader), Accelerator(cpu=True), in_flight=7)
    assert type(prepared.base_dataloader) is DropInDataLoader
    assert prepared.base_dataloader.in_flight == 7
    assert isinstance(prepared.state_dict(), dict)
    batches = iter(prepared)
    assert [next(batches).flatten().tolist() for _ in range(4)] == expected[:4]
    again = take_over(loader(ConcurrentDataLoader), Accelerator(cpu=True))
    again.load_state_dict(prepared.state_dict())
    assert flat(again) == expected[4:]
    assert flat(batches) == expected[4:]
    assert prepared.end_of_dataloader


def test_taking_over_from_torch():
    taken = take_over(make(DataLoader))
    assert type(taken) is DropInDataLoader
    assert flat(taken) == flat(make(DataLoader))
    taken = take_over(DataLoader(Numbers(), batch_size=None, sampler=[3, 1]))
    assert flat(taken) == [[3], [1]]
    assert take_over(ConcurrentDataLoader(Numbers(), 4, in_flight=9)).in_flight == 9


def test_a_native_loader_skips_batches_without_fetching_them(dataset):
    def make_native():
        return take_over(ConcurrentDataLoader(dataset, 20, shuffle=True), Accelerator(cpu=True))

    def labels(batches):
        return [batch["label"].tolist() for batch in batches]

    whole, skipping = make_native(), make_native()
    whole.set_epoch(2)
    skipping.set_epoch(2)
    assert labels(skip_first_batches(skipping, 4)) == labels(whole)[4:]
    assert labels(skipping) == labels(whole)  # the next epoch is a whole one
    with pytest.raises(LoaderStateError):
        skip_first_batches(skipping, 1000)
    with pytest.raises(ConfigurationError, match=r"accelerate\.skip_first_batches"):
        skip_first_batches(make(), 1)


def test_taking_over_a_loader_keeps_its_position():
    loader = ConcurrentDataLoader([5, 6, 7, 8], batch_size=2, snapshot_every_n_steps=3)
    batches = iter(loader)
    next(batches)
    again = ConcurrentDataLoader([5, 6, 7, 8], batch_size=2, snapshot_every_n_steps=3)
    again.load_state_dict(loader.state_dict())
    taken = take_over(again)
    assert taken.snapshot_every_n_steps == 3
    assert [batch.tolist() for batch in taken] == [[7, 8]]
    assert [batch.tolist() for batch in taken] == [[5, 6], [7, 8]]
