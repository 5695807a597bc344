"""Keys and values as codes of 4 or 8 bits: what they hold, what a pass reads of them, and when they
are made.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support import tiny
from support.checks import SEED
from torch import Tensor

from longdraft import Sampler, Stats, build, generate
from longdraft.core.capture import Captures
from longdraft.core.sampling import ChainDraws
from longdraft.core.tree import Tree
from longdraft.drafters import SelfDrafter
from longdraft.errors import InputError
from longdraft.models.lm import LM
from longdraft.models.memory_traffic import InCodes, keys_read
from longdraft.ops import Compact, StoredRow, coded, native, refill, select
from longdraft.ops import take as slots_of
from longdraft.views import Coded, Full, Guided, Policy, Quest, SinkWindow, SnapKV, View

each_bits = pytest.mark.parametrize("bits", [4, 8])
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)


def keys(slots: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """[3,slots,dim] of many sizes, some of them all zero, all equal or with one number far off."""
    g = torch.Generator().manual_seed(seed)
    k = torch.randn(3, slots, dim, generator=g) * torch.logspace(-3, 3, slots)[:, None]
    k[0, ::7] += 9.0
    k[1, 3], k[1, 4], k[2, 5], k[2, 6] = 0.0, -0.0, 2.5, torch.randn(dim, generator=g).relu()
    k[2, 7, 1] = 1e6
    return k.to(dtype)


@each_bits
@pytest.mark.parametrize("dim", [8, 16, 20, 32, 64, 80, 96, 128])
def test_each_number_is_rounded_to_the_nearest_of_its_blocks_codes(dim, bits):
    x = keys(40, dim)
    codes = coded.encode(x, bits)
    assert codes.shape == (3, 40, coded.width(dim, bits)) and codes.dtype == torch.uint8
    found = coded.decode(codes, bits, dim, torch.float32)
    for first in range(0, dim, 32):
        block = x[..., first : first + 32]
        near = found[..., first : first + 32]
        if bits == 8:
            largest = block.abs().amax(-1, keepdim=True)
            within = largest / 127 / 2 + largest / 256  # the second: the scale is rounded too
        else:
            low = block.amin(-1, keepdim=True)
            high = block.amax(-1, keepdim=True)
            within = (high - low) / 15 / 2 + torch.maximum(low.abs(), high - low) / 128
        assert ((near - block).abs() <= within * 1.01 + 1e-29).all()
    # the largest number keeps its code
    assert torch.equal(coded.encode(found, bits), codes) or bits == 4


@each_bits
def test_bytes_are_laid_out_as_documented(bits):
    x = torch.arange(64.0)[None]
    codes = coded.encode(x, bits)[0].unflatten(-1, (2, -1))
    scale = codes[:, :2].contiguous().view(torch.bfloat16)[:, 0].double()
    for block, offset in enumerate([0.0, 32.0]):
        numbers = codes[block, 2:].view(torch.int8).tolist()
        if bits == 4:
            assert codes[block, 2:4].contiguous().view(torch.bfloat16).item() == offset
            numbers = [b & 15 for b in codes[block, 4:].tolist()] + [
                b >> 4 for b in codes[block, 4:].tolist()
            ]
        start = x[0, 32 * block : 32 * block + 32].double() - (offset if bits == 4 else 0)
        assert (
            numbers == (start / scale[block]).round().clamp(max=15 if bits == 4 else 127).tolist()
        )


@pytest.mark.parametrize("dim", [16, 20, 64, 96, 256])
def test_the_transform_is_its_own_inverse_and_spreads_a_large_number(dim):
    x = keys(40, dim)
    turned = coded.hadamard(x)
    assert (coded.hadamard(turned) - x).abs().max() < 1e-5 * x.abs().max()
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5)
    one = torch.zeros(dim)
    one[3] = 8.0
    size = dim & -dim  # numbers that are transformed together
    assert torch.allclose(coded.hadamard(one)[:size].abs(), torch.tensor(8 / size**0.5))


@pytest.mark.parametrize("dim", [16, 20, 64, 96])
def test_a_value_has_one_scale(dim):
    x = keys(40, dim)
    fine = coded.encode_values(x, 4).unflatten(-1, (-1, coded.BYTES[4]))[..., :4]
    assert (fine == fine[..., :1, :]).all()  # with its offset
    near = coded.decode(coded.encode_values(x, 4), 4, dim, torch.float32)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    within = (high - low) / 15 / 2 + torch.maximum(low.abs(), high - low) / 128
    assert ((near - x).abs() <= within * 1.01 + 1e-29).all()
    scales = coded.encode_values(x, 8).unflatten(-1, (-1, coded.BYTES[8]))[..., :2]
    assert (scales == scales[..., :1, :]).all()
    found = coded.decode(coded.encode_values(x, 8), 8, dim, torch.float32)
    largest = x.abs().amax(-1, keepdim=True)
    assert ((found - x).abs() <= largest * (1 / 254 + 1 / 256) + 1e-29).all()


@pytest.mark.usefixtures("build")  # each build in turn
@pytest.mark.product
@each_bits
@each_dtype
@pytest.mark.parametrize("dim", [16, 32, 64, 96, 128, 256])
def test_the_kernel_writes_these_bytes(dim, dtype, bits):
    k = keys(500, dim, dtype)
    v = keys(500, dim, dtype, 1)
    copy = Compact(bits)
    for slots in (torch.arange(1, 300, 3), torch.arange(0, 400, 2), torch.arange(500)):
        found = refill([(copy, StoredRow(k, v), slots)])[0]
        wanted = coded.encode_keys(k[1, slots], bits), coded.encode_values(v[1, slots], bits)
        for codes, want in zip(found, wanted, strict=True):
            assert {bytes(c) for c in codes[1].numpy()} == {bytes(c) for c in want.numpy()}
    once = refill([(Compact(bits), StoredRow(k, v), slots)])[0]
    assert all(map(torch.equal, copy.taken(StoredRow(k, v), slots), once))


def test_a_swapped_byte_would_be_noticed(monkeypatch):
    """The planted fault of the test above: halves of bytes that are swapped."""
    good = coded.encode

    def swapped(x: Tensor, bits: int) -> Tensor:
        codes = good(x, bits).unflatten(-1, (-1, coded.BYTES[bits]))
        codes[..., 4:] = codes[..., 4:] >> 4 | codes[..., 4:] << 4
        return codes.flatten(-2)

    monkeypatch.setattr(coded, "encode", swapped)
    x = keys(40, 64)
    assert (
        coded.decode(coded.encode(x, 4), 4, 64, torch.float32) - x
    ).abs().mean() > 0.3 * x.abs().mean()


@each_bits
def test_a_slot_is_encoded_once(bits):
    """A copy that grows keeps the codes that it has, and is seldom allocated again."""
    if native.library() is None:
        pytest.skip("only native code keeps what is held")
    k = torch.ones(2, 4000, 32)
    copy = Compact(bits)
    before = torch.empty(0)
    grown = 0
    for step in range(60):
        k.fill_(step + 1)  # so that a slot's codes say in which step they were made
        n = 1000 + 50 * step
        room = copy._k.shape[1]
        _, codes = refill([(copy, StoredRow(k, k), torch.arange(n))])[0]
        found = coded.decode(codes, bits, 32, torch.float32)[0, :, 0].round()
        if copy._k.shape[1] == room:
            assert (
                torch.equal(found[: len(before)], before)
                and (found[len(before) :] == step + 1).all()
            )
        grown = grown + (copy._k.shape[1] != room)
        before = found
    assert grown <= 13


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.usefixtures("build")
@each_bits
@each_dtype
@pytest.mark.parametrize("model", ["llama", "wide", "llama-mha"])
def test_a_pass_reads_what_the_codes_say(model, dtype, bits):
    """As eager attention over the decoded keys; rows of unequal lengths, one past a block of keys;
    nodes and chains.
    """
    lm = LM(tiny.stock(model, dtype=dtype), model)
    lengths = (1300, 33, 290) if model == "wide" else (450, 33, 290)
    cache = lm.new_cache(3, max(lengths) + 64)
    prompts = tiny.prompts(*lengths)
    for b, p in enumerate(prompts):
        lm.prefill(p, cache.row(b))
    near = 5e-2 if dtype == torch.float32 else 6e-2  # queries and weights to 8 bits
    root = Tree.root(torch.tensor([5, 6, 7]))
    for policy in (Full(), SinkWindow(4, 0.5, 40)):
        view = Coded(policy, bits, recent=6).view(cache)
        full = policy.view(cache)
        assert view is not None and view.bits == bits and sum(view.counts) > 100
        for tree in (root, Tree.chain(torch.arange(3, 27).view(3, 8))):
            found = lm(tree, cache, view=view)
            want = lm.eager.forward(tree, cache, 0, view, Captures())
            assert (found - want).abs().max() <= near * want.abs().max()
            plain = lm(tree, cache, view=full)
            # the codes are read, not the cache
            assert (found - plain).abs().max() > (1e-3 if bits == 4 else 1e-5)
        draws = ChainDraws(3, [Sampler()] * 3, torch.zeros(3, dtype=torch.long), cache.length + 1)
        if lm.backend.name == "native":
            chain = lm.backend.chain_drafter(cache, view)(root.tokens[:, 0], 0, draws)
            assert torch.equal(chain[:, 0], lm(root, cache, view=view)[:, 0].argmax(-1))


def shown(view: View | None, n: int, b: int, layer: int) -> tuple[list[int], list[int]]:
    """Row b's selected slots and those of its tail."""
    if view is None:
        return [], list(range(n))
    at = 0 if view.layers is None else view.layers[layer]
    slots = view.indices[at, b][..., : view.counts[b]]
    slots = slots if slots.dim() == 1 else slots[0]
    return slots.tolist(), list(range(view.starts[b], n))


