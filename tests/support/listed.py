"""The one list of methods that the tests of losslessness run through, and the part of each product
`make test` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import product

import pytest
from support import tiny
from support.checks import SAMPLERS
from support.prices import Stated

from longdraft import build
from longdraft.drafters import (
    Drafter,
    Fill,
    GlideDrafter,
    Hierarchical,
    Lookup,
    Reuse,
    SelfDrafter,
    Sequential,
    SmallModelDrafter,
)
from longdraft.drafters.kinds import KINDS
from longdraft.methods import find
from longdraft.models.lm import LM
from longdraft.views import Chunks, Coded, Full, Guided, Partial, Quest, Retrieval, SinkWindow

SMALL = {"gamma": 4, "min_budget": 16}  # a view of 16 slots leaves out most of a prompt of 70
WIDTHS = [3, 4, 4]
SWIFT = {"budget": 24, "sink": 4, "widths": [1, 3, 2, 2], "n": 3, "topk": 4}
EAGLE = {"topk": 12, "levels": 2, "nodes": 40}
GLIDE = {"widths": [3, 4, 4], "window": 16}
RETRIEVAL = {"widths": [2, 3], "min_budget": 16, "chunk": 8, "every": 2}

# Adding a method: one line here, the method's name and options that suit prompts of 70 tokens.
OPTIONS = {
    "lookup": {"n": 2, "count": 5},
    "suffix": {"nodes": 6},
    "recycle": {"nodes": 12},
    "sd": {"gamma": 4},
    "sd-sparse": {"gamma": 4, "budget": 40},
    "budgetdraft": {"gamma": 4, "budget": 40, "every": 2},
    "magicdec-stream": SMALL,
    "magicdec-snapkv": SMALL,
    "magicdec-quest": SMALL | {"page": 4},
    "vegas": SMALL,
    "vegas-tree": {"widths": [3, 4, 4], "min_budget": 16},
    "quantspec": {"gamma": 3},
    "specextend": RETRIEVAL,
    "triforce": {"budget": 24, "window": 12, "sink": 2, "gamma": 5},
    "medusa": {"widths": [24, 3]},
    "tokenswift": SWIFT,
    "eagle2": EAGLE
    | {"reach": 40, "window": 18, "sink": 3},  # a row of 31 grows beyond it beside longer ones
    "eagle3": EAGLE | {"reach": 20, "window": 12, "sink": 2},
    "mtp": {"widths": [24, 4, 4], "sink": 3, "window": 20},
    "dflash": {"nodes": 60, "window": 16},
    "vegas-reuse": {"gamma": 3, "min_budget": 16, "topk": 4},
    "longspec": GLIDE,
    "longspec-chain": {"gamma": 4, "window": 16},
    "longspec-guided": GLIDE | {"min_budget": 16},
    "random-picks": SMALL,
    "recents": SMALL,
}


def make(name: str, target: LM, part=None, **options) -> Drafter:
    """The named method with these options; where it needs weights and is given none, random
    ones.
    """
    needs = find(name).needs
    if part is None and needs == "glide":
        part = tiny.taught_glide(target)
    elif part is None and needs in KINDS:
        part = KINDS[needs].random(target, 1)
    return build(name, target, part, **options)


# Variants of named methods, compositions that have no name, and `auto` with costs at which drafts
# always pay.
COMPOSED: dict[str, Callable[[LM], Drafter]] = {
    "vegas as published": lambda t: make("vegas", t, **SMALL, score="logits", rows="ends", reach=0),
    "vegas tree": lambda t: SelfDrafter(t, Guided(0.07, 16), WIDTHS),
    "vegas, then lookup": lambda t: Sequential(
        SelfDrafter(t, Guided(0.07, 16), [1, 1]), Lookup(2, 4)
    ),
    "vegas tree, then lookup": lambda t: Sequential(
        SelfDrafter(t, Guided(0.07, 16), [2, 2]), Lookup(1, 3)
    ),
    "suffix over texts": lambda t: make("suffix", t, nodes=6, earlier=99),
    "quest tree": lambda t: SelfDrafter(t, Quest(0.07, 16, page=4, dense=0), [2, 3]),
    "specextend by itself": lambda t: SelfDrafter(
        t, Retrieval(0.07, 16, chunk=8, every=2), [1] * 4
    ),
    "triforce by itself": lambda t: Hierarchical(
        t, Guided(0.07, 24), SelfDrafter(t, SinkWindow(2, 0.07, 8), [2]), 4
    ),
    "sd, the end alone": lambda t: make("sd", t, gamma=4, reads=12),
    "budgetdraft by itself": lambda t: make("budgetdraft", t, t, gamma=4, budget=40, every=2),
    "budgetdraft by itself, the end alone": lambda t: SmallModelDrafter(
        t, Chunks(24, every=2), [1] * 4, tail=26
    ),
    "budgetdraft tree": lambda t: SmallModelDrafter(t, Chunks(40, score="last_key"), WIDTHS),
    "budgetdraft tree, then lookup": lambda t: Sequential(
        SmallModelDrafter(t, Chunks(40), [2, 2]), Lookup(1, 3)
    ),
    "longspec, then lookup": lambda t: Sequential(
        GlideDrafter(tiny.taught_glide(t), [2, 2]), Lookup(1, 3)
    ),
    "tokenswift by chance": lambda t: make(
        "tokenswift", t, **SWIFT | {"widths": [2, 1, 1, 1], "choice": "random"}
    ),
    "medusa, then lookup": lambda t: Sequential(make("medusa", t), Lookup(1, 3)),
    "longspec, best paths": lambda t: make("longspec", t, **GLIDE, nodes=9),
    "eagle3, then reuse": lambda t: Sequential(make("eagle3", t, **EAGLE), Reuse(3, 2)),
    "vegas tree, then reuse": lambda t: Sequential(
        SelfDrafter(t, Partial(20, 4), [2, 3]), Reuse(2, 2, below=2)
    ),
    "auto": lambda t: Fill([BUILD[name](t) for name in ("vegas", "longspec", "eagle3")], Stated()),
    "fill": lambda t: Fill([BUILD["longspec"](t)], Stated(node=0.002)),
    "fill of vegas": lambda t: Fill([BUILD["vegas tree"](t)], Stated(node=0.002)),
    "vegas by an int4 copy": lambda t: make("vegas", t, **SMALL, draft_weights="int4"),
    "vegas tree by an int8 copy": lambda t: make(
        "vegas-tree", t, widths=[3, 4], min_budget=16, draft_weights="int8"
    ),
    "vegas with int4 keys": lambda t: make("vegas", t, **SMALL, draft_kv="int4"),
    "vegas tree with int8 keys": lambda t: make(
        "vegas-tree", t, widths=[3, 4], min_budget=16, draft_kv="int8"
    ),
    "snapkv with int4 keys": lambda t: make("magicdec-snapkv", t, **SMALL, draft_kv="int4"),
    "window with int8 keys": lambda t: SelfDrafter(
        t, Coded(SinkWindow(4, 0.07, 40), 8, recent=5), [1] * 4
    ),
    "every key in 4 bits": lambda t: SelfDrafter(t, Coded(Full(), 4, recent=8), [1] * 3),
    "full view": lambda t: SelfDrafter(t, Full(), [1] * 3),
}


def named(name: str) -> Callable[[LM], Drafter]:
    return lambda target: make(name, target, **OPTIONS[name])


BUILD = {name: named(name) for name in OPTIONS} | COMPOSED
# random text gives them next to nothing to find
FROM_TEXT = {
    "lookup",
    "suffix",
    "suffix over texts",
    "recycle",
}
ROWS = {"1 row": (70,), "3 rows": (70, 31, 90)}

# Of a product of methods and models, test_lossless.py runs every method on the first model and
# three on the others (a view of the target, drafter weights, n-grams); of the samplers two. Tests
# of something else run a method of each kind in `make test`. What is marked `full` (every named
# method, and the compositions that do what none of them does) runs where a change can reach it.
full = pytest.mark.full
weekly = (pytest.mark.full, pytest.mark.weekly)
THREE = ("vegas", "longspec", "lookup")
QUICK = (*THREE, "eagle3", "triforce", "auto")
TWO = ("greedy", "T=1 min-p penalty")
UNLIKE = {
    "suffix over texts",
    "sd, the end alone",
    "vegas tree, then lookup",
    "eagle3, then reuse",
    "auto",
    "fill",
    "vegas with int4 keys",
    "full view",
}
DAILY = OPTIONS.keys() | UNLIKE


# One model of each kind of attention, layer, mixer, experts and stored numbers. `make test` has
# passes of every model: models/test_model.py and ops/test_native_trees.py.
EACH_KIND = {
    *tiny.MAIN,
    *("llama-torch", "llama-mqa", "qwen2", "qwen3-mixed"),
    *("gemma3", "gemma2-softcap", "granite", "glm4", "cohere2", "olmo2", "smollm3", "phi3"),
    *("mixtral", "qwen2-moe", "deepseek", "youtu", "minicpm3"),
    *("gpt2", "falcon", "laguna", "apertus"),
    *("qwen3.5", "lfm2", "bamba", "nemotron-h"),
    *("gpt-oss-kv8", "qwen3-moe-a8", "phi3-a8"),
}


def of_each_kind(models: Iterable[str]) -> list:
    """Parameter sets of these models; `make test` runs those of EACH_KIND."""
    return [case(name, id=name, daily=name in EACH_KIND) for name in models]


def case(*values, id: str, daily: bool):
    """A parameter set that `make test` runs where it is daily."""
    return pytest.param(*values, id=id, marks=() if daily else full)


def every_method_on(*models: str) -> pytest.MarkDecorator:
    """Parametrized by the product of these models and all methods; `make test` runs all of them on
    models[0].
    """
    cases = [
        case(m, name, id=f"{m}-{name}", daily=m == models[0] or name in THREE)
        for m, name in product(models, BUILD)
    ]
    return pytest.mark.parametrize("model,method", cases)


def tier(name: str, quick: Collection[str] = QUICK, often: Collection[str] = DAILY):
    """The marks of a test with this method: none, `full` or `weekly`."""
    if name in quick:
        return ()
    return full if name in often else weekly


def each_method_on(*models: str) -> pytest.MarkDecorator:
    """Parametrized by the product of these models and all methods: QUICK and DAILY are those of
    models[0]; the others have three, `full`.
    """
    cases = [
        pytest.param(name_of_model, name, id=f"{name_of_model}-{name}", marks=marks)
        for name_of_model, name in product(models, BUILD)
        for marks in [tier(name) if name_of_model == models[0] else tier(name, (), THREE)]
    ]
    return pytest.mark.parametrize("model,method", cases)


each_method = pytest.mark.parametrize(
    "method", [pytest.param(name, id=name, marks=tier(name)) for name in BUILD]
)
each_sampler = pytest.mark.parametrize(
    "sampler", [case(s, id=n, daily=n in TWO) for n, s in SAMPLERS.items()]
)
each_rows = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)


read_in_any_parts = pytest.mark.skipif(
    tiny.target("llama").prompt_block > 1,
    reason="torch reads prompts here, in blocks: test_prompt_blocks.py",
)


def exact(model: str) -> str:
    """The model's name; skips the test where its passes depend on what is computed beside them."""
    if model.endswith("-bf16") and tiny.target(model).backend.name != "native":
        pytest.skip("no native step here: bfloat16 is bit for bit the same on that path alone")
    return model


# Options with which a draft reads the whole context: every draft is accepted.
FULL_BUDGET = {
    "vegas": lambda t: build("vegas", t, gamma=5, min_budget=999),
    "vegas by share": lambda t: build(
        "vegas", t, gamma=5, keep_ratio=1.0, min_budget=1, score="weights"
    ),
    "magicdec-stream": lambda t: build("magicdec-stream", t, gamma=5, min_budget=999),
    "no sink": lambda t: build("magicdec-stream", t, gamma=5, min_budget=999, sink=0),
    "random-picks": lambda t: build("random-picks", t, gamma=5, min_budget=999),
    "recents": lambda t: build("recents", t, gamma=5, min_budget=999),
    "magicdec-snapkv": lambda t: build("magicdec-snapkv", t, gamma=5, min_budget=999),
    "sd by itself": lambda t: build("sd", t, t, gamma=5),
    "budgetdraft by itself": lambda t: build("budgetdraft", t, t, gamma=5, budget=999),
    "full view": lambda t: SelfDrafter(t, Full(), [1] * 5),
    # room for all but a few slots of the far past, none of which a row of 31 has
    "all but one row's": lambda t: SelfDrafter(t, Guided(0.07, 64), [1] * 5),
}
