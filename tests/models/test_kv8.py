"""--kv int8: a model whose keys and values are kept in 8 bits is a target of its own, decoded
losslessly.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support import broken, tiny
from support.another_target import check_audit, check_bench
from support.checks import SAMPLERS, check_lossless, plain
from support.integer_attention import Reference
from support.listed import BUILD
from torch import Tensor

from longdraft import InputError, Stats, build, generate, ops
from longdraft.core.cache import KVCache
from longdraft.core.tree import Tree
from longdraft.drafters.kinds import KINDS
from longdraft.engine.decode_session import DecodeSession
from longdraft.models.identity import fingerprint
from longdraft.models.lm import LM
from longdraft.models.loading import load_lm
from longdraft.models.memory_traffic import keys_read, slot_bytes
from longdraft.ops import coded
from longdraft.views import Coded, Guided, Policy

WORDS = ("--prompt-file", "a.txt", "--temperature", "1")


def rounded(
    self: KVCache, layer: int, k: Tensor, v: Tensor, starts: list[int], write=KVCache.write
) -> None:
    """KVCache.write of numbers that are rounded as codes would round them."""
    k = coded.decode_keys(coded.encode_keys(k, 8), 8, k.shape[3], k.dtype)
    v = coded.decode(coded.encode_values(v, 8), 8, v.shape[3], v.dtype)
    write(self, layer, k, v, starts)


@pytest.mark.parametrize("model", ["llama", "llama-torch", "llama-bf16", "gpt-oss", "deepseek"])
@torch.inference_mode()
def test_a_pass_reads_every_key_and_value_rounded(model, monkeypatch):
    """Those of committed and of scratch slots, in each backend, as Transformers' layers do over
    rounded numbers.
    """
    lm = LM(tiny.target(model).hf, kv="int8")
    lm.backend = tiny.target(model).backend
    [prompt], tree = tiny.prompts(70), Tree.chain(torch.tensor([[5, 6, 7]]))

    def logits(model: LM, cache: KVCache) -> Tensor:
        model.prefill(prompt, cache)
        return model(tree, cache).float()

    found = logits(lm, cache := lm.new_cache(1, 90))
    exact = logits(tiny.target(model), KVCache(1, 90))
    assert {x.dtype for i in cache.layers for x in cache.stored(i, 0)} == {torch.uint8}
    lm.backend = lm.eager
    monkeypatch.setattr(KVCache, "write", rounded)
    if model in ("llama", "gpt-oss") and tiny.target(model).backend.name == "native":
        monkeypatch.setattr(ops, "attend", Reference())
    want = logits(lm, reference := KVCache(1, 90))
    for i in cache.layers:
        for x, y in zip(cache.read(i, 0), reference.read(i, 0), strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype
            if not y.shape[2]:  # latents are keys without values
                continue
            assert (x - y)[:, : len(prompt) + 2].abs().max() < (
                0.1 if model.endswith("bf16") else 0.02
            ) * y.abs().max()
    near = (found - want).abs().max() / want.abs().max()
    far = (exact - want).abs().max() / want.abs().max()
    assert near < (0.05 if model.endswith("bf16") else 0.01) and far > 0.001


@pytest.mark.parametrize("model", ["llama-kv8", "llama-torch-kv8"])
@pytest.mark.parametrize("kind", ["same", "int8", "int4"])
def test_drafts_read_codes_of_fewer_bits_or_the_same(model, kind):
    make = partial(build, min_budget=16, draft_kv=kind)
    stats = check_lossless(lambda t: make("vegas", t, gamma=4), model, SAMPLERS["T=1"], (70, 31))
    assert stats.emitted == 32
    policy: Policy = make("vegas", tiny.target(model)).policy
    assert type(policy) is (Coded if kind == "int4" else Guided)


def shared_scale(encode, x: Tensor, bits: int) -> Tensor:
    """The fault: a node's codes depend on the nodes beside it, as they do where a pass has one
    scale.
    """
    if x.dim() == 4:
        x = x.clone()
        x[..., 0] = torch.where(x[..., 0].abs() > 0.5, x[..., 0], x[..., :1, 0])
    return encode(x, bits)


def other_when_committed(stored_row, self: KVCache, layer: int, b: int) -> ops.StoredRow:
    """The fault: the numbers of scratch are not yet those that later passes read."""
    k, v = stored_row(self, layer, b).numbers()
    scratch = torch.arange(k.shape[1]) >= int(self.length[b])
    return ops.StoredRow(k * torch.where(scratch, 3.0, 1.0)[:, None], v)


@pytest.mark.full
@pytest.mark.parametrize(
    "where, name, fault",
    [(coded, "encode", shared_scale), (KVCache, "stored_row", other_when_committed)],
)
@pytest.mark.whole
def test_codes_that_depend_on_the_pass_are_caught(where, name, fault, monkeypatch):
    check = partial(
        check_lossless, BUILD["vegas tree"], "llama-torch-kv8", SAMPLERS["T=1"], (70, 31, 90), 32
    )
    check()
    plain.cache_clear()
    good = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *args: fault(good, *args))
    with pytest.raises(AssertionError):
        check()
    broken.caught(f"8-bit keys: {fault.__name__}", "check_lossless")
    plain.cache_clear()


@pytest.mark.parametrize("model", ["llama-kv8", "llama-torch-kv8"])
def test_a_drafter_that_alters_codes_is_noticed(model):
    runs = DecodeSession(tiny.target(model), tiny.prompts(40, 25), 12)
    runs.seal()
    list(runs.decode())
    assert runs.altered() is None
    with torch.inference_mode():
        runs.cache.stored(1, 1)[0][0, 3, 5] ^= 1
    assert runs.altered() == "the prompt's keys and values"


def test_rows_and_reopened_slots_keep_their_codes():
    lm = tiny.target("llama-kv8")
    cache = lm.new_cache(3, 80)
    for b, prompt in enumerate(tiny.prompts(50, 31, 60)):
        lm.prefill(prompt, cache.row(b))
    before = [x.clone() for i in cache.layers for x in cache.stored(i, 2)]
    with cache.reopen(20):
        lm(Tree.chain(torch.arange(3, 15).expand(3, -1)), cache)
        assert not torch.equal(cache.stored(0, 2)[0][:, 39:51], before[0][:, 39:51])
    cache.move(2, 0)
    after = [cache.stored(i, b) for b in (0, 2) for i in cache.layers]
    assert all(
        torch.equal(x[:, :60], old[:, :60])
        for x, old in zip(sum(after, ()), before * 2, strict=True)
    )


@pytest.mark.parametrize("model", ["llama", "llama-bf16", "deepseek"])
def test_bytes_are_counted_as_they_are_read(model):
    lm = LM(tiny.target(model).hf, kv="int8")
    cache = lm.new_cache(1, 64)
    lm.prefill(tiny.prompts(40)[0], cache)
    held = sum(x[:, :1].numel() for i in cache.layers for x in cache.stored(i, 0))
    assert keys_read(lm, cache) == 40 * held == cache.nbytes(40)
    if model != "deepseek":
        assert slot_bytes(lm) == held
    assert cache.read(0, 0)[0].dtype == lm.dtype


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("kv") / "llama"
    tiny.stock("llama").save_pretrained(made)
    return str(made)


def test_it_is_another_target_to_records_and_the_same_one_to_drafters(folder, tmp_path):
    lm, usual = (load_lm(folder, "float32", "cpu", kv=kv) for kv in ("int8", None))
    rows = tiny.prompts(70, 31)
    assert generate(lm, rows, max_new_tokens=48) != generate(usual, rows, max_new_tokens=48)
    assert fingerprint(lm) == fingerprint(usual) | {"kv": "int8"}
    KINDS["medusa"].save(KINDS["medusa"].random(lm, 0), tmp_path / "drafter", lm, {})
    for target in (lm, usual):
        KINDS["medusa"].load(str(tmp_path / "drafter"), target)


def test_with_quantized_weights_and_a_quantized_copy(folder):
    lm = load_lm(folder, "float32", "cpu", weights="int8", kv="int8")
    rows = tiny.prompts(70)
    stats = Stats()
    drafter = build("quantspec", lm, gamma=3)
    assert generate(lm, rows, drafter, max_new_tokens=32, stats=stats) == generate(
        lm, rows, max_new_tokens=32
    )
    assert stats.mean_acceptance_length > 1.5


@pytest.mark.parametrize("kind", ["int4", "", "INT8", "same", "x" * 99])
def test_another_kind_is_refused(folder, kind, cli):
    with pytest.raises(InputError, match="choose int8 or full, or leave it out"):
        load_lm(folder, "float32", "cpu", kv=kind)
    status, _, err = cli("generate", "hi", "-m", folder, "--kv", kind)
    assert status == 2 and len(err.splitlines()) == 1


@pytest.mark.full
def test_generate_compares_with_its_own_plain_decoding(record):
    found = record(*WORDS, "--kv", "int8", "--compare")
    assert found["equal"] is True and found["kv"] == "int8"
    usual = record(*WORDS, "--method", "plain")
    assert usual["kv"] is None and usual["text"] != found["text"]


@pytest.mark.full
def test_the_audit_of_it_finds_no_difference(cli, tmp_path):
    check_audit(cli, tmp_path, "kv", "int8")


@pytest.mark.full
def test_benchmarks_record_it(cli, tmp_path):
    check_bench(cli, tmp_path, "kv", [None, "int8"])
