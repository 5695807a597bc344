"""The one list of methods that every test of losslessness goes through: adding a method is a line here."""

from __future__ import annotations

from itertools import count

import pytest
import tiny
from checks import SAMPLERS

from longdraft import build
from longdraft.drafters import (
    AdaptiveDraft,
    Auto,
    Drafter,
    GlideDrafter,
    Hierarchical,
    Lookup,
    Reuse,
    SelfDrafter,
    Sequential,
    SmallModelDrafter,
)
from longdraft.drafters.adaptive.step_costs import Measured
from longdraft.methods import METHODS, PARTS
from longdraft.models.lm import LM
from longdraft.views import Chunks, Full, Guided, Partial, Quest, Retrieval, SinkWindow

SMALL = {"gamma": "4", "min_budget": "16"}  # a view of 16 slots leaves out most of a prompt of 70
WIDTHS = [3, 4, 4]
SWIFT = {"budget": "24", "sink": "4", "widths": "1,3,2,2", "n": "3", "topk": "4"}
EAGLE = {"topk": "12", "levels": "2", "nodes": "40"}
GLIDE = {"widths": "3,4,4", "window": "16"}


def untrained(name: str, target: LM, options: dict[str, str]) -> Drafter:
    """A method whose part has random weights."""
    return build(name, target, options, PARTS[METHODS[name].needs](target, 1))


def ticking(drafter: Drafter) -> AdaptiveDraft:
    """At a pace by a clock that is a second later each time it is asked."""
    return AdaptiveDraft(drafter, Measured(count().__next__))


# Adding a method: one line here.
METHODS_UNDER_TEST = [
    ("lookup", lambda t: build("lookup", t, {"n": "2", "count": "5"})),
    ("magicdec-stream", lambda t: build("magicdec-stream", t, SMALL)),
    ("vegas", lambda t: build("vegas", t, SMALL)),
    ("vegas as published", lambda t: build("vegas", t, SMALL | {"score": "logits", "rows": "ends", "reach": "0"})),
    ("random-picks", lambda t: build("random-picks", t, SMALL)),
    ("recents", lambda t: build("recents", t, SMALL)),
    ("vegas tree", lambda t: SelfDrafter(t, Guided(0.07, 16), WIDTHS)),
    ("vegas, then lookup", lambda t: Sequential(SelfDrafter(t, Guided(0.07, 16), [1, 1]), Lookup(2, 4))),
    ("vegas tree, then lookup", lambda t: Sequential(SelfDrafter(t, Guided(0.07, 16), [2, 2]), Lookup(1, 3))),
    ("suffix", lambda t: build("suffix", t, {"nodes": "6"})),
    ("suffix over texts", lambda t: build("suffix", t, {"nodes": "6", "earlier": "99"})),
    ("recycle", lambda t: build("recycle", t, {"nodes": "12"})),
    ("magicdec-quest", lambda t: build("magicdec-quest", t, SMALL | {"page": "4"})),
    ("quest tree", lambda t: SelfDrafter(t, Quest(0.07, 16, page=4, dense=0), [2, 3])),
    ("vegas-tree", lambda t: build("vegas-tree", t, {"widths": "3,4,4", "min_budget": "16"})),
    (
        "specextend",
        lambda t: untrained("specextend", t, {"widths": "2,3", "min_budget": "16", "chunk": "8", "every": "2"}),
    ),
    ("specextend by itself", lambda t: SelfDrafter(t, Retrieval(0.07, 16, chunk=8, every=2), [1] * 4)),
    ("triforce", lambda t: untrained("triforce", t, {"budget": "24", "window": "12", "sink": "2", "gamma": "5"})),
    ("triforce by itself", lambda t: Hierarchical(t, Guided(0.07, 24), SelfDrafter(t, SinkWindow(2, 0.07, 8), [2]), 4)),
    ("sd", lambda t: untrained("sd", t, {"gamma": "4"})),
    ("sd, the end alone", lambda t: untrained("sd", t, {"gamma": "4", "reads": "12"})),
    ("sd-sparse", lambda t: untrained("sd-sparse", t, {"gamma": "4", "budget": "40"})),
    ("budgetdraft by itself", lambda t: build("budgetdraft", t, {"gamma": "4", "budget": "40", "every": "2"}, t)),
    ("budgetdraft by itself, the end alone", lambda t: SmallModelDrafter(t, Chunks(24, every=2), [1] * 4, tail=26)),
    ("budgetdraft tree", lambda t: SmallModelDrafter(t, Chunks(40, score="last_key"), WIDTHS)),
    ("budgetdraft tree, then lookup", lambda t: Sequential(SmallModelDrafter(t, Chunks(40), [2, 2]), Lookup(1, 3))),
    ("magicdec-snapkv", lambda t: build("magicdec-snapkv", t, SMALL)),
    ("longspec", lambda t: build("longspec", t, GLIDE, tiny.taught_glide(t))),
    ("longspec-chain", lambda t: build("longspec-chain", t, {"gamma": "4", "window": "16"}, tiny.taught_glide(t))),
    ("longspec-guided", lambda t: build("longspec-guided", t, GLIDE | {"min_budget": "16"}, tiny.taught_glide(t))),
    ("longspec, then lookup", lambda t: Sequential(GlideDrafter(tiny.taught_glide(t), [2, 2]), Lookup(1, 3))),
    ("tokenswift", lambda t: untrained("tokenswift", t, SWIFT)),
    ("tokenswift by chance", lambda t: untrained("tokenswift", t, SWIFT | {"widths": "2,1,1,1", "choice": "random"})),
    ("medusa", lambda t: untrained("medusa", t, {"widths": "24,3"})),
    ("medusa, then lookup", lambda t: Sequential(untrained("medusa", t, {}), Lookup(1, 3))),
    ("eagle2", lambda t: untrained("eagle2", t, EAGLE)),
    ("eagle3", lambda t: untrained("eagle3", t, EAGLE | {"reach": "20"})),
    ("eagle3, then reuse", lambda t: Sequential(untrained("eagle3", t, EAGLE), Reuse(3, 2))),
    ("vegas-reuse", lambda t: build("vegas-reuse", t, {"gamma": "3", "min_budget": "16", "topk": "4"})),
    ("vegas tree, then reuse", lambda t: Sequential(SelfDrafter(t, Partial(20, 4), [2, 3]), Reuse(2, 2, below=2))),
    ("auto", lambda t: Auto([*map(ticking, (BUILD["longspec"](t), BUILD["vegas"](t), Lookup()))], 6)),
    ("full view", lambda t: SelfDrafter(t, Full(), [1] * 3)),
]
BUILD = dict(METHODS_UNDER_TEST)
FROM_TEXT = {"lookup", "suffix", "suffix over texts", "recycle"}  # random text gives them next to nothing to find
ROWS = {"1 row": (70,), "3 rows": (70, 31, 90)}


def exact(model: str) -> str:
    """The model's name; skips the test where its passes depend on what is computed beside them."""
    if model.endswith("-bf16") and tiny.target(model).native is None:
        pytest.skip("no native step here: bfloat16 is bit for bit the same on that path alone")
    return model


each_method = pytest.mark.parametrize("method", BUILD)
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
each_rows = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
each_model = pytest.mark.parametrize("model", tiny.MAIN)
