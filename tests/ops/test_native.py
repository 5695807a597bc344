"""The native step computes what Transformers computes, and a node's numbers depend on its own path
alone.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from support import tiny
from support.listed import case, of_each_kind

from longdraft import Sampler, Stats, load, match
from longdraft.backends import describe_parts
from longdraft.backends.architecture import Architecture
from longdraft.backends.native import NativeBackend, fits
from longdraft.backends.native.step_pins import StepPins
from longdraft.backends.packed_linear import round_inputs
from longdraft.backends.quantize import quantize
from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import PAD, Tree
from longdraft.drafters import GlideDrafter, random_glide
from longdraft.drafters.glide.drafter import GlideRing
from longdraft.engine.generate import prefill, step
from longdraft.models.lm import LM
from longdraft.ops import native, noise
from longdraft.views import Guided, SinkWindow

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)
FAMILY = ["llama", "qwen3", "mistral-window", "qwen2", "qwen3-mixed", "gpt-oss", "qwen3-moe"]
FAMILY += tiny.DESCRIBED


def bushy(root: Tree) -> Tree:
    """Seven nodes per row; the last of row 0 is padding."""
    B = len(root.tokens)
    wide = root.grow(torch.zeros(B, 3, dtype=torch.long), torch.tensor([[5, 6, 7]] * B))
    below = torch.tensor([[1, 1, PAD]] + [[1, 1, 2]] * (B - 1))
    return wide.grow(below, torch.tensor([[8, 9, 10]] * B))


def both_ways(lm: LM, run):
    """The result of run() by the native backend and by Transformers."""
    kept = lm.backend
    lm.backend = lm.eager
    try:
        slow = run()
    finally:
        lm.backend = kept
    assert lm.backend.name == "native"
    return run(), slow


POLICIES = {"None": None, "policy1": Guided(0.07, 16), "policy2": SinkWindow(4, 0.07, 16)}
LOGITS = ("llama", "qwen3", "gpt-oss")  # not all families' modules show them


@torch.inference_mode()
@pytest.mark.each_value
@pytest.mark.parametrize(
    ("name", "policy", "of"),
    [
        case(
            name,
            POLICIES[policy],
            of,
            id=f"{name}-{policy}-{of}",
            daily=of == "weights" or name in LOGITS,
        )
        for name, policy, of in product(FAMILY, POLICIES, ("logits", "weights"))
    ],
)
def test_equals_transformers(name, policy, of):
    lm = tiny.target(name)
    prompts = tiny.prompts(70, 41, 133)
    if of == "logits" and not lm.architecture.by_interface:
        pytest.skip("its own modules show scores but for a constant")

    def run():
        cache = lm.new_cache(3, 160)
        for b, p in enumerate(prompts):
            lm.prefill(p[:-1], cache.row(b))
        captured = Captures(CaptureSpec(rows="ends", of=of))
        tree = bushy(Tree.root(torch.tensor([p[-1] for p in prompts])))
        full = lm(tree, cache, captured=captured)
        if policy is None:
            return full[0, :6], full[1:], [captured.scores[i] for i in sorted(captured.scores)]
        if isinstance(policy, Guided):
            policy.update(cache, captured)
        view = policy.view(cache)
        first = lm(Tree.root(tree.tokens[:, 0]), cache, 0, view)
        rest = lm(tree, cache, 1, view)
        return rest[0, :5], rest[1:], first

    fast, slow = both_ways(lm, run)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", of_each_kind(FAMILY))  # all of them: test_native_trees.py
@pytest.mark.parametrize("threads", [1, 2])
def test_a_chain_is_bit_for_bit_plain_decoding(name, dtype, threads):
    """Across block and chunk boundaries, for keys, values and logits: what makes bf16 speculation
    exact.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        lm = LM(tiny.stock(name, dtype=dtype), name)
        cache = lm.new_cache(1, 300)
        for prompt in tiny.prompts(120, 4, 250):
            cache.length.zero_()
            lm.prefill(prompt, cache)
            begin = int(cache.length)
            drafted = torch.randint(3, 96, (1, 11))
            together = lm(Tree.chain(drafted), cache)
            written = [
                x[:, begin : begin + 11].clone() for i in cache.layers for x in cache.read(i, 0)
            ]
            apart = []
            for token in drafted.T:
                apart.append(lm(Tree.root(token), cache))
                cache.length += 1
            assert torch.equal(together, torch.cat(apart, 1))
            again = [x[:, begin : begin + 11] for i in cache.layers for x in cache.read(i, 0)]
            assert all(torch.equal(a, b) for a, b in zip(written, again, strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.full
@pytest.mark.each_value
@torch.inference_mode()
@pytest.mark.parametrize("rows", ["first", "last", "ends", "all", "mean"])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("name", FAMILY)
def test_taps_equal_transformers(name, split, rows):
    """Scores of every key head apart or together, and the residual stream at the ends and in the
    middle.
    """
    lm = tiny.target(name)
    prompts = tiny.prompts(70, 41)

    def run():
        cache = lm.new_cache(2, 160)
        for b, p in enumerate(prompts):
            lm.prefill(p, cache.row(b))
        captured = Captures(CaptureSpec(rows=rows, of="weights", split=split, hidden=(0, 1, 3)))
        lm(Tree.chain(torch.tensor([[5, 6, 7], [8, 9, 10]])), cache, captured=captured)
        return dict(captured.scores), captured.states

    (fast, states), (slow, wanted) = both_ways(lm, run)
    torch.testing.assert_close(
        fast, slow, rtol=1 / 256 if rows == "mean" and not split else 1e-4, atol=1e-5
    )
    torch.testing.assert_close(states, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.usefixtures("build")
def test_every_build_is_right_in_bfloat16():
    """Against the same weights in float32 not much worse than Transformers in bfloat16; and the
    same row by row.
    """
    half, (prompt,) = LM(tiny.stock("wide", dtype=torch.bfloat16), "wide"), tiny.prompts(1100)
    exact = LM(tiny.stock("wide", dtype=torch.bfloat16).float(), "wide")
    for width in (1, 3, 8, 16, 21):
        drafted = torch.randint(3, 96, (1, width), generator=torch.Generator().manual_seed(width))
        found = []
        for lm, by_transformers in ((exact, True), (half, True), (half, False)):
            kept = lm.backend
            lm.backend = lm.eager if by_transformers else lm.backend
            cache = lm.new_cache(1, 1200)
            lm.prefill(prompt, cache)
            captured = Captures(CaptureSpec(rows="mean", of="weights"))
            logits = lm(Tree.chain(drafted), cache, captured=captured)
            found.append([logits.float(), torch.stack(list(captured.scores.values())).float()])
            lm.backend = kept
        for truth, theirs, ours in zip(*found, strict=True):
            assert (ours - truth).abs().mean() <= 1.5 * (theirs - truth).abs().mean()
        alone = []
        for token in drafted.T:
            alone.append(half(Tree.root(token), cache))
            cache.length += 1
        assert torch.equal(torch.cat(alone, 1), logits)


@torch.inference_mode()
def test_rows_do_not_touch_each_other():
    lm = tiny.target("qwen3")
    prompts = tiny.prompts(70, 41, 133)
    cache = lm.new_cache(3, 160)
    for b, p in enumerate(prompts):
        lm.prefill(p, cache.row(b))
    tree = bushy(Tree.root(torch.tensor([5, 6, 7])))
    side_by_side = lm(tree, cache)
    for b in range(3):
        alone = Tree(
            tree.tokens[b : b + 1],
            tree.parent[b : b + 1],
            tree.depth[b : b + 1],
            tree.mask[b : b + 1],
        )
        real = tree.parent[b] != PAD
        assert torch.equal(lm(alone, cache.row(b))[0, real], side_by_side[b, real])


@torch.inference_mode()
def test_scratch_beyond_the_pass_is_not_read():
    lm, (prompt,) = tiny.target("llama"), tiny.prompts(60)
    cache = lm.new_cache(1, 200)
    lm.prefill(prompt, cache)
    clean = lm(Tree.root(torch.tensor([5])), cache).clone()
    for layer in cache.layers:
        for x in cache.read(layer, 0):
            x[:, len(prompt) + 1 :] = float("nan")
    assert torch.equal(lm(Tree.root(torch.tensor([5])), cache), clean)


def test_what_it_does_not_compute_it_refuses():
    assert not fits(tiny.stock("deepseek"), {})
    model = tiny.stock("llama")
    assert fits(model, {})
    projection = model.model.layers[1].self_attn.q_proj

    class Adapted(torch.nn.Linear):
        pass

    model.model.layers[1].self_attn.q_proj = Adapted(
        projection.in_features, projection.out_features, bias=False
    )
    assert not fits(model, {})


class Adapted(torch.nn.Module):
    """What an adapter does: the product, and something beside it."""

    def __init__(self, whole: torch.nn.Module):
        super().__init__()
        self.whole = whole
        self.weight = getattr(whole, "weight", None)
        self.bias = getattr(whole, "bias", None)

    def forward(self, x):
        out = self.whole(x)
        return out + 0.5 * out.flip(-1)


class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x


WRAPS = {
    "head": lambda m: setattr(m, "lm_head", Adapted(m.lm_head)),
    "embedding": lambda m: setattr(m.model, "embed_tokens", Adapted(m.model.embed_tokens)),
    "norm": lambda m: setattr(m.model, "norm", Adapted(m.model.norm)),
    "layer norm": lambda m: setattr(
        m.model.layers[1], "input_layernorm", Adapted(m.model.layers[1].input_layernorm)
    ),
    "mlp": lambda m: setattr(m.model.layers[0], "mlp", Adapted(m.model.layers[0].mlp)),
    "hook": lambda m: m.model.layers[1].mlp.register_forward_hook(
        lambda module, args, out: 2 * out
    ),
    "hook before": lambda m: m.lm_head.register_forward_pre_hook(
        lambda module, args: (2 * args[0],)
    ),
    "parametrization": lambda m: torch.nn.utils.parametrize.register_parametrization(
        m.lm_head, "weight", Twice()
    ),
    "forward": lambda m: setattr(m.model.norm, "forward", lambda x: 2 * x),
    "activation": lambda m: setattr(m.model.layers[0].mlp, "act_fn", torch.nn.ReLU()),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", WRAPS)
def test_what_is_hung_on_a_model_is_computed(what):
    """An adapter or a hook in any place: the native step, which would not see it, is not taken."""
    with torch.inference_mode(False):
        model = tiny.stock("llama")
        stock = tiny.stock("llama")
        WRAPS[what](model)
    ids = torch.tensor([[5, 6, 7]])
    wanted = model(input_ids=ids, use_cache=False).logits
    other = stock(input_ids=ids, use_cache=False).logits
    assert not torch.allclose(wanted, other, atol=1e-3)
    lm = LM(model)
    torch.testing.assert_close(
        lm(Tree.chain(ids), lm.new_cache(1, 8)), wanted, rtol=1e-4, atol=1e-4
    )


@torch.inference_mode()
def test_hooks_that_only_record_leave_a_model_as_it_is():
    model = tiny.stock("llama")
    model(input_ids=torch.tensor([[5]]), output_hidden_states=True, output_attentions=True)
    assert any(m._forward_hooks for m in model.modules()) and fits(model, {})


@torch.inference_mode()
def test_a_wrong_weight_shows():
    """The comparison above can fail: a native step over other weights differs."""
    lm = tiny.target("llama")
    other = NativeBackend(Architecture(tiny.stock("llama", seed=1)))
    cache = lm.new_cache(1, 40)
    tree = Tree.root(torch.tensor([5]))
    assert not torch.allclose(
        lm(tree, cache), other.forward(tree, cache, 0, None, Captures()), atol=1e-2
    )


def test_uniform_numbers_are_the_same_bits():
    """Of seeds and positions of any size and sign, whichever way they are computed."""
    g = torch.Generator().manual_seed(0)
    for rows, nodes, vocab in ((1, 1, 7), (3, 8, 4096), (2, 69, 131)):
        seed = torch.randint(-(1 << 62), 1 << 62, (rows,), generator=g)
        position = torch.randint(0, 1 << 40, (rows, nodes), generator=g)
        found = noise.uniform(seed, position, vocab)
        assert torch.equal(found, noise.uniform(seed, position, torch.arange(vocab)))
        assert torch.equal(noise.uniform(seed, position[:, 1:], vocab), found[:, 1:])


@torch.inference_mode()
@pytest.mark.parametrize(
    "view", [None, SinkWindow(3, 0.1, 12), Guided(0.1, 12)], ids=["all", "window", "guided"]
)
@pytest.mark.parametrize("name", ["llama", "qwen3", "llama-mha", "qwen2", "wide"])
def test_a_block_equals_torch(name, view):
    """Rows of unequal lengths (one has nothing committed), level by level, under views, over a ring
    that has turned.
    """
    lm = tiny.target(name)
    seqs = prefill(lm, tiny.prompts(70, 1, 23), 40, Sampler(temperature=1.0), 0, ())
    some = 40 if name in ("qwen3", "wide") else 0  # of the target's tokens
    both = GlideDrafter(
        random_glide(lm, 3, with_norm=name == "qwen3", vocab=some), [3, 4, 2], view, window=11
    )
    assert both.compiled is not None
    both.start(seqs)
    for _ in range(3):
        captured = Captures(both.captures())
        lm(Tree.root(seqs.last), seqs.cache, captured=captured)
        both.policy.update(seqs.cache, captured)
        both.ring.refresh(seqs.tokens, seqs.length - 1)
        selected = both.policy.view(seqs.cache)
        tree = bushy(Tree.root(seqs.last))
        for start in (0, 1, 4):
            part = Tree(
                *(x[:, : start + 3] for x in (tree.tokens, tree.parent, tree.depth)),
                tree.mask[:, : start + 3, : start + 3],
            )
            fast = both.logits(part, start, seqs, selected)
            kept = both.compiled
            both.compiled = None
            slow = both.logits(part, start, seqs, selected)
            both.compiled = kept
            torch.testing.assert_close(fast, slow.float(), rtol=1e-4, atol=1e-4)
        step(lm, both, seqs, match, Stats())


@torch.inference_mode()
def test_accepted_nodes_keep_their_keys_in_the_ring():
    """The ring after many rounds is what a new one computes from the text."""
    lm = tiny.target("llama")
    seqs = prefill(lm, tiny.prompts(40), 60, Sampler(), 0, ())
    drafter = GlideDrafter(tiny.taught_glide(lm), [2, 2, 2], window=16)
    drafter.start(seqs)
    for _ in range(8):
        done = step(lm, drafter, seqs, match, Stats())
        assert len(done.tokens[0]) >= 1
        computed = drafter.ring._owner.clone()
        drafter.ring.refresh(seqs.tokens, seqs.length - 1)
        fresh = GlideRing(drafter.block, 1, 16)
        fresh.refresh(seqs.tokens, seqs.length - 1)
        assert torch.equal(drafter.ring._owner, fresh._owner)
        torch.testing.assert_close(
            drafter.ring.k[:, :, :16], fresh.k[:, :, :16], rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            drafter.ring.v[:, :, :16], fresh.v[:, :, :16], rtol=1e-4, atol=1e-5
        )
        # at most the last accepted node's key was missing
        assert (computed == fresh._owner).sum() >= 15


@pytest.mark.skipif(native.library() is None, reason="no native build runs here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bundled_model_takes_the_native_step(dtype):
    """Also a second time on the same Transformers model: what the first LM hung on it only looks
    on.
    """
    lm, _ = load("bundled", dtype)
    assert lm.exact and LM(lm.hf).exact


# A part of a description, and a field of the kernels' structures without which it would be missing.
FORGOTTEN = {
    "a norm after attention": ("gemma3", 1, "mixer_output_norm", None),
    "a norm after the MLP": ("glm4", 1, "mlp_output_norm", None),
    "the base of another kind of layer": ("gemma3", 1, "rotation", 0),
    "a layer without rotation": ("smollm3", 1, "rotation", 0),
    "a window": ("cwm", 0, "window", 0),
    "a window of one more": ("cwm", 0, "window", 25),
    "a cap of scores": ("gemma2-softcap", 1, "cap", 0.0),
    "a scale of embeddings": ("gemma", None, "embedding_scale", 0.0),
    "a scale of what is added": ("granite", None, "residual_scale", 0.0),
    "the divisor of logits": ("granite", None, "logit_divisor", 0.0),
    "the cap of logits": ("gemma2-softcap", None, "logit_cap", 0.0),
    "pairs side by side": ("glm4", None, "interleaved", 0),
    "norms over all heads": ("olmo2", None, "joint_norms", 0),
    "an activation": ("arcee", None, "activation", 0),
    "norms without the mean": ("cohere", None, "layer_norms", 0),
    "the bias of a norm": ("starcoder2", 1, "input_norm_bias", None),
    "the bias of a norm before the MLP": ("nemotron", 1, "mlp_norm_bias", None),
    "norms behind the rotation": ("hunyuan-moe", None, "late_norms", 0),
    "sinks": ("gpt-oss", 1, "sinks", None),
    "a limit inside experts": ("gpt-oss", None, "mlp_limit", 99.0),
    "a slope": ("gpt-oss", None, "mlp_slope", 1.0),
    "gates of heads": ("laguna", 1, "gates", native.Linear()),
    "what gates go through": ("laguna", None, "gate_function", 0),
    "gates of numbers": ("afmoe", 1, "gates", native.Linear()),
    "a part of a head that turns": ("laguna", 1, "frequencies", 0),
    "a temperature": ("ministral3", None, "growth", 0.0),
    "the span of a temperature": ("ministral3", None, "span", 99.0),
    "a limit of queries": ("olmo", None, "limit", 0.0),
    "a norm of embeddings": ("nanochat", None, "embedding_norm", None),
    "the exact GELU": ("gpt-neox", None, "activation", 0),
    "slopes of an xIELU": ("apertus", None, "activation", 4),
    "the bias of a norm of queries": ("persimmon", 1, "q_norm_bias", None),
    "the bias of a norm of keys": ("phi", 1, "k_norm_bias", None),
    "the norm of an MLP beside attention": ("gpt-neox", 1, "mlp_norm", None),
    "positions": ("gpt2", None, "positions", None),
    "the first position": ("opt", None, "first_position", 0),
    "the epsilon of a latent's norm": ("youtu", None, "latent_eps", 1.0),
}
# The same of a layer's experts; also by how many of them a node goes through.
FORGOTTEN_OF_EXPERTS = {
    "an expert": ("mixtral", "chosen", 1),
    "shares of all experts": ("olmoe", "normalized", 1),
    "scoring": ("minimax-m2", "scoring", 0),
    "a scale of shares": ("glm4-moe", "scale", 1.0),
    "a correction": ("minimax-m2", "correction", None),
    "groups": ("glm4-moe", "groups", 2),
    "groups that are chosen": ("dots1", "chosen_groups", 4),
    "the gate of a shared expert": ("qwen2-moe", "shared_gate", None),
    "a scale of the shared expert": ("cohere2-moe", "shared_scale", 1.0),
    "a correction of scores": ("kolibri1", "corrects_scores", 0),
    "a group's best": ("deepseek-v2-groups", "group_bests", 2),
    "a group's two best": ("deepseek-v3", "group_bests", 1),
}


@pytest.mark.whole
@torch.inference_mode()
@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_part_that_is_forgotten_is_noticed(what):
    name, layer, field, value = FORGOTTEN[what]
    if name not in tiny.DESCRIBED:
        pytest.skip("this version of Transformers computes it elsewhere")
    lm = LM(tiny.stock(name), name)
    [prompt] = tiny.prompts(70)

    def logits():
        cache = lm.new_cache(1, 80)
        lm.prefill(prompt[:-1], cache)
        return lm(Tree.root(torch.tensor(prompt[-1:])), cache)

    fast, slow = both_ways(lm, logits)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    model = lm.backend.step.model
    setattr(model if layer is None else model.layer[layer], field, value)
    assert (logits() - slow).abs().max() > 1e-3


@pytest.mark.whole
@torch.inference_mode()
@pytest.mark.parametrize("what", FORGOTTEN_OF_EXPERTS)
def test_a_part_of_experts_that_is_forgotten_is_noticed(what):
    name, field, value = FORGOTTEN_OF_EXPERTS[what]
    if name not in (*tiny.DESCRIBED, *tiny.MAIN):
        pytest.skip("this version of Transformers lacks it")
    lm = LM(tiny.stock(name), name)
    [prompt] = tiny.prompts(70)
    tree = Tree.chain(torch.tensor([prompt[-30:]]))

    def logits():
        cache = lm.new_cache(1, 80)
        lm.prefill(prompt[:-30], cache)
        return lm(tree, cache)

    fast, slow = both_ways(lm, logits)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    for layer in lm.backend.step.model.layer[: lm.depth]:
        if layer.experts:
            setattr(layer.experts[0], field, value)
    assert (logits() - slow).abs().max() > 1e-3


@torch.inference_mode()
@pytest.mark.parametrize("name", tiny.JOINED_A8)
def test_projections_side_by_side_stay_packed(monkeypatch, name):
    """Planted: the parts of a layer change places."""
    tree = Tree.chain(torch.tensor(tiny.prompts(40)))
    plain = name.removesuffix("-a8")

    def made() -> LM:
        hf = tiny.stock(plain)
        quantize(hf, "int4")
        round_inputs(hf)
        return LM(hf, name, activations="int8")

    lm = made()
    fast, slow = both_ways(lm, lambda: lm(tree, lm.new_cache(1, 64)))
    torch.testing.assert_close(fast, slow, rtol=0.02, atol=0.02 * float(slow.abs().max()))
    divided = describe_parts._packed_rows

    def swapped(*given):
        *first, left, right = divided(*given)
        return [*first, right, left]

    monkeypatch.setattr(describe_parts, "_packed_rows", swapped)
    wrong = made()
    assert wrong.backend.name == "native"
    assert (wrong(tree, wrong.new_cache(1, 64)) - slow).abs().max() > 0.05 * slow.abs().max()


def tied(only: int | None = None) -> torch.Tensor:
    """Logits of a model whose routers give all experts one score; only: all its experts have the
    weights of this one.
    """
    with torch.inference_mode(False):
        hf = tiny.stock("mixtral", num_experts_per_tok=1)
        for layer in hf.model.layers:
            layer.mlp.gate.weight.data.zero_()
            for weights in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
                weights.data[:] = weights.data if only is None else weights.data[only].clone()
    lm = LM(hf, "mixtral")
    assert lm.backend.name == "native"
    cache = lm.new_cache(1, 20)
    return lm(Tree.chain(torch.tensor([[5, 6, 7]])), cache)


@torch.inference_mode()
def test_of_equal_scores_the_lowest_expert_is_chosen():
    assert torch.equal(tied(), tied(only=0))
    assert not torch.allclose(tied(), tied(only=3), atol=1e-2)  # so that another choice would show


def exchanged(lm: LM) -> None:
    """Planted: two experts have each other's weights."""
    experts = lm.backend.step.model.layer[1].experts[0]
    experts.down[0], experts.down[1] = experts.down[1], experts.down[0]


@pytest.mark.whole
@torch.inference_mode()
def test_an_expert_of_another_node_is_noticed():
    lm = LM(tiny.stock("mixtral"), "mixtral")
    prompts = tiny.prompts(40)

    def logits():
        cache = lm.new_cache(1, 60)
        lm.prefill(prompts[0][:-8], cache)
        return lm(Tree.chain(torch.tensor([prompts[0][-8:]])), cache)

    fast, slow = both_ways(lm, logits)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    exchanged(lm)
    assert (logits() - slow).abs().max() > 1e-3


@torch.inference_mode()
def test_a_norm_without_its_one_is_noticed(monkeypatch):
    monkeypatch.setattr(StepPins, "weights", lambda self, norm: norm and self.norm(norm.module))
    monkeypatch.setattr(tiny, "target", lambda name: LM(tiny.stock(name), name))  # not one kept
    with pytest.raises(AssertionError):
        test_equals_transformers("gemma3", None, "logits")
