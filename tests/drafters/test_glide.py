"""LongSpec's block and its drafter against a plain implementation with explicit masks."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.checks import PENALTY, SAMPLERS, SEED, check_full_acceptance, check_lossless, plain
from support.structure import branching, close
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

from longdraft import InputError, Sampler, Stats, generate, reject
from longdraft.core.sequences import Sequences
from longdraft.core.tree import DraftLimits, Tree
from longdraft.core.verify import Verdict
from longdraft.drafters import Drafter, Glide, GlideDrafter, SelfDrafter, random_glide
from longdraft.drafters.glide.block import Host
from longdraft.drafters.kinds import KINDS
from longdraft.engine.generate import prefill
from longdraft.models.lm import LM
from longdraft.ops import StoredRow
from longdraft.views import Full, Guided

SHAPES = ["llama", "qwen3", "gpt-oss", "llama-mqa", "llama-mha", "llama-6of3", "gemma3", "phi3"]
WINDOW = 9


def loud(target: LM, seed: int = 0, **options) -> Glide:
    """A block whose every part weighs as much as the embedding: a wrong key anywhere shows."""
    block = random_glide(target, seed, **options)
    g = torch.Generator().manual_seed(seed)
    for p in block.parameters():
        nn.init.normal_(p, std=0.25, generator=g) if p.dim() > 1 else nn.init.uniform_(
            p, 0.5, 1.5, generator=g
        )
    return block


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def heads(x: Tensor, count: int) -> Tensor:
    """[N,heads*D] -> [1,heads,N,D]."""
    return x.view(1, len(x), count, -1).transpose(1, 2)


def naive(block: Glide, name: str, text: list[int], path: list[int]) -> Tensor:
    """Logits [V] after path, of which text is verified, by the paper's formulas over all of the
    text.

    The target's keys come from Transformers' own cache, the rotation from its own functions.
    """
    model = tiny.eager(name)
    p = dict(block.named_parameters())
    ids = torch.tensor([text + path])
    module = __import__(type(model).__module__, fromlist=["x"])
    T = ids.shape[1]
    H = block.heads
    K = block.host.keys
    eps = model.config.rms_norm_eps
    kind = (model.config.layer_types[block.host.layer],) if "gemma3" in name else ()
    x = model.get_input_embeddings()(ids)[0]
    at = torch.arange(T)
    turn = model.model.rotary_emb(x, at[None], *kind)

    def linear(part: str, x: Tensor) -> Tensor:
        return x @ p[f"{part}.weight"].T + p.get(f"{part}.bias", torch.zeros(()))

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = (y[0].repeat_interleave(H // K, 0) for y in (k, v))
        logits = (q[0] @ k.mT / block.host.dim**0.5).masked_fill(~mask, float("-inf"))
        return (logits.softmax(-1) @ v).transpose(0, 1).reshape(T, -1)

    normed = norm(x, p["self_norm.weight"], eps)
    q = heads(linear("q_proj", normed), H)
    k = heads(linear("k_proj", normed), K)
    v = heads(linear("v_proj", normed), K)
    q, k = module.apply_rotary_pos_emb(q, k, *turn)
    ago = at[:, None] - at
    x = x + linear("o_proj", attention(q, k, v, (ago >= 0) & (ago <= block.window)))
    cache = DynamicCache()
    model(input_ids=ids[:, : len(text)], past_key_values=cache, use_cache=True)
    layer = cache.layers[block.host.layer]
    q = heads(linear("cross_q_proj", norm(x, p["cross_norm.weight"], eps)), H)
    q = module.apply_rotary_pos_emb(q, q, *turn)[0]
    seen = torch.ones(T, len(text), dtype=torch.bool)
    x = x + linear("cross_o_proj", attention(q, layer.keys, layer.values, seen))
    normed = norm(x, p["mlp_norm.weight"], eps)
    gate = nn.functional.silu(linear("gate_proj", normed))
    x = x + linear("down_proj", gate * linear("up_proj", normed))
    x = model.model.norm(x) if block.with_norm else x
    return model.get_output_embeddings()(x)[-1]


def rows(target: LM, prompts: list[list[int]], new: int = 40) -> Sequences:
    return prefill(target, prompts, new, Sampler(), SEED, ())


def drafted(drafter: GlideDrafter, seqs: Sequences, tree: Tree) -> Tensor:
    """Logits of every node, level by level as a beam asks for them."""
    drafter.ring.refresh(seqs.tokens, seqs.length - 1)
    parts = []
    view = drafter.policy.view(seqs.cache)
    for start, size in ((0, 1), (1, 3), (3, 6), (6, 7)):
        part = Tree(
            tree.tokens[:, :size],
            tree.parent[:, :size],
            tree.depth[:, :size],
            tree.mask[:, :size, :size],
        )
        parts.append(drafter.logits(part, start, seqs, view))
    return torch.cat(parts, 1)


def check_against_naive(drafter: GlideDrafter, name: str, seqs: Sequences) -> None:
    tree = branching(
        len(seqs.length), torch.cat([seqs.last[:, None], tiny_tokens(len(seqs.length), 6)], 1)
    )
    found = drafted(drafter, seqs, tree)
    for b, n in enumerate(seqs.length.tolist()):
        text = seqs.tokens[b, : n - 1].tolist()
        for node in range(tree.size):
            path = tree.tokens[b, tree.mask[b, node]].tolist()
            close(found[b, node], naive(drafter.block, name, text, path), 1e-4)


def tiny_tokens(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(3, 96, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("with_norm", [False, True], ids=["", "final norm"])
def test_it_computes_the_formulas(name, with_norm):
    target = tiny.target(name)
    seqs = rows(target, tiny.prompts(40, 2, WINDOW + 1))
    drafter = GlideDrafter(loud(target, window=WINDOW, with_norm=with_norm), [2, 3, 1])
    drafter.start(seqs)
    check_against_naive(drafter, name, seqs)


@pytest.mark.full
@torch.no_grad()
def test_the_ring_is_right_after_any_commits_and_rollbacks():
    """Rows grow, shrink and are rewritten at random; only what changed is computed anew."""
    target = tiny.target("llama")
    g = torch.Generator().manual_seed(0)
    drafter = GlideDrafter(loud(target, window=WINDOW), [2, 3, 1])
    texts = tiny.prompts(30, 2, 12)
    drafter.start(rows(target, texts, 100))
    for turn in range(25):
        for b, text in enumerate(texts):
            keep = len(text) - int(torch.randint(0, 8, (), generator=g)) * int(
                torch.randint(0, 2, (), generator=g)
            )
            more = int(torch.randint(0, 2 * WINDOW if turn == 5 else 6, (), generator=g))
            texts[b] = (text[: max(keep, 2)] + torch.randint(3, 96, (more,), generator=g).tolist())[
                :90
            ]
        check_against_naive(drafter, "llama", rows(target, texts, 100 - max(map(len, texts))))


@torch.no_grad()
def test_a_round_computes_the_new_keys_alone(monkeypatch):
    target = tiny.target("llama")
    drafter = GlideDrafter(loud(target, window=16), [1, 1])
    asked = []
    keys_of = Glide.keys_of
    monkeypatch.setattr(
        Glide, "keys_of", lambda self, t, p: asked.append(t.shape[1]) or keys_of(self, t, p)
    )
    seqs = rows(target, tiny.prompts(40, 5))
    drafter.start(seqs)
    for length in ([40, 5], [40, 5], [43, 6], [43, 6], [42, 6], [43, 6]):
        seqs.length = torch.tensor(length)
        drafter.ring.refresh(seqs.tokens, seqs.length - 1)
    # after one position back, one old key is needed again, then the new one
    assert asked == [
        16 + 4,
        3 + 1,
        1,
        1,
    ]


@torch.inference_mode()
def test_a_tree_in_place_of_its_draft_moves_no_keys():
    """A constraint's tokens replace what was drafted in some rows: a node's number is another
    node's then, maybe with the same token at another position.
    """
    target = tiny.target("llama")
    drafter = GlideDrafter(loud(target, window=16), [2, 1])
    seqs = rows(target, tiny.prompts(40, 25))
    drafter.start(seqs)
    drafter.grow(Tree.root(seqs.last), seqs, DraftLimits())
    assert drafter.ring.drafted is not None
    drafter.idle()
    ring = [x.clone() for x in (drafter.ring.k[:, :, :16], drafter.ring._owner)]
    path = torch.tensor([[0, 1, 3], [0, 2, 4]])
    drafter.ring.keep(Verdict(path, torch.tensor([3, 3]), path))
    assert torch.equal(drafter.ring.k[:, :, :16], ring[0])
    assert torch.equal(drafter.ring._owner, ring[1])


@torch.no_grad()
def test_its_memory_does_not_grow_with_the_context():
    target = tiny.target("llama")
    sizes = []
    for length in (30, 400):
        drafter = GlideDrafter(random_glide(target, window=16), [3, 4, 4])
        generate(target, tiny.prompts(length), drafter, max_new_tokens=30)
        held = [x for x in vars(drafter.ring).values() if isinstance(x, Tensor)]
        sizes.append(sum(x.numel() * x.element_size() for x in held))
        assert drafter.ring.k.shape[2] <= 16 + 1 + 3 + 4 + 4
    assert sizes[0] == sizes[1]


@pytest.mark.full
@torch.inference_mode()
def test_it_reads_verified_keys_of_one_layer_and_all_of_them():
    target = tiny.target("gpt-oss")
    drafter = GlideDrafter(loud(target), [2, 3, 1])
    seqs = rows(target, tiny.prompts(20, 31))
    drafter.block.cross_q_proj.weight.mul_(0.01)  # else some slot's share rounds to nothing
    drafter.start(seqs)
    tree = branching(2, torch.cat([seqs.last[:, None], tiny_tokens(2, 6)], 1))
    want = drafted(drafter, seqs, tree)
    for layer in seqs.cache.layers:
        for b, m in enumerate(seqs.cache.length.tolist()):
            for x in seqs.cache.read(layer, b):
                x[:, 0 if layer != drafter.block.host.layer else m :] = float("nan")
    assert torch.equal(drafted(drafter, seqs, tree), want)
    assert drafter.block.host.layer == 3 and 3 not in target.windows
    for b, m in enumerate(seqs.cache.length.tolist()):
        for slot in range(m):
            v = seqs.cache.read(3, b)[1]
            kept = v[:, slot].clone()
            v[:, slot] += 1
            # every node of the row
            assert (drafted(drafter, seqs, tree)[b] != want[b]).any(-1).all()
            v[:, slot] = kept


@torch.inference_mode()
def test_a_target_of_windows_alone_lends_its_last_window():
    target = tiny.target("mistral-window")
    drafter = GlideDrafter(loud(target), [2, 3, 1])
    seqs = rows(target, tiny.prompts(50))
    drafter.start(seqs)
    tree = branching(1, torch.cat([seqs.last[:, None], tiny_tokens(1, 6)], 1))
    want = drafted(drafter, seqs, tree)
    seqs.cache.read(2, 0)[1][:, : 49 - 24] = float("nan")
    assert torch.equal(drafted(drafter, seqs, tree), want)


@pytest.mark.full
@pytest.mark.parametrize("score", ["logits", "weights"])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_view_of_everything_is_no_view(sampler, score):
    target = tiny.target("llama")
    trees = {}
    for name, policy in (
        ("all", None),
        ("view", Guided(0.07, 999, score)),
        ("sparse", Guided(0.07, 8, score)),
    ):
        drafter = GlideDrafter(loud(target, window=16), [2, 3, 3], policy)
        found = trees[name] = []
        drafter.grow = lambda t, s, lim, d=drafter, f=found: (
            f.append(GlideDrafter.grow(d, t, s, lim)) or f[-1]
        )
        check_lossless(lambda t, d=drafter: d, "llama", sampler, (70, 31))
    pairs = [
        [torch.equal(a.tokens, b.tokens) for a, b in zip(trees["all"], trees[n], strict=False)]
        for n in ("view", "sparse")
    ]
    assert all(pairs[0]) and not all(pairs[1])


@torch.no_grad()
def test_a_guided_draft_reads_its_picks_and_what_came_after():
    target = tiny.target("llama")
    drafter = GlideDrafter(loud(target, window=16), [1, 1, 1], Guided(0.07, 8))
    generate(target, tiny.prompts(60), drafter, max_new_tokens=6)
    seqs = rows(target, tiny.prompts(60))
    view = drafter.policy.view(seqs.cache)
    assert view.indices.shape[0] == 1 and set(view.layers) == {2}  # no other layer is ranked
    k, v = seqs.cache.read(2, 0)
    widths = {
        sum(s.k.shape[1] for s in view.segments(2, 0, StoredRow(k, v), m, None, k))
        for m in (int(view.tail_start[0]),)
    }
    assert widths == {8}


def one_layer(seed: int = 0) -> tuple[LM, Glide]:
    """A target of one layer, and a block that computes the same: its self-attention and MLP, no
    cross-attention.
    """
    config = deepcopy(tiny.CONFIGS["llama"])
    config.num_hidden_layers = 1
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for key, p in model.named_parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=1.0 if "embed" in key else 0.25)
    target = LM(model, "one layer")
    block = random_glide(target, with_norm=True)
    layer = model.model.layers[0]
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(block, name).weight.copy_(getattr(layer.self_attn, name).weight)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(block, name).weight.copy_(getattr(layer.mlp, name).weight)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(block, name).bias.zero_()
        block.cross_o_proj.weight.zero_()
    return target, block


@pytest.mark.full
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("widths", [[1] * 4, [3, 4, 4, 4]], ids=["chain", "tree"])
@pytest.mark.parametrize("window", [0, 8])
def test_a_block_that_computes_the_target_is_accepted(sampler, widths, window):
    """Through the ring, the rotation, the beam and the noise it drafts what the target itself
    would, node for node. A window that is too small costs acceptance.
    """
    target, block = one_layer()
    options = {"max_new_tokens": 1 + 6 * 5, "sampler": sampler, "seed": SEED}
    prompts = tiny.prompts(70, 31, 1)
    drafters = [GlideDrafter(block, widths, window=window), SelfDrafter(target, Full(), widths)]
    stats = [Stats(), Stats()]
    plain = generate(target, prompts, **options)
    assert all(
        generate(target, prompts, d, stats=s, **options) == plain
        for d, s in zip(drafters, stats, strict=True)
    )
    assert (stats[0].accepted == stats[1].accepted) == (window == 0)
    assert stats[1].mean_acceptance_length == 5 or len(widths) < sum(widths)


class Copying(GlideDrafter):
    """Does the block's work, then says what the target says."""

    def logits(self, tree, start, seqs, view):
        super().logits(tree, start, seqs, view)
        return self.block.host.target(tree, seqs.cache, start)

    def chain(self, tree, seqs, view):
        return None


