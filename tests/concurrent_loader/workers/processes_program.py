"""What `test_processes` runs in a process of its own: a data set and its children, started in all the ways there are.

Usage: python processes_program.py SCENARIO CLIENT; the URL and the options come in the environment, as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading

from torch.utils.data import DataLoader

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage.errors import StoreClosed

NUM_SAMPLES = 60
NUM_FORKS = 6


def labels_of(samples):
    return [sample["label"] for sample in samples]


def open_dataset(client):
    given = json.loads(os.environ["DATASET"])
    return ShardDataset(given["url"], client=client, storage_options=given["options"])


def load_all(dataset):
    with_loader = ConcurrentDataLoader(dataset, batch_size=7, shuffle=True, num_threads=2)
    return sorted(label for batch in with_loader for label in batch["label"].tolist())


def load_into(queue, dataset, client):
    """In a child: a loader over the data set that came along, or over one of its own."""
    try:
        queue.put(load_all(dataset if dataset is not None else open_dataset(client)))
    except StoreClosed as error:
        queue.put(str(error))


def by_torch(client, method):
    dataset = open_dataset(client)
    loader = DataLoader(
        dataset, batch_size=8, num_workers=2, multiprocessing_context=method, collate_fn=labels_of, timeout=50
    )
    seen = [label for batch in loader for label in batch]
    assert seen == list(range(NUM_SAMPLES))
    assert dataset[3]["label"] == 3
    dataset.close()


def by_loader(client, method):
    context = multiprocessing.get_context(method)
    for used in (False, True):
        dataset = open_dataset(client) if used else None
        queue = context.SimpleQueue()
        child = context.Process(target=load_into, args=(queue, dataset, client))
        child.start()
        got = queue.get()
        child.join()
        assert child.exitcode == 0
        assert got == list(range(NUM_SAMPLES)), got


def in_the_middle(client):
    """A fork in the middle of an epoch: the child may load anew, may end as any process does; the parent goes on."""
    dataset = open_dataset(client)
    loader = ConcurrentDataLoader(dataset, batch_size=7, shuffle=True, num_threads=2)
    batches = iter(loader)
    seen = next(batches)["label"].tolist()
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except StoreClosed as error:
            if "again in the child" not in str(error):
                raise
        else:
            sys.exit(3)
        again = sorted(label for batch in loader for label in batch["label"].tolist())
        sys.exit(0 if again == list(range(NUM_SAMPLES)) else 5)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    idle = os.fork()
    if idle == 0:
        sys.exit(0)  # it never touches the data set, and still ends with copies of all that the parent has open
    _, status = os.waitpid(idle, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    for batch in batches:
        seen += batch["label"].tolist()
    assert sorted(seen) == list(range(NUM_SAMPLES))
    assert load_all(dataset) == list(range(NUM_SAMPLES))
    dataset.close()


def under_load(client):
    """Forks while threads of the parent hold whatever locks they hold."""
    dataset = open_dataset(client)
    loader = ConcurrentDataLoader(dataset, batch_size=3, num_threads=4)
    stop, failures = threading.Event(), []

    def read():
        while not stop.is_set():
            seen = [label for batch in loader for label in batch["label"].tolist()]
            if seen != list(range(NUM_SAMPLES)):
                failures.append(seen)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for number in range(NUM_FORKS):
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # a lock that stays locked ends the child by SIGALRM
                os._exit(0 if dataset[number]["label"] == number and len(load_all(dataset)) == NUM_SAMPLES else 1)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
    finally:
        stop.set()
        reading.join()
    assert failures == []
    dataset.close()


def imports_nothing(client):
    """Modules that threads import while the process forks stay locked in the child, for ever."""
    dataset = open_dataset(client)
    assert dataset[0]["label"] == 0
    loader = ConcurrentDataLoader(dataset, batch_size=7, shuffle=True, num_threads=2)
    before = set(sys.modules)
    for _ in loader:
        pass
    assert set(sys.modules) == before, set(sys.modules) - before
    dataset.close()


def main(scenario, client):
    faulthandler.register(signal.SIGUSR1)  # tells what each thread is at, in forked children as well
    name, _, method = scenario.partition(":")
    if name == "fork":
        by_loader(client, "fork")  # first, for it begins with a child whose parent has used no client yet
        by_torch(client, "fork")
        in_the_middle(client)
    elif name == "load":
        under_load(client)
    elif name == "imports":
        imports_nothing(client)
    elif name == "torch":
        by_torch(client, method)
    else:
        by_loader(client, method)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
