from __future__ import annotations

import pickle

from concurrent_loader.order.remembering import Remembering


def test_what_is_remembered_is_little_and_is_not_pickled() -> None:
    options = Remembering()
    made = [options.remember((epoch,), lambda epoch=epoch: [epoch]) for epoch in range(10)]
    assert options.remember((9,), list) is made[9]
    assert options.remember((0,), lambda: ["new"]) == ["new"]
    assert len(options._drawn) == 6
    assert len(pickle.loads(pickle.dumps(options))._drawn) == 0


def test_what_is_used_stays() -> None:
    options = Remembering()
    first = options.remember((0,), lambda: [0])
    for number in range(1, 20):
        options.remember((number,), lambda: [1])
        assert options.remember((0,), list) is first