def _same_trees(name: str, policy: Guided | None) -> list[Drafter]:
    target = tiny.target(name)
    widths = [2, 3, 3, 3]
    return [Copying(random_glide(target), widths, policy, 16), SelfDrafter(target, Full(), widths)]


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
@pytest.mark.parametrize("policy", [None, Guided(0.07, 16)], ids=["", "guided"])
def test_an_oracle_in_its_place_is_accepted(name, policy):
    for sampler in SAMPLERS.values():
        check_full_acceptance(
            lambda t: Copying(random_glide(t), [1] * 4, policy, 16), 4, name, sampler
        )
    tree = [check_lossless(lambda t, d=d: d, name) for d in _same_trees(name, policy)]
    assert tree[0].accepted == tree[1].accepted and tree[0].mean_acceptance_length > 3


# models whose keys LongSpec's block cannot rotate back
ROTATED_OTHERWISE = {"hunyuan", "hunyuan-moe", "phi", "persimmon", "cohere-compass"}
ROTATED_OTHERWISE |= {"granite-hybrid", "nemotron-h", "stablelm", "stablelm-parallel"}
ROTATED_OTHERWISE |= {"gpt2", "gpt-bigcode", "gpt-bigcode-heads", "opt"}
ROTATED_OTHERWISE &= tiny.CONFIGS.keys()
CACHING_LATENTS = {"deepseek", *tiny.LATENTS}


