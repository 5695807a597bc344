"""Parts computed in several threads are those that one thread computes, in the same order."""

from __future__ import annotations

import threading
from collections import defaultdict
from itertools import pairwise

import pytest
import torch

from longdraft.models.alignment import Area
from longdraft.ops.in_threads import AHEAD, in_threads


@pytest.fixture(params=[1, 2, 6])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order(threads):
    ready = threading.Event()

    def slow_first(x: int) -> int:
        if x == 0 and threads > 1:
            assert ready.wait(60)  # until a later one is done
        if x == 1:
            ready.set()
        return x * x

    assert list(in_threads(slow_first, range(20))) == [x * x for x in range(20)]
    assert list(in_threads(slow_first, [])) == []


def test_each_thread_computes_alone_and_without_gradients(threads):
    """Then torch has as many threads as before, also in threads that are started later."""
    weight = torch.ones(3, requires_grad=True)
    seen = defaultdict[int, list](list)

    def compute(_: int) -> bool:
        seen[threading.get_ident()].append(torch.get_num_threads())
        return (2 * weight).requires_grad

    assert not any(in_threads(compute, range(20)))
    if threads > 1:
        assert {count for counts in seen.values() for count in counts} == {1}
        assert threading.get_ident() not in seen
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [threads] == [torch.get_num_threads()]


def test_an_error_reaches_the_caller_and_what_waits_is_not_begun(threads):
    begun = []

    def compute(x: int) -> int:
        begun.append(x)
        if x == 3:
            raise ValueError(x)
        return x

    done = []
    with pytest.raises(ValueError, match="3"):
        for x in in_threads(compute, range(100)):
            done.append(x)
    assert done == [0, 1, 2]
    assert len(begun) <= 3 + AHEAD
    assert torch.get_num_threads() == threads


def test_the_caller_sets_the_pace(threads):
    """Results that it has not taken wait in memory, so there are few of them."""
    begun = []
    results = in_threads(begun.append, range(100))
    for taken in range(1, 101):
        next(results)
        assert len(begun) < taken + AHEAD
    assert sorted(begun) == list(range(100))


def test_threads_take_different_memory():
    """No byte of an area is given twice."""
    area = Area(1 << 16)
    size = 64
    taken = [area.take((size,), torch.uint8) for _ in range(4)]
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    taken += in_threads(lambda _: area.take((size,), torch.uint8), range(1000))
    torch.set_num_threads(before)
    begins = sorted(x.data_ptr() for x in taken if area.has(x))
    assert len(begins) == 1004
    assert all(b - a >= size for a, b in pairwise(begins))
