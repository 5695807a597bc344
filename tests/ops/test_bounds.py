"""No config and no call makes the native step read or write where it may not: both sides of it
check sizes.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import tiny
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from longdraft.backends.stock import refuse
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import PAD, Tree
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm
from longdraft.ops import Compact, StoredRow, choose, native, refill, take
from longdraft.views import SinkWindow, View

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)
BASE = {**tiny.BASE, "num_hidden_layers": 2}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def model(config, seed: int = 0):
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for p in made.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.2)
    return made


# What a folder may hold ---------------------------------------------------------------------------

CONTRADICTIONS = {
    "3 key heads for 4": ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
    "4 key heads for 2": (
        {"num_attention_heads": 2, "num_key_value_heads": 4},
        "multiple of num_key_value_heads",
    ),
    "half a head turned": (
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "linear",
                "factor": 2.0,
                "partial_rotary_factor": 0.5,
            }
        },
        "partial_rotary_factor",
    ),
    "twice a head turned": (
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "linear",
                "factor": 2.0,
                "partial_rotary_factor": 2.0,
            }
        },
        "partial_rotary_factor",
    ),
    "no layers": ({"num_hidden_layers": 0}, "no layers"),
    "no vocabulary": ({"vocab_size": 0, "pad_token_id": None}, "no vocabulary"),
    "a window of nothing": ({"sliding_window": 0}, "sliding_window of 0"),
    "a window below nothing": ({"sliding_window": -3}, "sliding_window of -3"),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_config_that_contradicts_itself_is_refused(what):
    """A one-token prompt, which needs no prefill, comes no further than any other."""
    change, names = CONTRADICTIONS[what]
    kind = MistralConfig if "sliding_window" in change else LlamaConfig
    made = model(kind(**{**BASE, **change}))
    with pytest.raises(InputError, match=names):
        lm = LM(made)
        lm(Tree.root(torch.tensor([5])), lm.new_cache(1, 8))


def test_a_folder_that_contradicts_itself_is_one_line(place, cli):
    """The review's way in: one number changed in config.json."""
    folder = place / "odd"
    folder.mkdir()
    for file in (place / "tiny").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {
        **ROPE,
        "rope_type": "linear",
        "factor": 2.0,
        "partial_rotary_factor": 0.5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    status, out, err = cli("generate", "hi", "-m", "odd", "--max-new-tokens", "2")
    assert (
        (status, out) == (2, "") and len(err.splitlines()) == 1 and "partial_rotary_factor" in err
    )
    with pytest.raises(InputError, match="partial_rotary_factor"):
        load_lm(str(folder), "float32", "cpu")


SWAPS = {
    "embed_tokens": lambda m: setattr(m.model, "embed_tokens", torch.nn.Embedding(40, 64)),
    "lm_head": lambda m: setattr(m, "lm_head", torch.nn.Linear(64, 40, bias=False)),
    "lm_head.bias": lambda m: setattr(m.lm_head, "bias", torch.nn.Parameter(torch.zeros(7))),
    "norm": lambda m: setattr(m.model.norm, "weight", torch.nn.Parameter(torch.ones(16))),
    "layer 1's k_proj": lambda m: setattr(
        m.model.layers[1].self_attn, "k_proj", torch.nn.Linear(64, 16, bias=False)
    ),
    "layer 0's down_proj": lambda m: setattr(
        m.model.layers[0].mlp, "down_proj", torch.nn.Linear(80, 64, bias=False)
    ),
    "layer 0's q_norm": lambda m: setattr(
        m.model.layers[0].self_attn.q_norm, "weight", torch.nn.Parameter(torch.ones(8))
    ),
    "list of layers": lambda m: setattr(m.model, "layers", m.model.layers[:1]),
}


@pytest.mark.parametrize("what", SWAPS)
def test_weights_of_another_shape_are_refused(what):
    made = model(Qwen3Config(**BASE))
    SWAPS[what](made)
    with pytest.raises(InputError, match=what):
        refuse(made, {})


@st.composite
def configs(draw):
    """Small models of the four families: most are native, some are not, some contradict
    themselves.
    """

    def mostly(good, odd):
        return draw(st.sampled_from(odd if draw(st.integers(0, 15)) == 0 else good))

    keys = draw(st.sampled_from([1, 2, 3, 4]))
    heads = mostly([keys, 2 * keys, 3 * keys], [5, 2, 7])
    head_dim = mostly([16, 32, 64, 96], [8, 18, 48])
    kinds = {"default": {}, "linear": {"factor": 2.0}, "dynamic": {"factor": 2.0}}
    kinds["llama3"] = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    kinds["yarn"] = {"factor": 2.0}
    kind = mostly([k for k in kinds if k != "dynamic"], ["dynamic"])
    rope = {**ROPE, "rope_type": kind, **kinds[kind]}
    if kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = 64
    if (part := mostly([None], [0.25, 0.5, 1.0, 2.0])) is not None:
        rope["partial_rotary_factor"] = part
    c = {
        **BASE,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": head_dim,
        "hidden_size": heads * mostly([16, 32], [8, 20]),
        "intermediate_size": mostly([16, 48, 96], [40, 8]),
        "vocab_size": mostly([16, 17, 31, 96], [9]),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "tie_word_embeddings": draw(st.booleans()),
        "hidden_act": mostly(["silu"], ["gelu"]),
        "rope_parameters": rope,
    }
    family = draw(st.sampled_from([LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config]))
    if family is LlamaConfig:
        c |= {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    if family is MistralConfig:
        c["sliding_window"] = mostly([None, 1, 3, 6], [0, -1])
    if family in (Qwen2Config, Qwen3Config) and draw(st.booleans()):
        c |= {
            "use_sliding_window": True,
            "sliding_window": draw(st.sampled_from([2, 5])),
            "max_window_layers": 1,
        }
    return family, c


def reference(hf, ids):
    try:
        return hf(input_ids=ids, use_cache=False).logits
    except (RuntimeError, IndexError, ZeroDivisionError):
        return None


@pytest.mark.full
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(configs(), st.integers(1, 6), st.integers(0, 1 << 20))
@torch.inference_mode()
def test_any_config_runs_as_in_transformers_or_is_refused(drawn, prompt, seed):
    family, c = drawn
    try:
        with torch.inference_mode(False):
            made = model(family(**c), seed)
    except Exception:  # Transformers itself refuses it
        return
    ids = torch.randint(0, c["vocab_size"], (1, prompt + 3))
    wanted = reference(made, ids)
    try:
        lm = LM(made)
    except InputError:
        return
    assert wanted is not None, "Transformers cannot run what was not refused"
    cache = lm.new_cache(1, 4)  # it grows
    lm.prefill(ids[0, :prompt].tolist(), cache)
    captured = Captures(CaptureSpec(rows="all", of="weights", hidden=(0, c["num_hidden_layers"])))
    found = lm(Tree.chain(ids[:, prompt:]), cache, captured=captured)
    torch.testing.assert_close(found.float(), wanted[:, prompt:], rtol=2e-4, atol=2e-4)
    view = SinkWindow(1, 0.5, 2).view(cache)
    lm(Tree.root(ids[:, prompt]), cache, view=view)
    alone = lm(Tree.root(ids[:, 0]), lm.new_cache(1, 1))
    torch.testing.assert_close(alone[0, 0].float(), wanted[0, 0], rtol=2e-4, atol=2e-4)


# What a call may hand over ------------------------------------------------------------------------


class Call:
    """One good native pass of two rows, three nodes and everything that can be asked for, to be
    spoilt.
    """

    def __init__(self) -> None:
        self.lm = LM(tiny.stock("llama"), "llama")
        self.step = self.lm.backend.step
        lm = self.lm
        cache = lm.new_cache(2, 24)
        for b, p in enumerate(tiny.prompts(12, 7)):
            lm.prefill(p, cache.row(b))
        self.tree = Tree.chain(torch.tensor([[5, 6, 7], [8, 9, 10]]))
        self.position = cache.length[:, None] + self.tree.depth
        self.mask = self.tree.mask.clone()
        self.keep = torch.tensor([[0, 2]] * 2)
        self.hidden = torch.tensor([0, 3])
        self.cache = cache
        self.length, self.tokens, self.depth = (
            cache.length,
            self.tree.tokens.clone(),
            self.tree.depth.clone(),
        )
        self.logits = torch.zeros(2, 3, 96)
        self.scores = torch.zeros(3, 2, 2, 1, 13)
        self.states = torch.zeros(2, 2, 3, 64)
        self.tail_start = torch.tensor([4, 0])
        k, v = (x[:, :2].contiguous() for x in cache.read(0, 0))
        self.kv = (k, v)
        none = native.Selected(None, None, 0, 0, 0)
        self.selected = (native.Selected * 6)(
            *[native.Selected(k.data_ptr(), v.data_ptr(), 2, 2), none] * 3
        )
        p = native.Pass(
            2,
            3,
            0,
            *[
                x.data_ptr()
                for x in (self.tokens, self.depth, self.length, self.position, self.mask)
            ],
        )
        p.cache = (native.LayerCache * 3)(*self.step.places(cache, 20))
        p.tail_start = self.tail_start.data_ptr()
        p.selected = self.selected
        p.score_nodes = self.keep.data_ptr()
        p.scored = 2
        p.as_weights = 1
        p.score_slots = 13
        p.score_layer = -1
        p.scores = self.scores.data_ptr()
        p.state_layers = self.hidden.data_ptr()
        p.state_count = 2
        p.states = self.states.data_ptr()
        p.logits = self.logits.data_ptr()
        self.p = p
        self.m = self.step.model

    def __call__(self) -> None:
        self.step.lib.longdraft_step(self.m, self.p, self.step.work, False)


SPOILT = {
    "heads": ("shapes", lambda c: setattr(c.m, "heads", 6)),
    "key heads": ("shapes", lambda c: setattr(c.m, "key_heads", 4)),
    "no heads": ("shapes", lambda c: setattr(c.m, "groups", 0)),
    "head dim": ("shapes", lambda c: setattr(c.m, "head_dim", 32)),
    "inv_freq": ("shapes", lambda c: setattr(c.m, "frequencies", 99)),
    "mlp": ("shapes", lambda c: setattr(c.m, "mlp", 80)),
    "vocabulary": ("shapes", lambda c: setattr(c.m, "vocab", 97)),
    "width": ("shapes", lambda c: setattr(c.m, "width", 80)),
    "no layers": ("shapes", lambda c: setattr(c.m, "layers", 0)),
    "a weight": ("shapes", lambda c: setattr(c.m.layer[2].down, "inputs", 80)),
    "no weight": ("shapes", lambda c: setattr(c.m.layer[1].q, "weight", None)),
    "window": ("shapes", lambda c: setattr(c.m.layer[1], "window", -1)),
    "kind": ("shapes", lambda c: setattr(c.m.layer[1], "kind", 6)),
    "gates of no shape": ("shapes", lambda c: setattr(c.m.layer[1].gates, "weight", 1)),
    "more frequencies": ("shapes", lambda c: setattr(c.m.layer[1], "frequencies", 9)),
    "a limit": ("shapes", lambda c: setattr(c.m, "limit", -1.0)),
    "a temperature without a span": ("shapes", lambda c: setattr(c.m, "growth", 0.5)),
    "an xIELU without slopes": (
        "shapes",
        lambda c: setattr(c.m, "activation", native.Activation.XIELU),
    ),
    "a mixer without memory": (
        "shapes",
        lambda c: setattr(c.m.layer[1], "kind", native.LayerKind.RECURRENT),
    ),
    "a pass that goes on after attention": ("shapes", lambda c: setattr(c.p, "resume", 1)),
    "a ring without one": (
        "shapes|slots|nodes",
        lambda c: setattr(c.m.layer[1], "kind", native.LayerKind.RING),
    ),
    "rows": ("nodes", lambda c: setattr(c.p, "rows", 0)),
    "nodes": ("nodes", lambda c: setattr(c.p, "nodes", 0)),
    "many nodes": ("nodes|vocabulary|slots", lambda c: setattr(c.p, "nodes", 1 << 40)),
    "start": ("nodes", lambda c: setattr(c.p, "start", -1)),
    "position": ("nodes", lambda c: c.position.fill_(-1)),
    "length": ("nodes", lambda c: c.length.fill_(-5)),
    "no mask": ("nodes", lambda c: setattr(c.p, "mask", None)),
    "neither logits nor states": (
        "nodes",
        lambda c: (setattr(c.p, "logits", None), setattr(c.p, "state_count", 0)),
    ),
    "token below": ("vocabulary", lambda c: c.tokens[1].fill_(-1)),
    "token beyond": ("vocabulary", lambda c: c.tokens[1, 2:].fill_(96)),
    "long text": ("slots", lambda c: c.length.fill_(1000)),
    "few slots": ("slots", lambda c: setattr(c.p.cache[1], "slots", 14)),
    "a cache of 4 bits": ("slots", lambda c: setattr(c.p.cache[1], "bits", 4)),
    "no cache": ("slots", lambda c: setattr(c.p, "cache", None)),
    "no keys": ("slots", lambda c: setattr(c.p.cache[1], "k", None)),
    "selected": ("selected", lambda c: setattr(c.selected[2], "count", 3)),
    "picked below": ("selected", lambda c: setattr(c.selected[2], "count", -1)),
    "picked nowhere": ("selected", lambda c: setattr(c.selected[2], "v", None)),
    "codes of 3 bits": ("selected", lambda c: setattr(c.selected[2], "bits", 3)),
    "tail_start": ("selected", lambda c: c.tail_start.fill_(-1)),
    "kept": ("scores", lambda c: c.keep[1].fill_(3)),
    "kept below": ("scores", lambda c: c.keep[1].fill_(-1)),
    "no scores": ("scores", lambda c: setattr(c.p, "scores", None)),
    "short scores": ("scores", lambda c: setattr(c.p, "score_slots", 12)),
    "scores of": ("scores", lambda c: setattr(c.p, "score_layer", 3)),
    "state": ("state", lambda c: c.hidden.fill_(5)),  # 4: what the head reads
    "state below": ("state", lambda c: c.hidden.fill_(-1)),
    "nowhere for states": ("state", lambda c: setattr(c.p, "states", None)),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", SPOILT)
def test_a_call_that_does_not_fit_is_refused(what):
    call = Call()
    call()
    names, spoil = SPOILT[what]
    spoil(call)
    with pytest.raises((RuntimeError, InputError), match=names):
        call()


WRONG_TYPES = {
    "a structure of another kind": lambda c: c.step.lib.longdraft_step(
        c.p, c.m, c.step.work, False
    ),
    "a tensor for an address": lambda c: c.step.lib.longdraft_read(c.logits, 1),
    "a fraction for a count": lambda c: c.step.lib.longdraft_read(c.logits.data_ptr(), 1.0),
    "an address for a structure": lambda c: c.step.lib.longdraft_step(
        c.m, c.logits.data_ptr(), c.step.work, False
    ),
    "an argument too few": lambda c: c.step.lib.longdraft_step(c.m, c.p, c.step.work),
    "a field that does not exist": lambda c: setattr(c.p, "token", None),
    "a tensor in a field": lambda c: setattr(c.p, "tokens", c.tokens),
    "a list in a field": lambda c: setattr(c.p, "selected", [None]),
    "a field too many": lambda c: native.Selected(None, None, 0, 0, 0, 0),
}


@pytest.mark.parametrize("what", WRONG_TYPES)
def test_a_value_of_the_wrong_type_never_reaches_the_kernels(what):
    with pytest.raises((ctypes.ArgumentError, TypeError, AttributeError)):
        WRONG_TYPES[what](Call())


@torch.inference_mode()
def test_a_token_beyond_the_vocabulary_is_bad_input():
    lm = tiny.target("llama")
    with pytest.raises(InputError, match="vocabulary"):
        lm(Tree.root(torch.tensor([96])), lm.new_cache(1, 8))


@torch.inference_mode()
def test_another_models_cache_is_refused():
    lm = LM(tiny.stock("llama"), "llama")
    other = LM(tiny.stock("llama-mha"), "llama-mha")
    cache = lm.new_cache(1, 30)
    lm.prefill(tiny.prompts(9)[0], cache)
    with pytest.raises(InputError, match="its own cache"):
        other(Tree.root(torch.tensor([5])), cache)


@torch.inference_mode()
def test_tensors_of_another_shape_are_refused():
    lm = LM(tiny.stock("llama"), "llama")
    tree = Tree.chain(torch.tensor([[5, 6]]))
    cache = lm.new_cache(1, 30)
    with pytest.raises(ValueError, match="native pass"):
        lm.backend.forward(tree, lm.new_cache(2, 30), 0, None, Captures())
    with pytest.raises(ValueError, match="native pass"):
        lm.backend.forward(replace(tree, depth=tree.depth.int()), cache, 0, None, Captures())
    with pytest.raises(ValueError, match="native pass"):
        lm.backend.forward(replace(tree, mask=tree.mask[..., :1]), cache, 0, None, Captures())


@torch.inference_mode()
def test_a_view_that_begins_beyond_the_text_sees_what_there_is():
    """A picked block is not lost where no slot lies beyond `since`."""
    lm, (prompt,) = tiny.target("llama"), tiny.prompts(40)
    cache = lm.new_cache(1, 60)
    lm.prefill(prompt, cache)
    indices = torch.arange(0, 40)[None, None]
    everything = lm(Tree.root(torch.tensor([5])), cache, view=View(indices, torch.tensor([40])))
    torch.testing.assert_close(
        everything, lm(Tree.root(torch.tensor([5])), cache), rtol=1e-4, atol=1e-4
    )


def test_slots_that_are_not_there_are_not_copied():
    k = torch.randn(2, 30, 16)
    v = torch.randn(2, 30, 16)
    for slots in ([3, 30], [-1, 4], [31], [4, -2]):
        copy = Compact()
        with pytest.raises(RuntimeError, match="slots to be copied"):
            refill([(copy, StoredRow(k, v), torch.tensor(slots))])
        assert torch.equal(
            refill([(copy, StoredRow(k, v), torch.tensor([1, 2]))])[0][0].sum(1), k[:, 1:3].sum(1)
        )
    for slots in ([30], [-1]):
        with pytest.raises(RuntimeError, match="slots to be copied"):
            take(k, torch.tensor(slots))
    with pytest.raises(RuntimeError, match="scores"):
        choose([torch.randn(5)], 6)
    with pytest.raises(ValueError, match="equal length"):
        choose([torch.randn(5), torch.randn(4)], 2)


def test_slots_in_any_order_are_copied():
    """Over what is held too, where ascending ones would stay."""
    k = torch.randn(2, 30, 16)
    copy = Compact()
    for slots in ([1, 5, 9], [9, 2, 5], [2, 5, 9, 11], [7, 7, 1], [1, 7]):
        mine = refill([(copy, StoredRow(k, -k), torch.tensor(slots))])[0]
        held = mine[0].sum(-1).sort().values
        assert torch.equal(held, k[:, slots].sum(-1).sort().values) and torch.equal(
            mine[1], -mine[0]
        ), slots


@torch.inference_mode()
def test_padding_and_repeated_nodes_are_within_bounds():
    """Kept nodes that come twice, as the mean over a tree with padding has them."""
    lm, (prompt,) = tiny.target("llama"), tiny.prompts(20)
    cache = lm.new_cache(1, 40)
    lm.prefill(prompt, cache)
    tree = Tree.root(torch.tensor([5])).grow(torch.tensor([[0, PAD]]), torch.tensor([[6, 7]]))
    for rows in ("mean", "ends", "all"):
        captured = Captures(CaptureSpec(rows=rows, of="weights"))
        lm(tree, cache, captured=captured)
        assert all(torch.isfinite(s).all() for s in captured.scores.values())