@pytest.mark.full
@pytest.mark.parametrize(
    "name", sorted(set(tiny.CONFIGS) - set(tiny.MAIN) - CACHING_LATENTS - ROTATED_OTHERWISE)
)
def test_other_architectures(name):
    for sampler in (SAMPLERS["greedy"], PENALTY):
        drafter = GlideDrafter(
            random_glide(tiny.target(name), window=16), [3, 4, 4], Guided(0.07, 16)
        )
        check_lossless(lambda t, d=drafter: d, name, sampler, (70, 1, 31))


@pytest.mark.parametrize("name", sorted(ROTATED_OTHERWISE))
def test_other_rotations_are_refused(name):
    with pytest.raises(InputError, match="rotates keys in a way that longspec does not support"):
        random_glide(tiny.target(name))


def test_a_rotation_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(Host, "rotate", lambda self, x, rotation: x * 2 + rotation[0].sum())
    with pytest.raises(
        InputError, match="llama rotates keys in a way that longspec does not support"
    ):
        random_glide(tiny.target("llama"))


@pytest.mark.parametrize("name", sorted(CACHING_LATENTS))
def test_latents_are_refused(name):
    with pytest.raises(InputError, match="caches latents, and longspec reads keys and values"):
        random_glide(tiny.target(name))


