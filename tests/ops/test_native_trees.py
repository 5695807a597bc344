"""A node of a tree has plain decoding's numbers to the bit, wherever its path lies among other
branches.
"""

from __future__ import annotations

import pytest
import torch
from support import tiny
from torch import Tensor

from longdraft.core.capture import Captures, CaptureSpec
from longdraft.core.tree import PAD, Tree
from longdraft.models.lm import LM
from longdraft.ops import native
from longdraft.views import View

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="the package was built without a C++ compiler"
)
FAMILY = ["llama", "qwen3", "mistral-window", "qwen3-mixed", *tiny.DESCRIBED]
each_kv = pytest.mark.parametrize("kv", [None, "int8"])
# Just before, at and after the bounds of chunks (256 slots) and blocks (1,024); inside them; almost
# nothing.
LENGTHS = [4, 121, 250, 255, 256, 1019]


def scattered(size: int, seed: int) -> Tree:
    """A random tree of one row, its paths full of gaps; the last node is padding."""
    g = torch.Generator().manual_seed(seed)
    tree = Tree.root(torch.tensor([5]))
    for n in range(1, size):
        low = max(0, n - 6)  # deep enough to cross a bound
        parent = torch.randint(low, n, (1, 1), generator=g)
        tree = tree.grow(parent, torch.randint(3, 96, (1, 1), generator=g))
    return tree.grow(torch.tensor([[PAD]]), torch.tensor([[7]]))


def paths(tree: Tree) -> list[list[int]]:
    return [
        tree.mask[0, n].nonzero()[:, 0].tolist()
        for n in range(tree.size)
        if int(tree.parent[0, n]) != PAD
    ]


def in_the_tree_and_alone(
    lm: LM, prompt: list[int], tree: Tree, view: View | None = None
) -> tuple[list, list]:
    """Each node's logits and its scores of the committed text, in the tree and at the end of its
    own path alone.
    """
    cache = lm.new_cache(1, 64)
    lm.prefill(prompt, cache)
    captured = Captures(CaptureSpec(rows="all", of="weights"))
    logits = lm(tree, cache, view=view, captured=captured)

    def row(found: Tensor, captured: Captures, n: int) -> list[Tensor]:
        return [found[0, n], *(captured.scores[i][0, n] for i in sorted(captured.scores))]

    together = []
    alone = []
    for path in paths(tree):
        single = Captures(CaptureSpec(rows="last", of="weights"))
        chain = lm(Tree.chain(tree.tokens[:, path]), cache, captured=single)
        together.append(row(logits, captured, path[-1]))
        alone.append([chain[0, -1], *(single.scores[i][0, 0] for i in sorted(single.scores))])
    return together, alone


def differing(together: list, alone: list) -> int:
    return sum(
        not all(torch.equal(a, b) for a, b in zip(*pair, strict=True))
        for pair in zip(together, alone, strict=True)
    )


@torch.inference_mode()
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "kv"),
    [
        *((name, None) for name in FAMILY),
        *((name, "int8") for name in FAMILY if name not in tiny.LATENTS),
    ],
)
def test_a_tree_is_bit_for_bit_plain_decoding(name, dtype, kv):
    lm = LM(tiny.stock(name, dtype=dtype), name, kv=kv)
    for seed, prompt in enumerate(tiny.prompts(*LENGTHS)):
        assert differing(*in_the_tree_and_alone(lm, prompt, scattered(21, seed))) == 0


@torch.inference_mode()
@each_kv
@pytest.mark.usefixtures("build")
def test_in_every_build(kv):
    lm = LM(tiny.stock("wide", dtype=torch.bfloat16), "wide", kv=kv)
    (prompt,) = tiny.prompts(1020)
    assert differing(*in_the_tree_and_alone(lm, prompt, scattered(40, 1))) == 0


@pytest.mark.each_value
@torch.inference_mode()
@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rank", "rotated"), [(256, 32), (512, 64)])
def test_wide_latents_in_every_build(rank, rotated, dtype):
    """Slots as wide as those of MiniCPM3 and DeepSeek."""
    if not tiny.LATENTS:
        pytest.skip("this version of Transformers caches expanded heads")
    sizes = {"kv_lora_rank": rank, "qk_rope_head_dim": rotated, "head_dim": rotated}
    hf = tiny.stock("youtu", dtype=dtype, **sizes)
    lm = LM(hf, "youtu")
    (prompt,) = tiny.prompts(1020)
    assert differing(*in_the_tree_and_alone(lm, prompt, scattered(40, 1))) == 0
    if dtype == torch.bfloat16:
        return
    tree = Tree.chain(torch.tensor([prompt[:70]]))
    right = lm.eager.forward(tree, lm.new_cache(1, 80), 0, None, Captures(CaptureSpec()))
    torch.testing.assert_close(lm(tree, lm.new_cache(1, 80)), right, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("length", [2, 64, 129, 513, 1000, 3001])
def test_one_query_to_a_key_head(length):
    """A single row over 8-bit keys takes other functions than several rows, with the same sums."""
    heads = {"num_key_value_heads": 4, "max_position_embeddings": 4096}
    lm = LM(tiny.stock("wide", **heads), "wide", kv="int8")
    (prompt,) = tiny.prompts(length)
    tokens = torch.arange(5, 14)[None]
    cache = lm.new_cache(1, length + 64)
    lm.prefill(prompt, cache)
    together = lm(Tree.chain(tokens), cache)[0]
    alone = list[torch.Tensor]()
    for token in tokens[0]:
        alone.append(lm(Tree.root(token[None]), cache)[0, 0])
        cache.keep(torch.tensor([[0]]), torch.tensor([1]))
    assert torch.equal(together, torch.stack(alone))


@torch.inference_mode()
def test_the_mask_alone_is_not_enough():
    """A pass under a view keeps the tree's own order of sums: what verification did before, and
    this test can tell.
    """
    lm = LM(tiny.stock("llama", dtype=torch.bfloat16), "llama")
    everything = View(torch.zeros(1, 1, 0, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    (prompt,) = tiny.prompts(121)
    assert differing(*in_the_tree_and_alone(lm, prompt, scattered(21, 0), everything)) > 0


@torch.inference_mode()
@each_kv
def test_what_a_tree_commits_is_what_plain_decoding_writes(kv):
    """Keys and values of an accepted path, moved to their places, and every step after them."""
    lm = LM(tiny.stock("qwen3", dtype=torch.bfloat16), "qwen3", kv=kv)
    (prompt,) = tiny.prompts(252)
    tree = scattered(30, 3)
    path = max(paths(tree), key=len)
    found = []
    for tokens, kept in ((tree, path), (Tree.chain(tree.tokens[:, path]), list(range(len(path))))):
        cache = lm.new_cache(1, 64)
        lm.prefill(prompt, cache)
        lm(tokens, cache)
        cache.keep(torch.tensor([kept]), torch.tensor([len(kept)]))
        end = int(cache.length)
        logits = lm(Tree.root(torch.tensor([9])), cache)
        found.append(
            [logits, *(x[:, :end].clone() for i in cache.layers for x in cache.stored(i, 0))]
        )
    assert len(path) > 4 and all(torch.equal(a, b) for a, b in zip(*found, strict=True))
