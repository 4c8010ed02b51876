"""The drop-in loader in the hands of trainers that know torch's: Lightning, Accelerate."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from concurrent_loader import ConcurrentDataLoader, DropInDataLoader

pytestmark = pytest.mark.filterwarnings("ignore")  # the trainers' own, of which there are many


class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([float(index)])


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


def test_accelerate_takes_it_for_torchs_and_can_be_given_it_back():
    expected = [batch.flatten().tolist() for batch in make(DataLoader)]
    prepared = Accelerator(cpu=True).prepare(make())
    assert [batch.flatten().tolist() for batch in prepared] == expected
    prepared = Accelerator(cpu=True).prepare(make())
    inner = prepared.base_dataloader
    assert type(inner) is DataLoader  # which is why docs/drop_in.md says what to do
    prepared.base_dataloader = ConcurrentDataLoader(
        prepared.dataset, batch_sampler=prepared.batch_sampler, generator=prepared.generator
    )
    batches = iter(prepared)
    assert [next(batches).flatten().tolist() for _ in range(4)] == expected[:4]
    state = prepared.state_dict()
    again = make()
    again.load_state_dict(state)
    assert [batch.flatten().tolist() for batch in again] == expected[4:]
    assert [batch.flatten().tolist() for batch in batches] == expected[4:]