def test_keys_that_are_not_rotated_meet_queries_that_are_not():
    assert not random_glide(tiny.target("cohere2")).host.rotated


def test_reject_is_plain_decoding_when_greedy():
    target = tiny.target("llama")
    lengths = (70, 31)
    for widths in ([1] * 4, [3, 6]):
        drafter = GlideDrafter(tiny.taught_glide(target), widths)
        assert generate(
            target, tiny.prompts(*lengths), drafter, max_new_tokens=24, verify=reject
        ) == plain("llama", Sampler(), lengths, 24)


def test_the_file_holds_the_block_alone(tmp_path):
    target = tiny.target("llama")
    first, second = (random_glide(target, seed) for seed in (0, 1))
    save_file(first.state_dict(), tmp_path / "model.safetensors")
    weights = load_file(tmp_path / "model.safetensors")
    assert not any(word in key for key in weights for word in ("embed", "head", "target", "rotary"))
    assert all(
        96 not in x.shape or key.split("_")[0] in ("gate", "up", "down")
        for key, x in weights.items()
    )
    assert not torch.equal(first.q_proj.weight, second.q_proj.weight)
    second.load_state_dict(weights)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    again = KINDS["glide"].random(target, 0)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)
    )


def test_a_trainer_can_use_it():
    """Gradients reach every weight of the block through attention that the caller chooses."""
    target = tiny.target("llama")
    block = random_glide(target).train()
    tokens = tiny_tokens(2, 12)
    cache = target.new_cache(2, 16)
    with torch.no_grad():
        target(Tree.chain(tokens), cache)
    k, v = (torch.stack([cache.read(2, b)[i][:, :12] for b in range(2)]) for i in (0, 1))
    options = {"is_causal": True, "enable_gqa": True}

    def own(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

    def cross(q):  # noisy training: query t sees keys 0..t-1, the first none
        late = nn.functional.scaled_dot_product_attention(
            q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], **options
        )
        return nn.functional.pad(late, (0, 0, 1, 0)).transpose(1, 2)

    logits = block(tokens, torch.arange(12).expand(2, 12), own, cross)
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    assert all(
        p.grad is not None and bool(p.grad.any())
        for name, p in block.named_parameters()
        if name != "k_proj.bias"
    )


@torch.inference_mode()
def test_the_keys_of_a_pass_are_of_its_rows_and_its_block():
    """Compiled layers are given addresses, so a ring of other rows or numbers must not reach
    them.
    """
    target = tiny.target("llama")
    seqs = prefill(target, tiny.prompts(40, 23), 8, Sampler(), 0, ())
    drafter = GlideDrafter(random_glide(target), [1, 1], window=WINDOW)
    drafter.start(seqs)
    ring = drafter.ring
    keys = ring.keys(3, seqs.cache, None)
    assert keys.places == [(ring.k.data_ptr(), ring.v.data_ptr(), WINDOW + 3)]
    assert keys.target is seqs.cache and keys.ring == WINDOW
    ring.enter()
    with pytest.raises(ValueError, match="ring of 3 rows is not one of 2"):
        ring.keys(3, seqs.cache, None)
    ring.leave(2)
    ring.k = ring.k.double()
    with pytest.raises(ValueError, match="not one of its block"):
        ring.keys(3, seqs.cache, None)
