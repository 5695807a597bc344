"""The boundary of backends: views show what their types have, and the kernels get every part of a
layer by name.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny

from longdraft.backends.native.step import StepPins
from longdraft.core import IndexView, QueryView, Tree
from longdraft.ops import native
from longdraft.views import Guided, Quest, SinkWindow
from longdraft.views.base import View

PROMPT = 60
NATIVE = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)


def members(protocol: type) -> set[str]:
    return {
        name for name in {**vars(protocol), **protocol.__annotations__} if not name.startswith("_")
    }


class Only:
    """Shows of a view the attributes of these names alone."""

    def __init__(self, view: Any, names: set[str]):
        self._view = view
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"a backend reads {name}, which the view's type does not have")
        return getattr(self._view, name)


def logits(model: str, policy: Any, names: set[str] | None = None) -> torch.Tensor:
    """Of a pass under the policy's view, of which the backend sees the attributes of these
    names.
    """
    lm, [prompt] = tiny.target(model), tiny.prompts(PROMPT)
    cache = lm.new_cache(1, PROMPT + 4)
    lm.prefill(prompt[:-1], cache)
    view = policy.view(cache)
    return lm(
        Tree.root(torch.tensor(prompt[-1:])),
        cache,
        view=view if names is None else Only(view, names),
    )


@torch.inference_mode()
@pytest.mark.parametrize("model", ["llama", "llama-torch", "llama-bf16"])
def test_backends_read_only_what_an_index_view_has(model):
    policy = SinkWindow(4, 0.0, 16)
    assert torch.equal(logits(model, policy, members(IndexView)), logits(model, policy))
    assert not torch.equal(logits(model, policy), logits(model, Guided()))  # it leaves out slots
    with pytest.raises(AttributeError, match=r"copied|segments"):
        logits(model, policy, members(IndexView) - {"copied", "segments"})


@torch.inference_mode()
def test_backends_read_only_what_a_query_view_has():
    policy = Quest(0.0, 16, page=4)
    assert torch.equal(logits("llama", policy, members(QueryView)), logits("llama", policy))
    with pytest.raises(AttributeError, match="segments"):
        logits("llama", policy, members(QueryView) - {"segments"})


@NATIVE
def test_a_view_that_selects_by_the_queries_never_reaches_the_kernels():
    lm = tiny.target("llama")
    cache = lm.new_cache(1, 8)
    lm.prefill([1, 2, 3], cache)
    view = Quest().view(cache)
    tree = Tree.root(torch.tensor([5]))
    assert lm.backend.name == "native" and not lm.backend.supports(view)
    with pytest.raises(AssertionError, match="QuestView"):
        lm.backend.forward(tree, cache, 0, view, Any)


def fields(structure: Any) -> dict[str, Any]:
    return dict(structure._fields_)


@NATIVE
def test_the_kernels_get_every_part_of_a_layer():
    kinds = fields(native.Layer)
    linears = {name for name, kind in kinds.items() if kind is native.Linear} - {"gates", "q_down"}
    others = {"gates", "slopes", "frequencies", "q_norm_bias", "k_norm_bias"}
    others |= {"window", "kind", "cap", "rotation", "mixer_output_norm", "mlp_output_norm"}
    others |= {"experts", "sinks", "input_norm_bias", "mlp_norm_bias"}
    others |= {"q_down", "q_down_norm", "to_latent", "from_latent"}
    norms = kinds.keys() - linears - others

    def lacking(model: str) -> set[str]:
        layer = tiny.target(model).backend.step.model.layer[0]
        without = {name for name in linears if not getattr(layer, name).weight}
        return without | {name for name in norms if not getattr(layer, name)}

    assert lacking("qwen3") == set() and lacking("llama") == {"q_norm", "k_norm"}


@NATIVE
def test_the_kernels_say_which_heads_they_compute():
    lib = native.library()
    computed = [dim for dim in range(600) if lib.longdraft_has_heads(dim)]
    assert computed == [16, 32, 64, 96, 128, 256, 288, 576]
    for model, backend in (("llama", "native"), ("llama-mqa", "eager")):  # heads of 16 and of 20
        assert tiny.target(model).backend.name == backend


def test_structures_have_no_other_names():
    with pytest.raises((AttributeError, TypeError)):
        native.Model(layer_count=2)
    with pytest.raises((AttributeError, TypeError)):
        native.Layer(input_norms=None)
    assert (
        StepPins().norm(None) is None
        and View(torch.zeros(1, 1, 0, dtype=torch.long), torch.zeros(1)).indexable
    )
