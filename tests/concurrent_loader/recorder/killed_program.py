"""Trains on two workers with a recorder until it is killed: prints the step after each batch.

Arguments: URL, folder of the run, file of the state.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.recorder.flight_recorder import HOLD_S


def main(url: str, run: str, state_file: str) -> None:
    path = Path(state_file)
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, 4, shuffle=True, recorder=run, num_workers=2, persistent_workers=True)
        if path.exists():
            loader.load_state_dict(json.loads(path.read_text()))
        for _ in range(2):
            for batch in loader:
                if batch.step % 3 == 2:
                    path.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
                    path.with_suffix(".new").replace(path)
                time.sleep(HOLD_S)  # as training would: the line of a slow step is written before the batch comes
                print(batch.epoch, batch.step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
