"""The native loader in the hands of Lightning's Trainer: every way in that takes a loader."""

from __future__ import annotations

import pytest
import pytorch_lightning as lightning
import torch

from concurrent_loader import ConcurrentDataLoader

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, of which there are many

BATCH = 29  # 203 samples are seven batches


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = {"train": [], "val": [], "test": [], "predict": []}

    def note(self, stage, batch):
        self.seen[stage].append(batch["label"].tolist())
        return self.layer(batch["box"]).mean()

    def training_step(self, batch, index):
        return self.note("train", batch)

    def validation_step(self, batch, index):
        self.log("loss", self.note("val", batch), batch_size=BATCH)

    def test_step(self, batch, index):
        self.note("test", batch)

    def predict_step(self, batch, index):
        return self.note("predict", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


def trainer(tmp_path, **options):
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )


def in_order():
    return [list(range(first, first + BATCH)) for first in range(0, 203, BATCH)]


@pytest.fixture
def loader(dataset):
    return ConcurrentDataLoader(dataset, BATCH)


@pytest.mark.slow
def test_fit_validates_between_epochs(tmp_path, dataset, loader):
    model = Model()
    shuffled = ConcurrentDataLoader(dataset, BATCH, shuffle=True, seed=3)
    trainer(tmp_path, max_epochs=2).fit(model, shuffled, loader)
    again = ConcurrentDataLoader(dataset, BATCH, shuffle=True, seed=3)
    assert model.seen["train"] == [batch["label"].tolist() for _ in range(2) for batch in again]
    assert model.seen["val"] == in_order()[:2] + 2 * in_order()  # two batches before all, to see whether it works


@pytest.mark.parametrize(("name", "stage"), [("validate", "val"), ("test", "test"), ("predict", "predict")])
def test_other_ways_in(tmp_path, loader, name, stage):
    model = Model()
    returned = getattr(trainer(tmp_path), name)(model, loader)
    assert model.seen[stage] == in_order()
    assert len(returned) == (len(in_order()) if name == "predict" else 1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_overfit_batches(tmp_path, dataset, shuffle):
    model, loader = Model(), ConcurrentDataLoader(dataset, BATCH, shuffle=shuffle)
    trainer(tmp_path, max_epochs=2, overfit_batches=2).fit(model, loader, ConcurrentDataLoader(dataset, BATCH))
    assert len(model.seen["train"]) == 4
    assert model.seen["train"][:2] == model.seen["train"][2:] or shuffle
    assert model.seen["val"] == 3 * in_order()[:2]  # before all, to see whether it works, and after each epoch