class Turning(Policy):
    """Selects other slots at every third view; the second row always sees everything."""

    def __init__(self) -> None:
        self.views = 0

    def view(self, cache):
        if self.views % 3 == 0:
            n = cache.length.tolist()
            g = torch.Generator().manual_seed(self.views)
            first = torch.stack([torch.randperm(n[0] // 2, generator=g)[:9] for _ in range(2)])
            indices = torch.full((2, len(n), 9), -1)
            indices[:, 0] = first.sort().values
            start = torch.zeros(len(n), dtype=torch.long)
            start[0] = n[0] // 2
            self._view = View(indices, start, {0: 0, 2: 1})
        self.views += 1
        return self._view


POLICIES = {
    "full": lambda: Full(),
    "window": lambda: SinkWindow(4, 0.3, 30),
    "turning": Turning,
}


@torch.inference_mode()
@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_slots_are_shown_and_the_latest_as_they_are(policy):
    lm = tiny.target("llama")
    lengths = torch.tensor([150, 60])
    cache = lm.new_cache(2, 400)
    for b, p in enumerate(tiny.prompts(*lengths.tolist())):
        lm.prefill(p, cache.row(b))
    inner = POLICIES[policy]()
    wrapped = Coded(POLICIES[policy](), 4, recent=10)
    tails = set()
    for step in range(60):
        want = inner.view(cache)
        view = wrapped.view(cache)
        for b, n in enumerate(cache.length.tolist()):
            for layer in (0, 2):
                (a, tail_a), (c, tail_c) = shown(want, n, b, layer), shown(view, n, b, layer)
                assert c + tail_c == a + tail_a
                assert len(tail_c) >= min(len(tail_a), 10)  # the latest are not codes
                assert len(tail_c) < 20
                tails.add(len(tail_c))
        cache.length += torch.tensor([3, step % 2])
    assert len(tails) > 3


@torch.inference_mode()
def test_codes_of_a_row_are_kept_until_it_changes():
    """A view stays until a row's codes are extended, and the rows that do not change are not copied
    again.
    """
    lm = tiny.target("llama")
    cache = lm.new_cache(2, 300)
    policy = Coded(Full(), 8, recent=16)
    for b, p in enumerate(tiny.prompts(100, 52)):
        lm.prefill(p, cache.row(b))
    seen = []
    for _ in range(20):
        view = policy.view(cache)
        lm(Tree.root(torch.tensor([5, 6])), cache, view=view)
        if not seen or view is not seen[-1]:
            seen.append(view)
        cache.length += torch.tensor([1, 2])
    assert [v.starts for v in seen] == [[80, 32], [80, 48], [96, 48], [96, 64]]
    for before, after in pairwise(seen):
        for key in ((0, 0), (2, 0), (0, 1), (2, 1)):
            same = before.starts[key[1]] == after.starts[key[1]]
            assert (after.copied[key] is before.copied[key]) == same


@torch.inference_mode()
def test_codes_follow_their_row():
    """A row that leaves takes its codes with it; the last row's move to its place."""
    lm = tiny.target("llama")
    cache = lm.new_cache(3, 200)
    policy = Coded(Full(), 8, recent=8)
    prompts = tiny.prompts(90, 60, 75)
    for b, p in enumerate(prompts):
        lm.prefill(p, cache.row(b))
    tokens = torch.zeros(3, 1, dtype=torch.long)
    policy.start(lm, tokens, cache)
    root = Tree.root(torch.tensor([5, 6, 7]))
    before = lm(root, cache, view=policy.view(cache))
    cache.move(2, 0)
    cache = cache.rows(slice(0, 2))
    policy.leave(lm, tokens[:2], cache, 0)
    two = Tree.root(torch.tensor([7, 6]))
    torch.testing.assert_close(lm(two, cache, view=policy.view(cache)), before[[2, 1]])


def test_a_view_per_key_head_keeps_its_tail():
    """SnapKV selects for each key head: what it selects is encoded once, and its tail is read as it
    is.
    """
    lm = tiny.target("llama")
    outputs = generate(
        lm, tiny.prompts(90), SelfDrafter(lm, SnapKV(0.07, 16), [1] * 4), max_new_tokens=40
    )
    policy = Coded(SnapKV(0.07, 16), 8, recent=4)
    assert (
        generate(lm, tiny.prompts(90), SelfDrafter(lm, policy, [1] * 4), max_new_tokens=40)
        == outputs
    )
    view = policy._view
    assert view is not None and view.indices.dim() == 4 and view.bits == 8 and view.starts == [83]


def test_a_view_of_pages_cannot_be_encoded():
    lm = tiny.target("llama")
    with pytest.raises(TypeError, match="nothing to encode"):
        generate(
            lm,
            tiny.prompts(90),
            SelfDrafter(lm, Coded(Quest(0.07, 16, 4), 8), [1] * 2),
            max_new_tokens=4,
        )


@pytest.mark.full
@pytest.mark.parametrize("model", ["llama", "llama-torch", "wide"])
def test_better_codes_are_accepted_more(model):
    """8 bits of every key are all but the target itself, and 4 bits are better than none."""
    lm = tiny.target(model)
    found = {}
    for bits in (8, 4):
        stats = Stats()
        drafter = SelfDrafter(lm, Coded(Full(), bits, recent=8), [1] * 4)
        sampler = Sampler(temperature=1.0)
        generate(
            lm,
            tiny.prompts(150),
            drafter,
            max_new_tokens=80,
            sampler=sampler,
            seed=SEED,
            stats=stats,
        )
        found[bits] = stats.mean_acceptance_length
    assert found[8] > 4.5 and found[8] >= found[4] > 2


@each_bits
def test_bytes_are_counted(bits):
    lm = tiny.target("llama")
    cache = lm.new_cache(1, 200)
    policy = Coded(Full(), bits, recent=16)
    lm.prefill(tiny.prompts(100)[0], cache)
    codes = InCodes(policy.coded, policy.bits)
    # layers, key heads, key and value; bytes of a key
    slot = 3 * 2 * 2
    recent = 16 * 4
    known = keys_read(lm, cache, policy.seen, codes=codes)  # predicted: nothing is encoded yet
    assert known == slot * (84 * coded.width(16, bits) + 16 * recent)
    policy.view(cache)
    assert keys_read(lm, cache, policy.seen, codes=codes) == slot * (
        80 * coded.width(16, bits) + 20 * recent
    )


def test_the_option():
    lm = tiny.target("llama")
    for name in (
        "quantspec",
        "vegas",
        "vegas-tree",
        "vegas-reuse",
        "magicdec-stream",
        "magicdec-snapkv",
    ):
        drafter = build(name, lm, draft_kv="int8")
        first = drafter.drafters[0] if name == "vegas-reuse" else drafter
        assert isinstance(first.policy, Coded) and first.policy.bits == 8
    assert (
        isinstance(build("quantspec", lm).policy, Coded) and build("quantspec", lm).policy.bits == 4
    )
    assert isinstance(build("quantspec", lm, draft_kv="same").policy, Full)
    assert isinstance(build("vegas", lm).policy, Guided)
    with pytest.raises(InputError, match="draft_kv"):
        build("vegas", lm, draft_kv="int2")


def test_native_code_refuses_other_codes():
    if native.library() is None:
        pytest.skip("no native code here")
    k = keys(30, 24)
    copy = Compact(4)
    # 24 numbers are not a multiple of 16: torch encodes them
    assert not copy.is_compiled(StoredRow(k, k), torch.arange(5))
    assert torch.equal(
        refill([(copy, StoredRow(k, k), torch.arange(5))])[0][0],
        coded.encode_keys(slots_of(k, torch.arange(5)), 4),
    )
    k = keys(30, 16)
    job, *_ = copy.change(StoredRow(k, k), torch.arange(5))
    for bits, slot_bytes in ((5, 64), (4, 60), (-4, 64)):
        job.bits = bits
        job.slot_bytes = slot_bytes
        with pytest.raises(RuntimeError, match="slots to be copied"):
            native.library().longdraft_retake((native.Copy * 1)(job), 1)
    job.bits = 4
    for dim, slot_bytes in ((16, 64), (24, 34), (64, 34), (-16, 64)):  # not the bytes of such codes
        job.dim = dim
        job.slot_bytes = slot_bytes
        with pytest.raises(RuntimeError, match="slots to be copied"):
            native.library().longdraft_retake((native.Copy * 1)(job), 1)
    assert select.room_for(80) == 144 and select.room_for(32000) == 36000


@torch.inference_mode()
def test_the_first_codes_are_no_cost_of_a_draft(monkeypatch):
    """Adaptive drafting measures drafts after `ready`: encoding a prompt would look like a draft
    that cannot pay.
    """
    lm = tiny.target("llama")
    cache = lm.new_cache(2, 400)
    for b, p in enumerate(tiny.prompts(150, 200)):
        lm.prefill(p, cache.row(b))
    wrapped = Coded(Full(), 8)
    wrapped.start(lm, torch.zeros(2, 260, dtype=torch.long), cache)
    wrapped.ready(lm, cache)
    monkeypatch.setattr("longdraft.views.base.refill", None)  # would fail if it were called
    wrapped.ready(lm, cache)
    lm(Tree.chain(torch.tensor([[3], [4]])), cache, view=wrapped.view(cache))
