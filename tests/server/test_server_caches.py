"""What a server keeps from one request to the next has a bound: tables of drafters, the session,
the prefix cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.listed import read_in_any_parts
from support.prices import Stated
from support.served import TEXT, loaded, tokens_of

from longdraft import Session, build
from longdraft.core import KVCache
from longdraft.drafters import AdaptiveDraft
from longdraft.drafters.ngram.recent_text import RecentText
from longdraft.prompts.prefix_cache import PrefixCache


def entries(root: Any) -> int:
    """How many entries the containers have that can be reached from it, tensors and the model
    apart.
    """
    seen = set[int]()
    todo = [root]
    found = 0
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, (str, bytes, int, float, type, KVCache)):
            continue
        seen.add(id(x))
        if isinstance(x, np.ndarray):
            found += x.size
        elif isinstance(x, dict):
            found += len(x)
            todo += [*x.keys(), *x.values()]
        elif isinstance(x, (list, tuple, set, frozenset)) or type(x).__name__ in (
            "deque",
            "OrderedDict",
        ):
            found += len(x)
            todo += list(x)
        elif type(x).__module__.startswith("longdraft.") and type(x).__name__ != "LM":
            todo += list(vars(x).values()) if hasattr(x, "__dict__") else []
            todo += [getattr(x, s) for s in getattr(type(x), "__slots__", ()) if hasattr(x, s)]
    return found


def grown(method: str, requests: int = 60, **options: Any) -> int:
    """How many entries a session's containers have gained by as many requests again."""
    lm = loaded()[0]
    sizes = []
    drafter = AdaptiveDraft(build(method, lm, **options), Stated())  # the same shapes in every run
    session = Session(lm, drafter, batch=4, slots=128, prefixes=PrefixCache(256))
    with session:
        for i in range(2 * requests):
            session.submit(
                tokens_of(f"{TEXT}{i * 7919}\n{'ab'[i % 2] * (i % 9)}"),
                max_new_tokens=6,
                eos=(),
                seed=i,
            )
            if i % 8 == 7 or i + 1 in (requests, 2 * requests):
                while session.running or session.waiting:
                    session.step()
            if i + 1 in (requests, 2 * requests):
                sizes.append(entries(session))
    return sizes[1] - sizes[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("lookup", {}),
        ("suffix", {"earlier": 64}),
        pytest.param("recycle", {}, marks=pytest.mark.weekly),
        pytest.param("vegas", {"min_budget": 16}, marks=pytest.mark.weekly),
        pytest.param("vegas-reuse", {"min_budget": 16}, marks=pytest.mark.weekly),
    ],
)
def test_no_table_grows_with_what_was_served(method, options):
    """GHSA-hf3c-wxg2-49q9 (vLLM: a cache without a bound)."""
    assert grown(method, **options) < 150


@pytest.mark.full
def test_a_table_that_grows_is_noticed(monkeypatch):
    monkeypatch.setattr(RecentText, "extend", unbounded)
    assert grown("suffix", earlier=64) > 500


def unbounded(self: RecentText, tokens: list[int]) -> None:
    self.seen += len(tokens)
    self._append(tokens)


@pytest.mark.full
@read_in_any_parts
def test_the_prefix_cache_never_has_more_than_its_room():
    """Blocks were added first and dropped afterward (found here)."""
    lm = loaded()[0]
    prefixes = PrefixCache(512)
    most = 0
    add = type(prefixes._blocks).__setitem__

    class Counted(type(prefixes._blocks)):
        def __setitem__(self, key: Any, value: Any) -> None:
            nonlocal most
            add(self, key, value)
            most = max(most, len(self))

    prefixes._blocks = Counted()
    with Session(lm, batch=1, slots=1024, prefixes=prefixes) as session:
        for i in range(3):
            session.submit([(i * 31 + j * 7) % 500 for j in range(900)], max_new_tokens=1)
            while session.running or session.waiting:
                session.step()
    assert most == prefixes.most == 8
