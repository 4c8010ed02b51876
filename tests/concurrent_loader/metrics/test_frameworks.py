"""Metrics in Lightning and notebooks, and progress bars after a resume."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
import torch
from tqdm import tqdm

from concurrent_loader import ConcurrentDataLoader, ConfigurationError, NotebookMetrics, lightning_callback


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_at_steps_and_at_the_end_of_an_epoch(dataset, tmp_path) -> None:
    import pytorch_lightning as lightning
    from pytorch_lightning.loggers.logger import Logger

    class Rows(Logger):
        name, version = "rows", 0

        def __init__(self):
            super().__init__()
            self.rows = []

        def log_metrics(self, metrics, step=None):
            if "train/samples" in metrics:
                self.rows.append((step, metrics["train/samples"]))

        def log_hyperparams(self, *arguments, **more):
            return

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            return self.layer(batch["box"]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.001)

    logger = Rows()
    trainer = lightning.Trainer(
        accelerator="cpu", logger=logger, max_epochs=1, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[lightning_callback(every_n_steps=3, name="train")],
    )  # fmt: skip
    trainer.fit(Model(), ConcurrentDataLoader(dataset, 50))
    assert [step for step, _ in logger.rows] == [3, 5]
    assert logger.rows[-1][1] == 203


def test_a_notebooks_table_is_replaced(monkeypatch, busy) -> None:
    shown = []

    class Handle:
        def update(self, table):
            shown.append(("update", table))

    def display(table, *, display_id):
        assert display_id
        shown.append(("display", table))
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    metrics = NotebookMetrics()
    metrics.observe(busy())
    metrics.observe(busy())
    metrics.observe(busy(name="valid"))
    assert [how for how, _ in shown] == ["display", "update", "display"]
    for text in ("epoch 2, step 9 of 10", "200 samples/s", "25%, for store 50%", "3 ready, 1 being made, of 4"):
        assert text in shown[1][1]


def test_without_ipython_it_says_so(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ConfigurationError, match="pip install ipython"):
        NotebookMetrics()


@pytest.mark.parametrize("is_native", [True, False])
def test_a_progress_bar_shows_the_right_total_after_a_resume(dataset, is_native) -> None:
    def make() -> ConcurrentDataLoader:
        return ConcurrentDataLoader(dataset if is_native else list(range(50)), 10)

    loader = make()
    total = len(loader)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    progress = tqdm(iter(again), file=io.StringIO())
    assert (len(again), progress.total) == (total, total - 2)
    assert len(list(progress)) == total - 2
